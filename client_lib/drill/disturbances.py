"""Carries a fault out on a running job."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from client_lib.drill.faults import FROZEN_S, Fault, Moment
from client_lib.drill.runs import Run, RunProcess
from client_lib.drill.saves import Saves
from client_lib.durable import allocate, free_bytes, size_of
from client_lib.errors import ClientLibError, Conflict
from client_lib.launcher_protocol.processes import number, parent

_POLL_S = 0.005
_SAVE_POLL_S = 0.001
"""Time between two looks for a save, whose middle is met."""
_LOOK_S = 0.05
"""Time between two looks at the checkpoints, each of which lists a folder."""
ENDED = "the run had ended before the fault"
_BALLAST = ".drill-ballast"
_LEAST_DISK = 64 * 2**20


class TooLate(Exception):
    """The run has ended before the fault; or there was nothing to disturb."""


def reach(run: Run, saves: Saves, moment: Moment, began_at: float, limit_s: float) -> None:
    """Wait for the moment. `began_at`: the start of the ranks, in seconds since 1970. Raises
    TooLate."""
    until = time.monotonic() + limit_s
    looked_at = 0.0
    while True:
        now = time.monotonic()
        if now - looked_at > _LOOK_S:
            saves.look()
            looked_at = time.monotonic()
        is_there = (
            time.time() - began_at >= moment.after_s
            if moment.steps is None
            else run.steps() >= moment.steps
        )
        if is_there and len(saves.times()) >= moment.saves:
            return
        if run.is_over():
            raise TooLate(ENDED)
        if now > until:
            raise TooLate(f"the run did not come to the moment of the fault in {limit_s:.0f} s")
        time.sleep(_POLL_S)


def disturb(fault: Fault, run: Run, saves: Saves, limit_s: float) -> None:
    """Carry the fault out. Raises TooLate."""
    ranks = _ranks(run)
    last = ranks[-1]
    if fault is Fault.TERM:
        run.cancel()
    elif fault is Fault.RANK:
        send([last], signal.SIGKILL)
    elif fault is Fault.FROZEN:
        _freeze(last)
    elif fault is Fault.WORKER:
        send([_launcher(last)], signal.SIGKILL)
    elif fault is Fault.DISK:
        _fill(run.place.folder, saves)
    else:
        if fault is Fault.SAVE:
            _await_save(run, saves, limit_s)
        send(ranks, signal.SIGKILL)


def _ranks(run: Run) -> list[RunProcess]:
    """The processes of the ranks, at least one. Raises TooLate."""
    try:
        ranks = run.processes()
    except Conflict:  # the job does not run any more
        ranks = []
    except ClientLibError as why:
        raise TooLate(f"the processes of the run are not known: {why}") from why
    if not ranks:
        raise TooLate(ENDED)
    return ranks


def _launcher(rank: RunProcess) -> RunProcess:
    """The parent of a rank. Raises TooLate."""
    pid = parent(rank.pid)
    found = RunProcess.running(pid or 0)
    # checked last: the rank was alive when its parent was read
    if pid is None or pid <= 1 or not rank.is_alive():
        raise TooLate("the launcher of the worker was not found")
    return found


def send(processes: Sequence[RunProcess], signum: int) -> None:
    """Send a signal to the processes that still run."""
    for process in processes:
        if process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signum)


def _freeze(process: RunProcess) -> None:
    send([process], signal.SIGSTOP)
    try:
        time.sleep(FROZEN_S)
    finally:
        send([process], signal.SIGCONT)


def _await_save(run: Run, saves: Saves, limit_s: float) -> None:
    """Return when a checkpoint begins to change."""
    until = time.monotonic() + limit_s
    watched = [Saves(folder) for folder in saves.folders()]
    while not any(each.look() for each in watched):
        if run.is_over():
            raise TooLate(ENDED)
        if time.monotonic() > until:
            raise TooLate(f"no checkpoint has begun to change in {limit_s:.0f} s")
        time.sleep(_SAVE_POLL_S)


# --- disk full


@contextmanager
def small_disk(folder: Path, like: Path) -> Iterator[None]:
    """A file system of its own at `folder`, with room for a run like the one in `like`. Raises
    TooLate: this user may not mount one, or it would take too much of the memory."""
    size = 4 * size_of(str(like)) + _LEAST_DISK
    if size > number("/proc/meminfo", b"MemAvailable:") * 1024 / 4:
        raise TooLate("a file system for it would take more than a quarter of the free memory")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        done = None
    if done is None or done.returncode:
        folder.rmdir()
        raise TooLate("only root may mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _fill(folder: Path, saves: Saves) -> None:
    """Leave room for half of a checkpoint."""
    sizes = [each.size for each in saves.found()]
    left = (max(sizes) if sizes else 0) // 2
    with open(folder / _BALLAST, "wb") as file:
        allocate(file.fileno(), max(1, free_bytes(str(folder)) - left))


def make_room(folder: Path) -> None:
    """Undo `_fill`."""
    (folder / _BALLAST).unlink(missing_ok=True)
