"""Observes the running ranks for their launcher: their machine, stacks on request, quiet ranks, what they use, files
of metrics.

Observing never ends a rank. If no file descriptor or process is available, some observations are skipped.
"""

import os
import time
from typing import TYPE_CHECKING, Callable, Dict, Optional

from client_lib.worker import control
from client_lib.worker.control import ControlServer
from client_lib.worker.directory import MARKER, Directory, runner_file
from client_lib.worker.format import METRICS
from client_lib.worker.loop import Loop
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.rank_environment import Process, of_no_rank, others_may_wait, working_dir
from client_lib.worker.ranks import Ranks, start
from client_lib.worker.system import System
from client_lib.worker.worker_log import WorkerLog

if TYPE_CHECKING:
    from client_lib.worker.metric_files import MetricFiles
    from client_lib.worker.quiet import QuietRanks
    from client_lib.worker.stacks import StackTaker
    from client_lib.worker.usage import UsageSampler

_WATCH_S = 2.0  # from the start of the ranks to the first look at what they do


class Observer:
    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        loop: Loop,
        log: WorkerLog,
        ranks: Ranks,
        peers: ControlServer,
    ) -> None:
        self._plan, self._directory, self._system = plan, directory, system
        self._loop, self._log, self._ranks, self._peers = loop, log, ranks, peers
        self._stacks: Optional[StackTaker] = None
        self._quiet: Optional[QuietRanks] = None
        self._metric_files: Optional[MetricFiles] = None
        self._usage: Optional[UsageSampler] = None

    def start(self, process: Process, warm: bool) -> None:
        """The ranks run; `process`: one of them."""
        self._loop.call_later(0.0, lambda: self._read_machine(process, warm))
        if self._plan.observe:
            self._loop.call_later(_WATCH_S, self._watch)

    def finish(self) -> None:
        """The ranks have ended."""
        if self._metric_files:
            self._metric_files.finish()
        if self._usage:
            self._usage.finish()

    def take_stacks(self, on_taken: Callable[[], None]) -> None:
        """Take the stacks of all ranks. `on_taken` is called when the file is written, or cannot be."""
        if not self._plan.observe or not self._ranks.running:
            on_taken()
            return

        def taken() -> None:
            if self._quiet:
                self._quiet.begin_again()
            on_taken()

        if self._quiet:
            self._quiet.pause()
        try:
            if self._stacks is None:
                from client_lib.worker.stacks import StackTaker  # here: few jobs need it

                self._stacks = StackTaker(self._loop, self._system, self._directory)
            self._stacks.take(self._ranks.pids(), taken)
        except (OSError, ImportError):
            taken()

    def _read_machine(self, process: Process, warm: bool) -> None:
        """Log what this worker runs on, as the interpreter of the ranks sees it."""
        shown = {name: value for name, value in process.environment.items() if name not in self._plan.secrets}
        try:
            if self._plan.python is None or warm:
                from client_lib.worker import machine

                self._log.add_metrics(machine.read(shown, has_python=warm))
                return
            argv = [self._plan.python, runner_file("machine.py", self._directory)]
            environment = {**of_no_rank(shown), MARKER: ""}
            reader = start(Process(-1, -1, argv, environment, process.working_dir), self._system.before_exec)
            os.close(reader.stderr)
            self._log.listen(reader.stdout, METRICS)
        except (OSError, ImportError):
            pass

    def _watch(self) -> None:
        since = self._ranks.started_at or time.time()
        try:
            from client_lib.worker.usage import UsageSampler  # these three not within the time of the start

            self._usage = UsageSampler(
                self._loop, self._system, self._ranks.pids, since, self._plan.gpus, self._log.add_usage
            )
            if not self._plan.python:
                return
            from client_lib.worker.metric_files import MetricFiles

            folders = list({working_dir(self._plan, self._directory), self._plan.checkpoint_dir})
            sink, checkpoints = self._log.add_metrics, self._plan.checkpoint_dir
            self._metric_files = MetricFiles(self._loop, self._ranks.pids, folders, since, sink, checkpoints)
            if others_may_wait(self._plan):
                from client_lib.worker.quiet import QuietRanks

                self._quiet = QuietRanks(self._loop, self._ranks.pids, self._tell_quiet, self._directory.stacks)
        except (OSError, ImportError):  # the latter: an upgrade has removed the module
            pass

    def _tell_quiet(self, ranks: Dict[int, float]) -> None:
        self._peers.tell(control.QUIET, ranks=ranks)
