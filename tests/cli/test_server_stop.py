"""`client-lib server stop`: which servers it ends, and who is asked."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_lib.cli.commands.server import stop_each
from client_lib.transport import local_server
from client_lib.transport.local_server import Running
from tests.kit.bounds import Bounds
from tests.kit.local_server import stop_server

from .conftest import Run

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("commands_here"),
    pytest.mark.skipif(sys.platform != "linux", reason="servers are found in /proc"),
]


@pytest.fixture
def servers(environment: dict[str, str], tmp_path: Path) -> Iterator[tuple[Running, Running]]:
    """The server of the user's state directory, and one of another directory."""
    folders = (Path(environment["CLIENT_LIB_STATE_DIR"]), tmp_path / "other")
    yield (local_server.find_or_start(folders[0]), local_server.find_or_start(folders[1]))
    for folder in folders:
        stop_server(folder)


def test_all_asks_before_it_ends_a_server_of_another_state_directory(
    cli: Run, servers: tuple[Running, Running]
) -> None:
    asked = cli("server", "stop", "--all")  # no terminal: nobody can answer
    assert asked.returncode == 2
    for running in servers:
        assert f"pid {running.pid}, {running.state_dir}" in asked.stdout
        assert local_server.find(running.state_dir) == running
    assert "add --yes to the same command" in asked.stderr


def test_without_all_the_server_of_another_state_directory_goes_on(
    cli: Run, servers: tuple[Running, Running]
) -> None:
    here, other = servers
    ended = cli("server", "stop")
    assert (ended.returncode, f"pid {here.pid}" in ended.stdout) == (0, True)
    assert local_server.find(other.state_dir) == other


def test_a_server_that_does_not_end_keeps_no_other_from_being_stopped(
    servers: tuple[Running, Running], bounds: Bounds, capsys: pytest.CaptureFixture[str]
) -> None:
    stuck, other = servers
    os.kill(stuck.pid, signal.SIGSTOP)
    bounds(local_server, STOP_S=5.0)
    assert stop_each([stuck, other]) == 1
    printed = capsys.readouterr()
    assert f"the local server (pid {stuck.pid}) does not end" in printed.err
    assert f"(pid {other.pid}, {other.state_dir}) has ended" in printed.out
    assert local_server.find(other.state_dir) is None
