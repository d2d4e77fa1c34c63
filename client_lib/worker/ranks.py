"""The processes of one worker: started together, reaped, stopped with all that they started.

Standard library only, Python >= 3.8.
"""

import os
import time
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from client_lib.worker.directory import MARKER
from client_lib.worker.environment import Process
from client_lib.worker.format import NO_RANK
from client_lib.worker.output import Output
from client_lib.worker.spawn import Run, start
from client_lib.worker.system import System, start_time


class Exit(NamedTuple):
    """How a rank's process ended. Times are seconds since 1970."""

    rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    started_at: float
    ended_at: float
    stopped_by_us: bool


class Ranks:
    """All ranks of this worker."""

    def __init__(self, system: System, output: Output) -> None:
        self.exits: List[Exit] = []
        """In the order in which they ended."""
        self._system, self._output = system, output
        self._running: Dict[int, int] = {}  # pid -> rank
        self._groups: Set[int] = set()
        self._started_at: Dict[int, float] = {}
        self._signalled = False

    @property
    def running(self) -> bool:
        return bool(self._running)

    def start(self, processes: Sequence[Process], run: Run) -> None:
        """Start all, in the order of their ranks. Raises OSError naming what could not be started."""
        for process in processes:
            started = start(process, self._system.before_exec, run)
            self._running[started.pid] = process.rank
            self._groups.add(started.pid)
            self._started_at[process.rank] = time.time()
            shown = NO_RANK if process.is_agent else str(process.rank)
            self._output.add_pipe(process.rank, "stdout", started.stdout, shown)
            self._output.add_pipe(process.rank, "stderr", started.stderr, shown)

    def record(self) -> Dict[str, object]:
        """What processes.json holds."""
        return {
            str(rank): {"pid": pid, "pgid": pid, "start_time": start_time(pid)} for pid, rank in self._running.items()
        }

    def reap(self) -> List[Exit]:
        """Collect every child that ended: ranks, and orphans that came to us. Gives back the ranks."""
        ended = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid in self._running:
                ended.append(self._ended(pid, status))
        self.exits += ended
        return ended

    def signal(self, signum: int) -> None:
        """To the process groups of all ranks that run, and so to their children."""
        self._signalled = True
        for group in self._running:
            _kill_group(group, signum)

    def left_over(self) -> List[int]:
        """Processes that the ranks, all of them ended, have left behind."""
        return self._system.descendants(MARKER) or [group for group in self._groups if _kill_group(group, 0)]

    def signal_left_over(self, signum: int) -> None:
        for pid in self.left_over():
            if not _kill_group(pid, signum):
                _kill(pid, signum)

    def _ended(self, pid: int, status: int) -> Exit:
        rank = self._running.pop(pid)
        self._system.rank_ended(pid)
        by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        code = None if by is not None else os.WEXITSTATUS(status)
        return Exit(rank, code, by, self._started_at[rank], time.time(), self._signalled)


def _kill_group(group: int, signum: int) -> bool:
    """False: there is no such group."""
    try:
        os.killpg(group, signum)
    except PermissionError:  # macOS says so of a group of zombies
        return False
    except ProcessLookupError:
        return False
    return True


def _kill(pid: int, signum: int) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
