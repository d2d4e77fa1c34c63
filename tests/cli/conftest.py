"""The real command line against a small HTTP server with canned answers."""

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_lib.cli import app
from tests.kit.processes import kill_processes_of
from tests.kit.small_server import SmallServer

CLI = [sys.executable, "-m", "client_lib"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of a user who has configured nothing, with state and
    configuration of the test's own.
    """
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
def small_server(environment: dict[str, str]) -> Iterator[SmallServer]:
    """Every command of this test talks to it."""
    with SmallServer() as small:
        environment["CLIENT_LIB_ENDPOINT"] = small.url
        yield small


@pytest.fixture
def commands_here() -> None:
    """Runs the commands of a test marked `process` in the test's process: a start takes
    most of a command's time.
    """


@pytest.fixture
def run_here(
    environment: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run one command line to its end in this process."""

    def run(*args: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            # of the command alone: the test and pytest keep their own
            patch.setattr(os, "environ", {**environment, **variables})
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            capsys.readouterr()
            code = app.run(list(args))
        return subprocess.CompletedProcess(args, code, *capsys.readouterr())

    return run


@pytest.fixture
def cli(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path, run_here: Run
) -> Run:
    """Run one command line to its end: in this process, and in one of its own where the test is
    marked `process` and has no `commands_here`."""

    def run_apart(
        *args: str, stdin: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
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

    is_apart = (
        request.node.get_closest_marker("process") and "commands_here" not in request.fixturenames
    )
    return run_apart if is_apart else run_here


@pytest.fixture
def local_state(environment: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """An empty state directory for a real local server, which is started on demand and
    ended afterwards, jobs first.
    """
    del environment["CLIENT_LIB_RETRY_S"]
    state = tmp_path / "state"
    yield state
    kill_processes_of(state)
