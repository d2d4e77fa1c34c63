"""Runs a job's own command `setup` before the ranks of a worker, in their folder and environment."""

import signal
import time
from typing import Callable, Optional

from client_lib.worker.directory import Directory
from client_lib.worker.loop import Loop
from client_lib.worker.outcome import SETUP_FAILED, START_FAILED, TIMEOUT
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.prepare import CannotStart
from client_lib.worker.rank_environment import setup_process
from client_lib.worker.ranks import Ranks, execute
from client_lib.worker.report import last_lines
from client_lib.worker.system import System
from client_lib.worker.worker_log import WorkerLog

_OUTPUT_S = 1.0  # longest wait for the rest of its output: a process that it has left behind may keep the pipes open
_POLL_S = 0.01


class Setup:
    """The command on one worker. The caller handles SIGCHLD and calls `reap` at each."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        log: WorkerLog,
        loop: Loop,
        on_end: Callable[[Optional[CannotStart]], None],
    ) -> None:
        """`on_end` is called once, when the command has ended and its output is in the log; None: with exit code 0."""
        self._process, self._limit_s = setup_process(plan, directory), plan.setup_limit_s
        self._log, self._loop, self._on_end = log, loop, on_end
        self._running = Ranks(system, log)
        self._is_late = False

    def start(self) -> None:
        """Raises CannotStart."""
        try:
            self._running.start([self._process], execute)
        except OSError as error:
            message = "setup could not be started: %s: %s" % (error.filename, error.strerror)
            raise CannotStart(START_FAILED, message) from error
        if self._limit_s is not None:
            self._loop.call_later(self._limit_s, self._end_late)

    def reap(self) -> None:
        if self._running.reap():
            self._await_output(time.monotonic() + _OUTPUT_S)

    def kill(self) -> None:
        """End the command and all that it has started."""
        self._running.signal(signal.SIGKILL)
        self._running.signal_left_over(signal.SIGKILL)

    def _end_late(self) -> None:
        if self._running.running:
            self._is_late = True
            self.kill()

    def _await_output(self, until: float) -> None:
        if self._log.open_pipes and time.monotonic() < until:
            self._loop.call_later(_POLL_S, lambda: self._await_output(until))
        else:
            self._on_end(self._failure())

    def _failure(self) -> Optional[CannotStart]:
        (exit,) = self._running.exits
        if self._is_late:
            minutes = (self._limit_s or 0.0) / 60
            return CannotStart(TIMEOUT, "setup ran for %g min, the limit that stop_timer sets" % minutes)
        if exit.exit_code == 0:
            return None
        code, how = exit.exit_code or 0, "ended with exit code %d" % (exit.exit_code or 0)
        if exit.signal:
            code, how = 128 + exit.signal, "was killed by signal %d" % exit.signal
        lines = last_lines(self._log.printed_by(self._process.rank).lines)
        last = next((": " + line for line in reversed(lines) if line.strip()), "")
        return CannotStart(SETUP_FAILED, "setup %s%s" % (how, last), code, lines)
