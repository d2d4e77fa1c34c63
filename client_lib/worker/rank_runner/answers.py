"""Answers two questions of the launcher: where the threads are (their stacks), and which exception
ends the script."""

from __future__ import annotations

import os
import sys
import time

from client_lib.worker.rank_runner.error_file import write_error_file
from client_lib.worker.rank_runner.this_rank import THIS_RANK, own_file
from client_lib.worker.rank_runner.unwinding import unwinding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# the part of `signal` in C, which takes no time to import
C_SIGNAL: Any = sys.modules["_signal"]
STACKS_SIGNAL = 50
"""A real-time signal; stacks.py uses the same number."""
UNWINDING_SIGNAL = 51
"""Another real-time signal; ranks.py uses the same number."""
STACKS_FD = 100
"""A high number, so that files of the script get the same numbers as under `python script.py`."""
_UNWINDS_S = 1.0
"""The launcher asks at the earliest this long after the first failure of another rank
(outcome.PEERS_END_S)."""


def begin() -> None:
    """Note the rank and its master, and answer the launcher's questions from now on."""
    THIS_RANK.pid = os.getpid()
    several_workers = os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE")
    THIS_RANK.master = os.environ.get("MASTER_ADDR", "") if several_workers else ""
    world_size = os.environ.get("WORLD_SIZE", "")
    THIS_RANK.world_size = int(world_size) if world_size.isdigit() else 0
    THIS_RANK.world_file = own_file("world-")
    try:
        C_SIGNAL.signal(UNWINDING_SIGNAL, _answer_unwinding)
        import faulthandler

        fd = os.open(own_file(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, STACKS_FD, inheritable=False)
        os.close(fd)
        # this handler is C: it also runs while a thread holds the interpreter's lock
        faulthandler.register(STACKS_SIGNAL, file=STACKS_FD, all_threads=True, chain=False)
    # no such signals here; or stacks are not requested: there is no folder
    except (OSError, ImportError, ValueError):
        pass


def _answer_unwinding(signum: int, frame: Any) -> None:
    """Write the exception from which the main thread unwinds to the error file. The launcher asks
    before SIGTERM: the other ranks, which report only that they lost a peer, may end while a
    `finally` of this rank still runs."""
    try:
        error = unwinding(frame)
        if error is not None:
            write_error_file(error, time.time() - _UNWINDS_S)
    except Exception:  # noqa: BLE001  (it must not reach the script)
        pass
    # the answer: the launcher waits until there is no handler
    C_SIGNAL.signal(signum, C_SIGNAL.SIG_IGN)
