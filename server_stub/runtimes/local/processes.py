"""Finds and kills the processes that a dead launcher has left. A pid alone proves nothing.

A process belongs to a worker if its environment holds the worker's marker, or if it belongs to a recorded group whose
leader has the recorded start time. (macOS shows environments through ps only.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from client_lib.worker.directory import MARKER, Directory, read_json
from client_lib.worker.system import marked, start_time

LAUNCHER_SWEEPS = sys.platform == "linux" and os.environ.get("CLIENT_LIB_PORTABLE") != "1"
"""A launcher that has reported has ended all of its descendants (child subreaper). On other systems it finds process
groups only, and the runtime kills the rest."""


def program_of(pid: int) -> str:
    """Name of the program; "": unknown."""
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def leftovers(worker_dir: Path) -> list[int]:
    """Living processes of the worker, whose launcher is dead."""
    found = set(_marked(Directory(str(worker_dir)).path))
    for record in _recorded(worker_dir):
        if start_time(record["pid"]) == record["start_time"] and not _is_zombie(record["pid"]):
            found.add(record["pid"])
    return sorted(found - {os.getpid()})  # a server that was started by a job has that job's marker


def kill_leftovers(worker_dir: Path) -> list[int]:
    """Send SIGKILL to all of them, and return them. Repeat until none is found: a process may start another."""
    found = leftovers(worker_dir)
    for record in _recorded(worker_dir):
        if record["pid"] in found:
            _signal_group(record["pgid"])
    for pid in found:
        _signal(pid)
    return found


def _recorded(worker_dir: Path) -> list[dict[str, Any]]:
    """The ranks' {pid, pgid, start_time}; empty before they start."""
    return list((read_json(Directory(str(worker_dir)).processes) or {}).values())


def _is_zombie(pid: int) -> bool:
    """The process has ended, but is not reaped yet: a container's init may take long."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
        return state.strip()[:1] in ("", "Z")


def _signal(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or another user's by now
        pass


def _signal_group(pgid: int) -> None:
    try:
        os.killpg(pgid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _marked(worker_dir: str) -> list[int]:
    if sys.platform == "linux":
        return marked(MARKER, worker_dir)
    return _marked_by_ps(worker_dir)


def _marked_by_ps(worker_dir: str) -> list[int]:
    """The same without /proc: `ps -E` shows the environment after the command."""
    answer = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False).stdout
    return find_in_ps(answer, f"{MARKER}={worker_dir}")


def find_in_ps(answer: str, marker: str) -> list[int]:
    """The pids of lines that contain `marker` as a separate word. Pure."""
    return [int(line.split(None, 1)[0]) for line in answer.splitlines() if f" {marker} " in f"{line} "]
