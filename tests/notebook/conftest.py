"""The local server that tests share, for a user with a configuration of its own."""

from pathlib import Path

import pytest

from tests.kit.local_server import client, folder, own_configuration

__all__ = ["client", "folder", "own_configuration"]


@pytest.fixture(autouse=True)
def _own_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads and writes nothing of the user who runs the tests."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
