"""Prepares a worker on the launcher's loop: its files, its extra packages, its own command `setup`, its preflight.

The last three are processes that end before the ranks start; the log shows what they print.
"""

import signal
import time
from typing import Callable, List, Optional, Sequence

from client_lib.worker.directory import MARKER, Directory
from client_lib.worker.loop import Loop
from client_lib.worker.outcome import PREFLIGHT_FAILED, SETUP_FAILED, START_FAILED, TIMEOUT
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.prepare import CannotStart, prepare, runner_file
from client_lib.worker.rank_environment import Process, preflight_process, setup_process
from client_lib.worker.ranks import AddPipe, Exit, Ranks, Run, execute
from client_lib.worker.report import last_lines
from client_lib.worker.system import System
from client_lib.worker.worker_log import WorkerLog

_OUTPUT_S = 1.0  # longest wait for the rest of an output: a process that was left behind may keep the pipes open
_POLL_S = 0.01
_PREFLIGHT_S = 180.0  # its own limits name the worker and end it earlier, unless a driver or file system hangs
_HANGS = "preflight of worker %d hangs: it has not ended within %g s"
_INSTALLATIONS = 3  # another worker that needs room may remove an environment before its first use


class Preparation:
    """The caller handles SIGCHLD and calls `reap` at each."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        log: WorkerLog,
        loop: Loop,
        on_ready: Callable[[WorkerPlan, List[Process]], None],
        on_refused: Callable[[CannotStart], None],
    ) -> None:
        """One of the two is called, once, unless `kill` comes before. The plan then names the extra packages."""
        self._plan, self._directory, self._system = plan, directory, system
        self._log, self._loop = log, loop
        self._on_ready, self._on_refused = on_ready, on_refused
        self._running: Optional[Ranks] = None
        self._ended: Callable[[Exit], None]
        self._installations = 0
        self._in_use: Optional[int] = None  # keeps the environment with the packages; open for this worker's life
        self._late: Optional[CannotStart] = None

    def start(self) -> None:
        self._go_on(self._prepare)

    def reap(self) -> None:
        if self._running is None or not self._running.reap():
            return
        if self._running.failed:
            _kill(self._running)
        if not self._running.running:
            self._await_output(time.monotonic() + _OUTPUT_S)

    def kill(self) -> None:
        """End what runs, with all that it has started."""
        running, self._running = self._running, None
        if running:
            _kill(running)

    def preflight(self, processes: Sequence[Process], on_passed: Callable[[], None]) -> None:
        """Check the machines of all workers, which are ready. `on_refused` is called if it fails."""

        def ended(exit: Exit) -> None:
            self._check("preflight of worker %d" % self._plan.worker, exit, PREFLIGHT_FAILED)
            on_passed()

        def start() -> None:
            file = runner_file("preflight.py", self._directory)
            checks = [preflight_process(rank, self._plan.python or "python3", file) for rank in processes]
            self._run("preflight", checks, execute, self._log.add_pipe, ended)

        self._go_on(start)
        late = CannotStart(PREFLIGHT_FAILED, _HANGS % (self._plan.worker, _PREFLIGHT_S))
        self._limit(_PREFLIGHT_S, late)

    def _go_on(self, step: Callable[[], None]) -> None:
        try:
            step()
        except CannotStart as refused:
            self._on_refused(refused)

    def _prepare(self) -> None:
        processes = prepare(self._plan, self._directory)
        if self._plan.requirements and self._in_use is None:
            self._install()
        elif self._plan.setup:
            self._set_up(processes)
        else:
            self._on_ready(self._plan, processes)

    def _install(self) -> None:
        from client_lib.worker import requirements  # here: few jobs have extra packages

        def listen(_rank: int, _stream: str, fd: int, _shown: str) -> None:
            self._log.listen(fd)

        def ended(_: Exit) -> None:
            made = requirements.result(self._plan, self._directory)
            if made is not None:
                self._plan, self._in_use = made
                self._prepare()
            elif self._installations < _INSTALLATIONS:
                self._install()
            else:
                raise CannotStart(START_FAILED, "the environment with the packages was removed again and again")

        self._installations += 1
        here = self._directory.path
        variables = {**self._plan.environment, MARKER: here}  # by which the process of a dead launcher is found
        process = Process(-1, -1, ["install"], variables, here)
        self._run(
            "the installation of packages",
            [process],
            requirements.installer(self._plan, self._directory),
            listen,
            ended,
        )

    def _set_up(self, processes: List[Process]) -> None:
        def ended(exit: Exit) -> None:
            self._check("setup", exit, SETUP_FAILED)
            self._on_ready(self._plan, processes)

        self._run("setup", [setup_process(self._plan, self._directory)], execute, self._log.add_pipe, ended)
        if self._plan.setup_limit_s is not None:
            minutes = self._plan.setup_limit_s / 60
            late = CannotStart(TIMEOUT, "setup ran for %g min, the limit that stop_timer sets" % minutes)
            self._limit(self._plan.setup_limit_s, late)

    def _run(
        self, what: str, processes: List[Process], run: Run, add_pipe: AddPipe, ended: Callable[[Exit], None]
    ) -> None:
        """Start processes. `ended` gets the first that failed, or any; it may raise CannotStart, as this does."""
        self._running, self._ended = Ranks(self._system, add_pipe), ended
        try:
            self._running.start(processes, run)
        except OSError as error:
            message = "%s could not be started: %s: %s" % (what, error.filename, error.strerror)
            raise CannotStart(START_FAILED, message) from error

    def _await_output(self, until: float) -> None:
        if self._log.open_pipes and time.monotonic() < until:
            self._loop.call_later(_POLL_S, lambda: self._await_output(until))
        elif self._running:
            exit = [*self._running.failed, *self._running.exits][0]
            self._running = None
            self._go_on(lambda: self._ended(exit))

    def _limit(self, seconds: float, late: CannotStart) -> None:
        """Bound the time of what runs."""
        limited = self._running

        def end() -> None:
            if self._running and self._running is limited and self._running.running:
                self._late = late
                _kill(self._running)

        self._loop.call_later(seconds, end)

    def _check(self, what: str, exit: Exit, reason: str) -> None:
        """Raises CannotStart: the command has failed, or took too long."""
        if self._late:
            raise self._late
        if exit.exit_code == 0:
            return
        code, how = exit.exit_code or 0, "ended with exit code %d" % (exit.exit_code or 0)
        if exit.signal:
            code, how = 128 + exit.signal, "was killed by signal %d" % exit.signal
        lines = last_lines(self._log.printed_by(exit.rank).lines)
        last = next((": " + line for line in reversed(lines) if line.strip()), "")
        raise CannotStart(reason, "%s %s%s" % (what, how, last), code, lines)


def _kill(running: Ranks) -> None:
    running.signal(signal.SIGKILL)
    running.signal_left_over(signal.SIGKILL)
