"""Watches the running ranks for their launcher: describes their machine, takes stacks on request,
and starts the readers of metrics (`metric_files`), the samples of use (`usage`), and the searches
for checkpoints (`checkpoint_watch`), quiet ranks (`quiet_ranks`) and ranks that train without the
others (`lone_groups`).

Watching never ends a rank. If no file descriptor or process is available, a part of the watch is
left out.
"""

import contextlib
import time
from typing import TYPE_CHECKING, Callable, Optional

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.control import ControlServer
from client_lib.launcher_protocol.directory import Directory, has_content
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.rank_processes import Process, of_no_rank
from client_lib.launcher_protocol.record import METRICS
from client_lib.worker.hardware import describe
from client_lib.worker.lone_groups import LoneGroups
from client_lib.worker.loop import Loop
from client_lib.worker.metric_files import MetricFiles
from client_lib.worker.programs import runner_file
from client_lib.worker.quiet_ranks import QuietRanks
from client_lib.worker.ranks import Ranks, start_apart
from client_lib.worker.system import System
from client_lib.worker.usage import UsageSampler
from client_lib.worker.worker_log import WorkerLog

if TYPE_CHECKING:
    from client_lib.worker.checkpoint_values import CheckpointValues
    from client_lib.worker.checkpoint_watch import CheckpointWatch
    from client_lib.worker.stacks import StackTaker

_WATCH_S = 2.0
"""Time from the start of the ranks to the first look at what they do."""


class RankWatch:
    """The watch of one worker: from `start`, when the ranks run, to `finish`."""

    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        system: System,
        loop: Loop,
        log: WorkerLog,
        ranks: Ranks,
        peers: ControlServer,
        note: Callable[[str], None],
    ) -> None:
        """`note` gets a sentence for the job's events."""
        self._plan = plan
        self._directory = directory
        self._system = system
        self._loop = loop
        self._log = log
        self._ranks = ranks
        self._peers = peers
        self._note = note
        self._stacks: Optional[StackTaker] = None
        self._groups: Optional[LoneGroups] = None
        self._quiet: Optional[QuietRanks] = None
        self._metric_files: Optional[MetricFiles] = None
        self._usage: Optional[UsageSampler] = None
        self._checkpoints: Optional[CheckpointWatch] = None
        self._values: Optional[CheckpointValues] = None

    def start(self, process: Process, warm: bool) -> None:
        """The ranks run; `process`: one of them."""
        self._loop.call_later(0.0, lambda: self._describe_machine(process, warm))
        self._loop.call_later(_WATCH_S, self._watch_checkpoints)
        if self._plan.worker == 0 and self._plan.keep_best:
            self._read_values(self._plan.keep_best)
        if self._plan.observe:
            begun = time.monotonic()
            self._loop.call_later(_WATCH_S, lambda: self._watch(begun))
        if self._plan.observe and self._plan.world_size > 1 and not self._plan.has_agent:
            folder = self._directory.stacks
            self._groups = LoneGroups(self._loop, self._ranks.pids, self._plan, folder, self._note)

    def finish(self) -> None:
        """The ranks have ended."""
        if self._groups:
            self._groups.finish()
        if self._metric_files:
            self._metric_files.finish()
        if self._usage:
            self._usage.finish()
        if self._checkpoints is None and has_content(self._plan.checkpoint_dir):
            self._checkpoints = self._checkpoint_watch()
        if self._checkpoints:
            self._checkpoints.finish()
        if self._values and self._values.problem:
            self._note(self._values.problem)

    def take_stacks(self, on_taken: Callable[[], None]) -> None:
        """Take the stacks of all ranks. `on_taken` is called when the file
        is written, or cannot be.
        """
        if not self._plan.observe or not self._ranks.running:
            on_taken()
            return

        def taken() -> None:
            if self._quiet:
                self._quiet.begin_again()
            on_taken()

        if self._quiet:
            self._quiet.paused = True
        try:
            if self._stacks is None:
                from client_lib.worker.stacks import StackTaker  # here: few jobs need it

                self._stacks = StackTaker(self._loop, self._system, self._directory)
            self._stacks.take(self._ranks.pids(), taken)
        except (OSError, ImportError):
            taken()

    def _describe_machine(self, process: Process, warm: bool) -> None:
        """Log what this worker runs on, as the interpreter of the ranks sees it."""
        shown = {
            name: value
            for name, value in process.environment.items()
            if name not in self._plan.secrets
        }
        with contextlib.suppress(OSError):
            if self._plan.python is None or warm:
                self._log.add_metrics(describe(shown, has_python=warm))
                return
            argv = [process.argv[0], runner_file("hardware.py", self._directory)]
            started = start_apart(argv, of_no_rank(shown), process.working_dir, self._system)
            self._log.listen(started.stdout, METRICS)

    def _watch_checkpoints(self) -> None:
        if self._checkpoints is None:
            self._checkpoints = self._checkpoint_watch()
            if self._checkpoints:
                self._checkpoints.start(self._plan.working_dir_in(self._directory))

    def _read_values(self, wanted: str) -> None:
        """Read the metric by which a checkpoint is the best, from the first line on."""
        from client_lib.worker.checkpoint_values import CheckpointValues  # here: few jobs need it

        started_at = self._ranks.started_at or time.time()
        self._values = CheckpointValues(self._plan.checkpoint_dir, wanted, started_at)
        self._log.read_records(self._values.take)

    def _checkpoint_watch(self) -> "Optional[CheckpointWatch]":
        """The watch of worker 0; it tells nothing of a job that is not observed."""
        plan = self._plan
        if plan.worker != 0 or not (plan.observe or plan.keep_checkpoints):
            return None
        # here: the formats are loaded beside the ranks, and not before they start
        from client_lib.worker.checkpoint_watch import CheckpointWatch

        started_at = self._ranks.started_at or time.time()
        tell = self._log.add_checkpoints if plan.observe else (lambda _: None)
        return CheckpointWatch(
            self._loop, plan.checkpoint_dir, started_at, plan.keep_checkpoints, self._values, tell
        )

    def _watch(self, begun: float) -> None:
        loop = self._loop
        plan = self._plan
        pids = self._ranks.pids
        with contextlib.suppress(OSError):
            self._usage = UsageSampler(
                loop, self._system, pids, begun, plan.gpus, self._log.add_usage
            )
            if not plan.python:
                return
            folders = list({plan.working_dir_in(self._directory), plan.checkpoint_dir})
            since = self._ranks.started_at or time.time()
            self._metric_files = MetricFiles(
                loop, pids, folders, since, self._log.add_metrics, plan.checkpoint_dir
            )
            if not plan.has_agent:  # a rank alone may wait for others that nobody starts
                self._quiet = QuietRanks(
                    loop,
                    pids,
                    lambda ranks: self._peers.tell(control.QUIET, ranks=ranks),
                    self._directory.stacks,
                )
