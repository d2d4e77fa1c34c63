"""Processes and ports of this machine, as tests find them."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

from tests.kit.waiting import until


def alive(pid: int) -> bool:
    """It exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes_of(folder: Path) -> list[int]:
    """Pids of servers, launchers and ranks that have this folder in their command line,
    or work below it (Linux).
    """
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            inside = b"CLIENT_LIB_WORKER_DIR=" + mark in (entry / "environ").read_bytes()
            if inside or mark in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return [pid for pid in found if pid != os.getpid()]


def kill_processes_of(folder: Path) -> None:
    """Kill the processes of `processes_of`, and those that they start meanwhile."""

    def none_is_left() -> bool:
        found = processes_of(folder)
        for pid in found:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, signal.SIGKILL)
        return not found

    until(none_is_left)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on now. For one that must stay free while nobody listens, use
    `free_port` of tests/worker_gateway/conftest.py."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
