"""A real local server that the tests of this folder share, and scripts of users, run as their own programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_lib import local_server
from client_lib.client import Client
from tests.client.conftest import CLIENT_VARIABLES, stop_server


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of the server."""
    path = tmp_path_factory.mktemp("server") / "state"
    local_server.find_or_start(path)
    yield path
    stop_server(path)


@pytest.fixture(autouse=True)
def client(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the real local server, which is also the configured one."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(state))
    return Client()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's, and the working directory."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


Script = Callable[..., str]


@pytest.fixture
def script(folder: Path) -> Script:
    """Run a user's script, whose functions are in its `__main__`; what it prints."""

    def run(text: str, name: str = "main.py", cwd: Path = folder) -> str:
        (folder / name).write_text(textwrap.dedent(text))
        command = [sys.executable, str(folder / name)]
        done = subprocess.run(command, cwd=cwd, env=dict(os.environ), capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
