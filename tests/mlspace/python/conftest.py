"""The local server that tests share, for a user with a configuration of its own."""

from pathlib import Path

import pytest

from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types of eight cards run on the CPU wherever these tests run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def hello(folder: Path) -> Path:
    """A script that says its rank and its flags."""
    path = folder / "hello.py"
    path.write_text(
        "import os, sys\nprint('hello', os.environ['RANK'], os.environ['WORLD_SIZE'], "
        "*sys.argv[1:])\n"
    )
    return path
