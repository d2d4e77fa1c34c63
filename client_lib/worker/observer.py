"""Observes the running ranks for their launcher: their machine, stacks on request, files of
metrics, what they use, and which of them are quiet.

Observing never ends a rank. If no file descriptor or process is available, some observations are
skipped.
"""

import contextlib
import json
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Callable, Deque, Dict, List, NamedTuple, Optional

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.control import ControlServer
from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.processes import below, content, stat
from client_lib.launcher_protocol.rank_processes import Process, of_no_rank
from client_lib.launcher_protocol.record import METRICS
from client_lib.worker.hardware import describe
from client_lib.worker.loop import Loop
from client_lib.worker.memory import memory_of_limit
from client_lib.worker.metrics import MetricFiles
from client_lib.worker.programs import runner_file
from client_lib.worker.ranks import Ranks, Started, start
from client_lib.worker.system import System
from client_lib.worker.worker_log import WorkerLog

if TYPE_CHECKING:
    from client_lib.worker.stacks import StackTaker

_WATCH_S = 2.0  # from the start of the ranks to the first look at what they do
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")

# for UsageSampler
_SHORTEST_S, _LONGEST_S, _OLDER = (
    5.0,
    60.0,
    50,
)  # pause between samples: a 50th of the time that the ranks have run
_SHARE = 0.0005  # of a core: largest CPU time of a sample, divided by the pause after it
_GPU_S = 15
_QUERY = [
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
    "--loop=%d" % _GPU_S,
]
_GIB = 2.0**30

# for QuietRanks
ROUND_S = 1.0
QUIET_S = 10.0
REPEAT_S = 30.0  # a server that was restarted, or was out of reach, hears of quiet ranks again
_CHILDREN_S = 4.0  # the children of a rank are looked at when it has been still for this time
_LATE_S = 5 * ROUND_S  # after a longer pause nothing is concluded: this process itself did not run
_PAUSE_S = 2 * ROUND_S  # shorter pauses between two moves are not counted
_PATIENCE = 6  # times the usual pause of the rank
_PAUSES = 9  # the newest, of which the median is the usual one
_MAIN_CPU = 0.02  # part of a core that the main thread may use and be quiet
_OTHER_CPU = 0.05  # the same for other threads and children together, such as one that prints lines
_OTHER_BYTES = 65536.0  # that they may read and write in a second
_KNOWS_CHILDREN = os.path.exists("/proc/thread-self/children")


Pids = Callable[[], Dict[int, int]]  # the running processes and their ranks


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
        self._loop.call_later(0.0, lambda: self._describe_machine(process, warm))
        if self._plan.observe:
            begun = time.monotonic()
            self._loop.call_later(_WATCH_S, lambda: self._watch(begun))

    def finish(self) -> None:
        """The ranks have ended."""
        if self._metric_files:
            self._metric_files.finish()
        if self._usage:
            self._usage.finish()

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
            started = _start_apart(argv, of_no_rank(shown), process.working_dir, self._system)
            self._log.listen(started.stdout, METRICS)

    def _watch(self, begun: float) -> None:
        loop, pids = self._loop, self._ranks.pids
        with contextlib.suppress(OSError):
            self._usage = UsageSampler(
                loop, self._system, pids, begun, self._plan.gpus, self._log.add_usage
            )
            if not self._plan.python:
                return
            folders = list({self._plan.working_dir_in(self._directory), self._plan.checkpoint_dir})
            since, checkpoints = self._ranks.started_at or time.time(), self._plan.checkpoint_dir
            self._metric_files = MetricFiles(
                loop, pids, folders, since, self._log.add_metrics, checkpoints
            )
            if self._plan.others_may_wait:
                self._quiet = QuietRanks(
                    loop,
                    pids,
                    lambda ranks: self._peers.tell(control.QUIET, ranks=ranks),
                    self._directory.stacks,
                )


def _start_apart(
    argv: List[str], environment: Dict[str, str], folder: str, system: System
) -> Started:
    """Start a process that is no part of the worker; its stderr is not read. Raises OSError."""
    started = start(Process(-1, -1, argv, {**environment, MARKER: ""}, folder), system.before_exec)
    os.close(started.stderr)
    return started


# --- what the ranks use


class UsageSampler:
    """Samples what the ranks and their children use: CPU, memory, and GPUs where there is
    nvidia-smi; and which part of its memory limit the container uses. The values go into the log as
    objects of the stream `metrics`, so that both runtimes carry them. Sampling takes at most _SHARE
    of a core: the more there is to read, the longer the pauses."""

    def __init__(
        self,
        loop: Loop,
        system: System,
        pids: Pids,
        since: float,
        gpus: Optional[List[str]],
        sink: Callable[[bytes], None],
    ) -> None:
        """`since`: the start of the ranks, in monotonic seconds. `gpus`: those of this worker;
        None: all. `sink` gets lines of the log."""
        self._loop, self._pids, self._since, self._sink = loop, pids, since, sink
        self._before = (since, 0.0)
        self._of_gpus: Dict[str, float] = {}
        self._reader: Optional[Started] = None  # nvidia-smi
        self._rest = b""
        if gpus != []:  # another process asks the driver: a call that hangs would stop this one
            argv = ["nvidia-smi", *_QUERY, *(["--id=" + ",".join(gpus)] if gpus else [])]
            with contextlib.suppress(OSError):  # this machine has none
                self._reader = reader = _start_apart(argv, dict(os.environ), "/", system)
                loop.watch(reader.stdout, lambda: self._read(reader))
        self._again()

    def finish(self) -> None:
        """End nvidia-smi."""
        if self._reader:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self._reader.pid, signal.SIGKILL)
            self._close(self._reader)

    def _again(self) -> None:
        if not self._pids():
            return
        begin = time.thread_time()
        with contextlib.suppress(OSError):  # too many open files
            values = self._sample()
            if values:
                self._sink(json.dumps({"used": values}).encode() + b"\n")
        pause = min(_LONGEST_S, max(_SHORTEST_S, (time.monotonic() - self._since) / _OLDER))
        self._loop.call_later(max(pause, (time.thread_time() - begin) / _SHARE), self._again)

    def _sample(self) -> Dict[str, float]:
        """The values now, by the names of their curves. Without /proc: only those of GPUs."""
        now, cpu_s, pages = time.monotonic(), 0.0, 0
        for pid in [each for rank in self._pids() for each in [rank, *below(rank)]]:
            fields = stat("/proc/%d" % pid)
            if (
                fields
            ):  # fields 14 to 17 of proc(5), with the time of children that have ended, and 24
                cpu_s += sum(map(int, fields[11:15])) / _TICKS
                pages += int(fields[21])
        if not pages:
            return dict(self._of_gpus)
        (before, used_s), self._before = self._before, (now, cpu_s)
        cores = max(0.0, cpu_s - used_s) / max(now - before, 0.001)
        memory_gib = round(pages * _PAGE / _GIB, 4)
        values = {
            "worker/cpu_cores": round(cores, 3),
            "worker/memory_gib": memory_gib,
            **self._of_gpus,
        }
        of_limit = memory_of_limit()
        return (
            values
            if of_limit is None
            else {**values, "worker/memory_percent": round(100 * of_limit, 1)}
        )

    def _read(self, reader: Started) -> None:
        data = os.read(reader.stdout, 65536)
        if not data:
            self._of_gpus = {}
            self._close(reader)
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

    def _close(self, reader: Started) -> None:
        self._reader = None
        self._loop.forget(reader.stdout)
        os.close(reader.stdout)


# --- quiet ranks


class Use(NamedTuple):
    """CPU time and input and output of some threads until now."""

    cpu_s: float
    size: int
    """Bytes read and written."""


class Sample(NamedTuple):
    """The work of a rank until now."""

    at: float
    """Monotonic seconds."""
    busy: bool
    """The main thread has work for a core, or waits for a disk; or a part of what
    the rank does is not known.
    """
    main: Use
    process: Use
    children: Optional[Use]
    """None: they were not read, because the rank itself has moved shortly before."""
    entered: float = 0.0
    """Changes when the rank enters or ends a collective
    (rank_runner/collectives.py), at most a second later.
    """


def moved(before: Sample, after: Sample) -> bool:
    """True if the rank has done something between two samples, or if that is not known. Pure."""
    passed = after.at - before.at
    if after.busy or passed > _LATE_S or after.main.size != before.main.size:
        return True
    if after.main.cpu_s - before.main.cpu_s > _MAIN_CPU * passed:
        return True
    others = ((before.process, after.process), (before.children, after.children))
    return any(
        new.cpu_s - old.cpu_s > _OTHER_CPU * passed or new.size - old.size > _OTHER_BYTES * passed
        for old, new in others
        if old is not None and new is not None
    )


class Stillness:
    """The time for which one rank has been still, by its samples. Pure."""

    def __init__(self, first: Sample) -> None:
        self.last = first
        """The newest sample; replaced after work that the launcher has caused, which is no move."""
        self._since = first.at
        self._pauses: Deque[float] = deque(maxlen=_PAUSES)

    def add(self, sample: Sample) -> None:
        has_moved = moved(self.last, sample)
        if has_moved or sample.entered != self.last.entered:
            if self.still_s >= _PAUSE_S:
                self._pauses.append(self.still_s)
            self._since = sample.at if has_moved else self.last.at
        self.last = sample

    @property
    def still_s(self) -> float:
        return self.last.at - self._since

    @property
    def quiet_s(self) -> float:
        """Seconds without a move; 0.0: they are too few for this rank to be called quiet."""
        usual = sorted(self._pauses)[len(self._pauses) // 2] if self._pauses else 0.0
        return self.still_s if self.still_s >= max(QUIET_S, _PATIENCE * usual) else 0.0


class QuietRanks:
    """Finds the quiet ranks of this worker: their main threads compute nothing, and read and write
    no files; their other threads and children do hardly anything; and they enter and end no
    collective, as a file of each rank shows (rank_runner/collectives.py), if its PyTorch has a
    flight recorder. Bytes from a plain socket are not seen: Linux does not count them. A quiet rank
    waits for another one, or hangs: the server, which knows all workers, decides that
    (server_stub.service.watchdog)."""

    def __init__(
        self, loop: Loop, pids: Pids, tell: Callable[[Dict[int, float]], None], folder: str
    ) -> None:
        """`tell` gets the quiet ranks, and for how many seconds they have been so, when others are
        quiet than before, and repeatedly. `folder` has the files of the ranks."""
        self._loop, self._pids, self._tell, self._folder = loop, pids, tell, folder
        self._ranks: Dict[int, Stillness] = {}
        self._told: Dict[int, float] = {}
        self._told_at = 0.0
        self.paused = False
        """True: look away, because the ranks get a signal, and what they write
        because of it is no move.
        """
        self._round()

    def begin_again(self) -> None:
        """Look again after a pause."""
        self.paused = False
        for pid, sample in self._samples().items():
            if pid in self._ranks:
                self._ranks[pid].last = sample

    def _round(self) -> None:
        pids = self._pids()
        if pids:
            self._loop.call_later(ROUND_S, self._round)
        if self.paused:
            return
        samples = self._samples()
        for pid, sample in samples.items():
            self._ranks.setdefault(pid, Stillness(sample)).add(sample)
        quiet = {pids[pid]: self._ranks[pid].quiet_s for pid in samples if self._ranks[pid].quiet_s}
        now = time.monotonic()
        if quiet.keys() != self._told.keys() or (quiet and now - self._told_at >= REPEAT_S):
            self._told, self._told_at = quiet, now
            self._tell(quiet)

    def _samples(self) -> Dict[int, Sample]:
        found = {}
        try:
            for pid, rank in self._pids().items():
                still = pid in self._ranks and self._ranks[pid].still_s >= _CHILDREN_S
                sample = take(pid, still, os.path.join(self._folder, "entered-%d" % rank))
                if sample is not None:
                    found[pid] = sample
        except OSError:  # too many open files
            return {}
        return found


def take(pid: int, with_children: bool, entries: str = "") -> Optional[Sample]:
    """Read a sample from /proc; None: the process has ended. `entries`: the
    file that shows collectives.
    """
    at, main = time.monotonic(), "/proc/%d/task/%d" % (pid, pid)
    fields = stat(main)
    if not fields:
        return None
    try:
        entered = os.stat(entries).st_mtime
    except OSError:  # it has entered none yet, or its PyTorch has no recorder
        entered = 0.0
    of_main, of_process = _use(main), _use("/proc/%d" % pid)
    uses = [_use("/proc/%d" % child) for child in below(pid)] if with_children else []
    known = [use for use in uses if use is not None]
    if of_main is None or of_process is None or len(known) < len(uses) or not _KNOWS_CHILDREN:
        nothing = Use(0.0, 0)
        return Sample(at, True, nothing, nothing, None, entered)
    total = Use(sum(use.cpu_s for use in known), sum(use.size for use in known))
    return Sample(
        at, fields[0] in "RD", of_main, of_process, total if with_children else None, entered
    )


def _use(path: str) -> Optional[Use]:
    """None: the process has ended, or may not be looked at."""
    fields, counters = (
        stat(path),
        dict(line.split(b": ") for line in content(path + "/io").splitlines()),
    )
    if not fields or not counters:
        return None
    size = sum(
        int(counters.get(name, 0)) for name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
    )
    return Use((int(fields[11]) + int(fields[12])) / _TICKS, size)
