"""One real local server for all of this folder, which the kernels of the notebooks ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.conftest import _own_configuration, client, folder, state

__all__ = ["_own_configuration", "client", "folder", "state"]


@pytest.fixture(autouse=True)
def _own_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reads and writes nothing of the user who runs the tests."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
