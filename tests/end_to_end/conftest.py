"""The whole product on one machine: the SDK starts the local server, which
runs real worker processes.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.processes import kill_processes_of


class LocalServer:
    """The local server of one state directory, as the SDK starts it on demand."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    @property
    def pid(self) -> int | None:
        try:
            return int(json.loads((self.state_dir / "server.json").read_text())["pid"])
        except FileNotFoundError:
            return None

    def kill(self) -> bool:
        """kill -9; False if there was none."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalServer]:
    """An empty state directory in the environment; what runs there is
    ended afterwards, jobs first.
    """
    state_dir = Path(tempfile.mkdtemp(prefix="client_lib-"))
    for name in [name for name in os.environ if name.startswith("CLIENT_LIB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(state_dir))
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(state_dir / "config.toml"))
    server = LocalServer(state_dir)
    yield server
    server.kill()
    kill_processes_of(state_dir)
    shutil.rmtree(state_dir, ignore_errors=True)
