"""Finds and kills the processes that a dead launcher has left. A pid alone proves nothing.

A process belongs to a worker if its environment holds the worker's marker, or if it belongs to a recorded group whose
leader has the recorded start time. (macOS shows environments through ps only.)

If the worker's folder belongs to another account than that of this server, only processes of that account are killed.
They write the records themselves, so a record could name any process of the machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_lib.worker.directory import MARKER, Directory, read_json
from client_lib.worker.system import group_members, marked, start_time, stat, user_of
from server_stub.files.owned import opener

LAUNCHER_SWEEPS = sys.platform == "linux" and os.environ.get("CLIENT_LIB_PORTABLE") != "1"
"""A launcher that has reported has ended all of its descendants (child subreaper). On other systems it finds process
groups only, and the runtime kills the rest."""


def leftovers(worker_dir: Path) -> list[int]:
    """Living processes of the worker, whose launcher is dead."""
    found = set(_marked(Directory(str(worker_dir)).path))
    for record in _recorded(worker_dir):
        if start_time(record["pid"]) == record["start_time"] and not _is_zombie(record["pid"]):
            found.add(record["pid"])
    found.discard(os.getpid())  # a server that was started by a job has that job's marker
    return sorted(pid for pid in found if _may_kill(pid, worker_dir))


def kill_leftovers(worker_dir: Path) -> list[int]:
    """Send SIGKILL to all of them, and return them. Repeat until none is found: a process may start another."""
    found = leftovers(worker_dir)
    for record in _recorded(worker_dir):
        if record["pid"] in found:
            _signal_group(record["pgid"], worker_dir)
    for pid in found:
        _signal(pid, worker_dir)
    return found


def kill(record: dict[str, Any], worker_dir: Path) -> None:
    """Send SIGKILL to the process of a worker with this {pid, start_time}, if it lives."""
    if _is_record(record) and start_time(record["pid"]) == record["start_time"]:
        _signal(record["pid"], worker_dir)


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process that listens on the other end of a Unix socket (Linux)."""
    credentials = struct.Struct("3i")
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(found)[1])


def _recorded(worker_dir: Path) -> list[dict[str, Any]]:
    """The ranks' {pid, pgid, start_time}; empty before they start."""
    records = read_json(Directory(str(worker_dir)).processes, opener(worker_dir)) or {}
    return [record for record in records.values() if _is_record(record) and _is_pid(record.get("pgid"))]


def _is_record(record: object) -> bool:
    return isinstance(record, dict) and _is_pid(record.get("pid")) and record.get("start_time") is not None


def _is_pid(number: object) -> bool:
    """True for a pid that the kernel can have given to a process of a job: 0 and 1 name groups of other processes."""
    return isinstance(number, int) and 1 < number < 2**31


def _may_kill(pid: int, worker_dir: Path) -> bool:
    return not _is_foreign(worker_dir) or user_of(pid) == os.lstat(worker_dir).st_uid


def _is_foreign(worker_dir: Path) -> bool:
    """The processes of this worker run under another account than that of this server."""
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(worker_dir).st_uid != os.geteuid()
    return False


def _is_zombie(pid: int) -> bool:
    """The process has ended, but is not reaped yet: a container's init may take long."""
    if sys.platform == "linux":
        return stat(f"/proc/{pid}")[:1] in ([], ["Z"], ["X"])
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[:1] in ("", "Z")


def _signal(pid: int, worker_dir: Path) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or another user's by now
        if not _is_foreign(worker_dir):
            os.kill(pid, signal.SIGKILL)
            return
        process = os.pidfd_open(pid)  # after the check the pid may pass to another process
        try:
            if _may_kill(pid, worker_dir):
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _signal_group(pgid: int, worker_dir: Path) -> None:
    if _is_foreign(worker_dir):
        for pid in group_members(pgid):
            _signal(pid, worker_dir)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


def _marked(worker_dir: str) -> list[int]:
    if sys.platform == "linux":
        return marked(MARKER, worker_dir)
    # without /proc; `ps -E` shows the environment after the command
    answer = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False).stdout
    return find_in_ps(answer, f"{MARKER}={worker_dir}")


def find_in_ps(answer: str, marker: str) -> list[int]:
    """The pids of lines that contain `marker` as a separate word."""
    return [int(line.split(None, 1)[0]) for line in answer.splitlines() if f" {marker} " in f"{line} "]
