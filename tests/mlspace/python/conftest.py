"""A configuration of its own for each test, and one real local server for all of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.conftest import _own_configuration, client, folder, state

__all__ = ["_own_configuration", "client", "folder", "state"]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types of eight cards run on the CPU wherever these tests run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def hello(folder: Path) -> Path:
    """A script that says its rank and its flags."""
    path = folder / "hello.py"
    path.write_text("import os, sys\nprint('hello', os.environ['RANK'], os.environ['WORLD_SIZE'], *sys.argv[1:])\n")
    return path
