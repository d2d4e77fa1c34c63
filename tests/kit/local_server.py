"""Fixtures and helpers of a user of the local server, which itself is a fixture
of all tests (conftest.py).
"""

import os
import signal
from pathlib import Path

import pytest

from client_lib.client import Client
from client_lib.transport import local_server as servers
from tests.kit.waiting import until

CLIENT_VARIABLES = (
    "ENDPOINT",
    "TOKEN",
    "PROFILE",
    "CONFIG",
    "INSECURE",
    "CA_BUNDLE",
    "RETRY_S",
    "STATE_DIR",
)


def stop_server(state: Path) -> None:
    running = servers.find(state)
    if running:
        os.kill(running.pid, signal.SIGKILL)
        until(lambda: servers.find(state) is None)


@pytest.fixture(autouse=True)
def own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes what belongs to the user who runs it."""
    for name in CLIENT_VARIABLES:
        monkeypatch.delenv(f"CLIENT_LIB_{name}", raising=False)
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def client(local_server: Path, own_configuration: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the real local server, which is also the configured one."""
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(local_server))
    return Client()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of the user's, and the working directory."""
    path = tmp_path / "project"
    path.mkdir()
    monkeypatch.chdir(path)
    return path
