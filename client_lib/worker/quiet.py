"""Finds the quiet ranks of this worker: their main threads compute nothing, and read and write no files; their other
threads and children do hardly anything; and they enter and end no collective. Bytes from a plain socket are not seen:
Linux does not count them.

A quiet rank waits for another one, or hangs. The server, which knows all workers, decides which of the two it is
(server_stub.service.watchdog). A few small files of /proc are read each second. A file of each rank shows that it
enters collectives (rank_runner.py), if its PyTorch has a flight recorder.
"""

import os
import time
from collections import deque
from typing import Callable, Deque, Dict, NamedTuple, Optional

from client_lib.worker.loop import Loop
from client_lib.worker.system import below, content, stat

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
    """The main thread has work for a core, or waits for a disk; or a part of what the rank does is not known."""
    main: Use
    process: Use
    children: Optional[Use]
    """None: they were not read, because the rank itself has moved shortly before."""
    entered: float = 0.0
    """Changes when the rank enters or ends a collective (rank_runner.py), at most a second later."""


def moved(before: Sample, after: Sample) -> bool:
    """True if the rank has done something between two samples, or if that is not known. Pure."""
    passed = after.at - before.at
    if after.busy or passed > _LATE_S or after.main.size != before.main.size:
        return True
    if after.main.cpu_s - before.main.cpu_s > _MAIN_CPU * passed:
        return True
    return _works(before.process, after.process, passed) or _works(before.children, after.children, passed)


def _works(before: Optional[Use], after: Optional[Use], passed: float) -> bool:
    if before is None or after is None:
        return False
    return after.cpu_s - before.cpu_s > _OTHER_CPU * passed or after.size - before.size > _OTHER_BYTES * passed


class Stillness:
    """The time for which one rank has been still, by its samples. Pure."""

    def __init__(self, first: Sample) -> None:
        self._last, self._since = first, first.at
        self._pauses: Deque[float] = deque(maxlen=_PAUSES)

    def add(self, sample: Sample) -> None:
        has_moved = moved(self._last, sample)
        if has_moved or sample.entered != self._last.entered:
            if self.still_s >= _PAUSE_S:
                self._pauses.append(self.still_s)
            self._since = sample.at if has_moved else self._last.at
        self._last = sample

    def begin_again(self, sample: Sample) -> None:
        """Draw no conclusion from what was done since the last sample: the launcher has caused it."""
        self._last = sample

    @property
    def still_s(self) -> float:
        return self._last.at - self._since

    @property
    def quiet_s(self) -> float:
        """Seconds without a move; 0.0: they are too few for this rank to be called quiet."""
        usual = sorted(self._pauses)[len(self._pauses) // 2] if self._pauses else 0.0
        return self.still_s if self.still_s >= max(QUIET_S, _PATIENCE * usual) else 0.0


class QuietRanks:
    """Watches the ranks on the launcher's loop."""

    def __init__(
        self, loop: Loop, pids: Callable[[], Dict[int, int]], tell: Callable[[Dict[int, float]], None], folder: str
    ) -> None:
        """`pids`: the running processes and their ranks. `tell` gets the quiet ranks, and for how many seconds they
        have been so, when others are quiet than before, and repeatedly while there are some. `folder` has the files of
        the ranks."""
        self._loop, self._pids, self._tell, self._folder = loop, pids, tell, folder
        self._ranks: Dict[int, Stillness] = {}
        self._told: Dict[int, float] = {}
        self._told_at = 0.0
        self._paused = False
        self._round()

    def pause(self) -> None:
        """Look away until `begin_again`: the ranks get a signal, and what they write because of it is no move."""
        self._paused = True

    def begin_again(self) -> None:
        self._paused = False
        for pid, sample in self._samples().items():
            if pid in self._ranks:
                self._ranks[pid].begin_again(sample)

    def _round(self) -> None:
        if not self._paused:
            self._look()
        if self._pids():
            self._loop.call_later(ROUND_S, self._round)

    def _look(self) -> None:
        pids, samples = self._pids(), self._samples()
        for pid, sample in samples.items():
            if pid in self._ranks:
                self._ranks[pid].add(sample)
            else:
                self._ranks[pid] = Stillness(sample)
        quiet = {pids[pid]: self._ranks[pid].quiet_s for pid in samples if self._ranks[pid].quiet_s}
        now = time.monotonic()
        if quiet.keys() != self._told.keys() or (quiet and now - self._told_at >= REPEAT_S):
            self._told, self._told_at = quiet, now
            self._tell(quiet)

    def _samples(self) -> Dict[int, Sample]:
        still = {pid for pid, rank in self._ranks.items() if rank.still_s >= _CHILDREN_S}
        try:
            found = {pid: (take(pid, pid in still), self._entered(rank)) for pid, rank in self._pids().items()}
        except OSError:  # too many open files
            return {}
        return {pid: sample._replace(entered=at) for pid, (sample, at) in found.items() if sample is not None}

    def _entered(self, rank: int) -> float:
        try:
            return os.stat(os.path.join(self._folder, "entered-%d" % rank)).st_mtime
        except OSError:  # it has entered none yet, or its PyTorch has no recorder
            return 0.0


def take(pid: int, with_children: bool) -> Optional[Sample]:
    """Read a sample from /proc; None: the process has ended."""
    at, main = time.monotonic(), "/proc/%d/task/%d" % (pid, pid)
    fields = stat(main)
    if not fields:
        return None
    uses = [_use("/proc/%d" % child) for child in below(pid)] if with_children else []
    of_main, of_process, known = _use(main), _use("/proc/%d" % pid), [use for use in uses if use is not None]
    if of_main is None or of_process is None or len(known) < len(uses) or not _KNOWS_CHILDREN:
        nothing = Use(0.0, 0)
        return Sample(at, True, nothing, nothing, None)
    total = Use(sum(use.cpu_s for use in known), sum(use.size for use in known))
    return Sample(at, fields[0] in "RD", of_main, of_process, total if with_children else None)


_KNOWS_CHILDREN = os.path.exists("/proc/thread-self/children")


def _use(path: str) -> Optional[Use]:
    """None: the process has ended, or may not be looked at."""
    fields, counters = stat(path), dict(line.split(b": ") for line in content(path + "/io").splitlines())
    if not fields or not counters:
        return None
    size = sum(int(counters.get(name, 0)) for name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes"))
    return Use((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), size)
