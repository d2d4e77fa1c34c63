"""Observes the running ranks for their launcher: their machine, stacks on request, quiet ranks, what they use, files
of metrics.

Observing never ends a rank. If no file descriptor or process is available, some observations are skipped.
"""

import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from client_lib.worker import control
from client_lib.worker.control import ControlServer
from client_lib.worker.directory import MARKER, Directory, runner_file
from client_lib.worker.format import METRICS
from client_lib.worker.loop import Loop
from client_lib.worker.plan import Process, WorkerPlan, of_no_rank
from client_lib.worker.ranks import Ranks, start
from client_lib.worker.system import System, below, memory_of_limit, stat
from client_lib.worker.worker_log import WorkerLog

if TYPE_CHECKING:
    from client_lib.worker.metrics import MetricFiles
    from client_lib.worker.quiet import QuietRanks
    from client_lib.worker.stacks import StackTaker

_WATCH_S = 2.0  # from the start of the ranks to the first look at what they do
_SHORTEST_S, _LONGEST_S, _OLDER = 5.0, 60.0, 50  # pause between samples: a 50th of the time that the ranks have run
_SHARE = 0.0005  # of a core: largest CPU time of a sample, divided by the pause after it
_GPU_S = 15
_QUERY = ["--query-gpu=index,utilization.gpu,memory.used", "--format=csv,noheader,nounits", "--loop=%d" % _GPU_S]
_GIB = 2.0**30


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
            argv = [process.argv[0], runner_file("machine.py", self._directory)]
            environment = {**of_no_rank(shown), MARKER: ""}
            reader = start(Process(-1, -1, argv, environment, process.working_dir), self._system.before_exec)
            os.close(reader.stderr)
            self._log.listen(reader.stdout, METRICS)
        except (OSError, ImportError):
            pass

    def _watch(self) -> None:
        since = self._ranks.started_at or time.time()
        try:
            self._usage = UsageSampler(
                self._loop, self._system, self._ranks.pids, since, self._plan.gpus, self._log.add_usage
            )
            if not self._plan.python:
                return
            from client_lib.worker.metrics import MetricFiles  # here: ranks start without waiting for it

            folders = list({self._plan.working_dir_in(self._directory), self._plan.checkpoint_dir})
            sink, checkpoints = self._log.add_metrics, self._plan.checkpoint_dir
            self._metric_files = MetricFiles(self._loop, self._ranks.pids, folders, since, sink, checkpoints)
            if self._plan.others_may_wait:
                from client_lib.worker.quiet import QuietRanks

                self._quiet = QuietRanks(self._loop, self._ranks.pids, self._tell_quiet, self._directory.stacks)
        except (OSError, ImportError):  # the latter: an upgrade has removed the module
            pass

    def _tell_quiet(self, ranks: Dict[int, float]) -> None:
        self._peers.tell(control.QUIET, ranks=ranks)


class UsageSampler:
    """Samples what the ranks and their children use: CPU, memory, and GPUs where there is nvidia-smi; and which part of
    its memory limit the container uses.

    The values go into the log as objects of the stream `metrics`, so that both runtimes carry them; they are no sign of
    life of the ranks. Sampling takes at most _SHARE of a core: the more there is to read, the longer are the pauses.
    """

    def __init__(
        self,
        loop: Loop,
        system: System,
        pids: Callable[[], Dict[int, int]],
        since: float,
        gpus: Optional[List[str]],
        sink: Callable[[bytes], None],
    ) -> None:
        """`pids`: the running processes and their ranks. `since`: the start of the ranks, in seconds since 1970.
        `gpus`: those of this worker; None: all. `sink` gets lines of the log."""
        self._loop, self._pids, self._since, self._sink = loop, pids, since, sink
        self._before = (since, 0.0)
        self._of_gpus: Dict[str, float] = {}
        self._reader: Optional[Tuple[int, int]] = None  # pid of nvidia-smi, and its output
        self._rest = b""
        if gpus != []:
            self._watch_gpus(system, gpus)
        self._again()

    def finish(self) -> None:
        """End nvidia-smi."""
        if self._reader:
            pid, output = self._reader
            self._reader = None
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
            self._close(output)

    def _again(self) -> None:
        if not self._pids():
            return
        begin = time.thread_time()
        with contextlib.suppress(OSError):  # too many open files
            values = self._sample()
            if values:
                self._sink(json.dumps({"used": values}).encode() + b"\n")
        pause = min(_LONGEST_S, max(_SHORTEST_S, (time.time() - self._since) / _OLDER))
        self._loop.call_later(max(pause, (time.thread_time() - begin) / _SHARE), self._again)

    def _sample(self) -> Dict[str, float]:
        """The values now, by the names of their curves. Without /proc: only those of GPUs."""
        now, cpu_s, pages = time.time(), 0.0, 0
        for pid in [each for rank in self._pids() for each in [rank, *below(rank)]]:
            fields = stat("/proc/%d" % pid)
            if fields:  # fields 14 to 17 of proc(5), with the time of children that have ended, and 24
                cpu_s += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
                pages += int(fields[21])
        if not pages:
            return dict(self._of_gpus)
        (before, used_s), self._before = self._before, (now, cpu_s)
        cores = max(0.0, cpu_s - used_s) / max(now - before, 0.001)
        memory = pages * os.sysconf("SC_PAGE_SIZE") / _GIB
        values = {"worker/cpu_cores": round(cores, 3), "worker/memory_gib": round(memory, 4), **self._of_gpus}
        of_limit = memory_of_limit()
        return values if of_limit is None else {**values, "worker/memory_percent": round(100 * of_limit, 1)}

    # --- a process of its own asks the driver: a call that hangs would stop this one

    def _watch_gpus(self, system: System, gpus: Optional[List[str]]) -> None:
        argv = ["nvidia-smi", *_QUERY, *(["--id=" + ",".join(gpus)] if gpus else [])]
        try:
            started = start(Process(-1, -1, argv, {**os.environ, MARKER: ""}, "/"), system.before_exec)
        except OSError:  # this machine has none
            return
        os.close(started.stderr)
        self._reader = started.pid, started.stdout
        self._loop.watch(started.stdout, lambda: self._read(started.stdout))

    def _read(self, output: int) -> None:
        data = os.read(output, 65536)
        if not data:
            self._reader, self._of_gpus = None, {}
            self._close(output)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            fields = line.decode("utf-8", "replace").replace(" ", "").split(",")
            index, used, mib = fields if len(fields) == 3 else ("", "", "")
            for name, text, unit in (("percent", used, 1), ("memory_gib", mib, 1024)):
                try:
                    self._of_gpus["worker/gpu%s_%s" % (index, name)] = round(int(text) / unit, 3)
                except ValueError:  # the driver does not measure it on every device
                    continue

    def _close(self, output: int) -> None:
        self._loop.forget(output)
        os.close(output)
