"""Finds the ranks that do nothing, by the samples that /proc gives of their work."""

import os
import time
from typing import Callable, Dict, Optional

from client_lib.launcher_protocol.processes import below, content, stat
from client_lib.worker.loop import Loop
from client_lib.worker.ranks import Pids
from client_lib.worker.stillness import Sample, Stillness, Use

ROUND_S = 1.0
"""Time between two looks."""
REPEAT_S = 30.0
"""Time after which quiet ranks are told again: a server that was restarted, or was out of reach,
may not know them."""
_CHILDREN_S = 4.0
"""The children of a rank are looked at when it has been still for this time."""
_KNOWS_CHILDREN = os.path.exists("/proc/thread-self/children")
_TICKS = os.sysconf("SC_CLK_TCK")


class QuietRanks:
    """Finds the quiet ranks of this worker.

    The main thread of a quiet rank computes nothing, and reads and writes no files; its other
    threads and its children do hardly anything; and the rank enters and ends no collective. A
    collective is seen only if the rank's PyTorch has a flight recorder: then the rank touches a
    file (rank_runner/collectives.py). Bytes from a plain socket are not seen: Linux does not count
    them. A quiet rank waits for another rank, or hangs. The server, which knows all workers,
    decides which of the two (server_stub.service.watchdog)."""

    def __init__(
        self, loop: Loop, pids: Pids, tell: Callable[[Dict[int, float]], None], folder: str
    ) -> None:
        """`tell` gets the quiet ranks, with the seconds for which each has been quiet: when the set
        of quiet ranks changes, and every REPEAT_S. `folder` has the files that the ranks touch."""
        self._loop = loop
        self._pids = pids
        self._tell = tell
        self._folder = folder
        self._ranks: Dict[int, Stillness] = {}
        self._told: Dict[int, float] = {}
        self._told_at = 0.0
        self.paused = False
        """True: take no samples, because the ranks get a signal, and their answer to the
        signal is no move.
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
        is_due = quiet and now - self._told_at >= REPEAT_S
        if quiet.keys() != self._told.keys() or is_due:
            self._told = quiet
            self._told_at = now
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
    """Read a sample from /proc; None: the process has ended. `entries`: the file that
    the rank touches when it enters or ends a collective.
    """
    at = time.monotonic()
    main = "/proc/%d/task/%d" % (pid, pid)
    fields = stat(main)
    if not fields:
        return None
    try:
        entered = os.stat(entries).st_mtime
    except OSError:  # the rank has entered no collective yet, or its PyTorch has no recorder
        entered = 0.0
    of_main = _use(main)
    of_process = _use("/proc/%d" % pid)
    of_each = [_use("/proc/%d" % child) for child in below(pid)] if with_children else []
    known = [use for use in of_each if use is not None]
    all_known = _KNOWS_CHILDREN and len(known) == len(of_each)
    if of_main is None or of_process is None or not all_known:
        nothing = Use(0.0, 0)
        return Sample(at, True, nothing, nothing, None, entered)
    of_children = None
    if with_children:
        of_children = Use(sum(use.cpu_s for use in known), sum(use.size for use in known))
    return Sample(at, fields[0] in "RD", of_main, of_process, of_children, entered)


def _use(path: str) -> Optional[Use]:
    """Read what a process or a thread has used; None: it has ended, or belongs to another user."""
    fields = stat(path)
    counters = dict(line.split(b": ") for line in content(path + "/io").splitlines())
    if not fields or not counters:
        return None
    counted = (b"rchar", b"wchar", b"read_bytes", b"write_bytes")
    size = sum(int(counters.get(name, 0)) for name in counted)
    cpu_ticks = int(fields[11]) + int(fields[12])
    return Use(cpu_ticks / _TICKS, size)
