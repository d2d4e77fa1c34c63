"""Samples what the ranks and their children use."""

import contextlib
import json
import os
import signal
import time
from typing import Callable, Dict, List, NamedTuple, Optional

from client_lib.launcher_protocol.processes import below, stat
from client_lib.worker.loop import Loop
from client_lib.worker.memory import memory_of_limit
from client_lib.worker.ranks import Pids, Started, start_apart
from client_lib.worker.system import System

_SHORTEST_S = 5.0
"""Shortest pause between two samples."""
_LONGEST_S = 60.0
"""Longest pause between two samples."""
_OLDER = 50
"""Between these two bounds, the pause is the time that the ranks have run, divided by this."""
_SHARE = 0.0005
"""Largest part of a core that samples take: after a sample of more CPU time the pause is longer."""
_GPU_S = 15
_QUERY = [
    "--query-gpu=index,utilization.gpu,memory.used",
    "--format=csv,noheader,nounits",
    "--loop=%d" % _GPU_S,
]
_GIB = 2.0**30
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Spent(NamedTuple):
    """CPU time that the ranks had used."""

    at: float
    """Monotonic seconds."""
    cpu_s: float


class UsageSampler:
    """Samples what the ranks and their children use: CPU, memory, and GPUs where there is
    nvidia-smi; and which part of its memory limit the container uses. The values go into the log as
    objects of the stream `metrics`, because both runtimes carry the log to the server. Sampling
    takes at most _SHARE of a core: the more processes are to be read, the longer the pauses."""

    def __init__(
        self,
        loop: Loop,
        system: System,
        pids: Pids,
        since: float,
        gpus: Optional[List[str]],
        sink: Callable[[bytes], None],
    ) -> None:
        """`since`: the start of the ranks, in monotonic seconds. `gpus`: the GPUs of this worker;
        None: all GPUs. `sink` gets lines of the log."""
        self._loop = loop
        self._pids = pids
        self._since = since
        self._sink = sink
        self._before = _Spent(since, 0.0)
        self._of_gpus: Dict[str, float] = {}
        self._reader: Optional[Started] = None  # nvidia-smi
        self._rest = b""
        if gpus != []:  # another process asks the driver: a call that hangs would stop this one
            argv = ["nvidia-smi", *_QUERY, *(["--id=" + ",".join(gpus)] if gpus else [])]
            with contextlib.suppress(OSError):  # this machine has none
                self._reader = reader = start_apart(argv, dict(os.environ), "/", system)
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
        """The values now, by the names of their curves. Without /proc: only the values of GPUs."""
        now = time.monotonic()
        cpu_s = 0.0
        pages = 0
        for pid in [each for rank in self._pids() for each in [rank, *below(rank)]]:
            fields = stat("/proc/%d" % pid)
            if fields:
                # fields 14 to 17 of proc(5), with the time of children that have ended, and 24
                cpu_s += sum(map(int, fields[11:15])) / _TICKS
                pages += int(fields[21])
        if not pages:
            return dict(self._of_gpus)
        before = self._before
        self._before = _Spent(now, cpu_s)
        cores = max(0.0, cpu_s - before.cpu_s) / max(now - before.at, 0.001)
        values = {
            "worker/cpu_cores": round(cores, 3),
            "worker/memory_gib": round(pages * _PAGE / _GIB, 4),
            **self._of_gpus,
        }
        of_limit = memory_of_limit()
        if of_limit is not None:
            values["worker/memory_percent"] = round(100 * of_limit, 1)
        return values

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
                except ValueError:  # the driver does not measure this on every device
                    continue

    def _close(self, reader: Started) -> None:
        self._reader = None
        self._loop.forget(reader.stdout)
        os.close(reader.stdout)
