"""The real command line as a process, against a small HTTP server that answers what a test says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .small_server import SmallServer

CLI = [sys.executable, "-m", "client_lib"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user who has configured nothing, with state and configuration of the test's own."""
    ours = ("CLIENT_LIB_", "_CLIENT_LIB", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {
        **clean,
        "CLIENT_LIB_STATE_DIR": str(tmp_path / "state"),
        "CLIENT_LIB_CONFIG": str(tmp_path / "config.toml"),
        "CLIENT_LIB_RETRY_S": "0",
        "COLUMNS": "100",
    }


@pytest.fixture
def server(environment: dict[str, str]) -> Iterator[SmallServer]:
    """Every command of this test talks to it."""
    with SmallServer() as small:
        environment["CLIENT_LIB_ENDPOINT"] = small.url
        yield small


@pytest.fixture
def cli(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run one command line to its end."""

    def run(*args: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*CLI, *args],
            input=stdin,
            env={**environment, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


@pytest.fixture
def local_state(environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """An empty state directory for a real local server, which is started on demand and ended afterwards, jobs first."""
    del environment["CLIENT_LIB_RETRY_S"]
    state = tmp_path / "state"
    yield state
    for pid in processes_of(state):
        os.kill(pid, signal.SIGKILL)


def processes_of(state: Path) -> list[int]:
    """Pids of the server, the launchers and the ranks of this state directory (Linux)."""
    mark = str(state).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside = b"CLIENT_LIB_WORKER_DIR=" + mark in (entry / "environ").read_bytes()
            if inside or mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in found if pid != os.getpid()]
