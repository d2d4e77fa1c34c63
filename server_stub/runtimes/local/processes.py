"""What a dead launcher may have left running, and its end. No pid alone is ever trusted.

A process belongs to a worker if its environment holds the worker's marker, or if it is of a recorded group whose leader
has the recorded start time. (macOS shows environments through ps only.)
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
"""A launcher that reports has seen to all its descendants (child subreaper). Elsewhere it knows process groups only,
and the runtime looks after it."""


def program_of(pid: int) -> str:
    """Name of the program, or "" where it can't be seen."""
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
    return sorted(found - {os.getpid()})  # a server that a job itself has started bears that job's marker


def kill_leftovers(worker_dir: Path) -> list[int]:
    """SIGKILL to all of them; those that were found. Repeat until none is: a process may start another meanwhile."""
    found = leftovers(worker_dir)
    for record in _recorded(worker_dir):
        if record["pid"] in found:
            _signal_group(record["pgid"])
    for pid in found:
        _signal(pid)
    return found


def _recorded(worker_dir: Path) -> list[dict[str, Any]]:
    """The ranks' {pid, pgid, start_time}; none before they were started."""
    return list((read_json(Directory(str(worker_dir)).processes) or {}).values())


def _is_zombie(pid: int) -> bool:
    """It has ended, and waits for init to notice, which in a container can take long."""
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
    """The twin where there is no /proc: `ps -E` shows the environment behind the command."""
    answer = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False).stdout
    return find_in_ps(answer, f"{MARKER}={worker_dir}")


def find_in_ps(answer: str, marker: str) -> list[int]:
    """The pids of lines that hold `marker` as a word of its own. Pure."""
    return [int(line.split(None, 1)[0]) for line in answer.splitlines() if f" {marker} " in f"{line} "]
