"""Collects a worker's log: pipes of the ranks, tailed files, messages of the launcher.

Reads the pipes on the launcher's loop; `stamp` makes records of the bytes, and `segments` writes them, once per round.
While the disk is full no pipe is read: the ranks block in their writes, and no line is lost. They go on when
_ROOM bytes are free: the last bytes are kept for ending and removing jobs.
"""

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional

from client_lib.worker.format import LAUNCHER, METRICS, NO_RANK
from client_lib.worker.loop import Loop, Timer
from client_lib.worker.segments import SegmentWriter
from client_lib.worker.stamp import Sequence, Stamper
from client_lib.worker.tail import LOOK_S, Tail

if TYPE_CHECKING:
    from client_lib.worker.line_metrics import LineMetrics

_BLOCK = 65536  # a pipe holds no more; larger pipes are slower
_RETRY_S = 0.5  # how often a full disk is tried again
_ROOM = 4 * 2**20  # free bytes with which a stalled log continues


class Printed(NamedTuple):
    """The output of one rank."""

    lines: List[List[str]]
    """The last lines of its stdout and of its stderr."""
    until: float
    """Time of the last write to stderr, in seconds since 1970."""


class WorkerLog:
    """`flush` is to be called after each round of the loop."""

    def __init__(self, loop: Loop, writer: SegmentWriter) -> None:
        self.stalled = False
        """The disk is full now."""
        self.ends = False
        """No rank runs any more: the rest of the log may use the last free bytes."""
        self.active_at = 0.0
        """Time of the last read of a pipe, or of the end of a stall (monotonic seconds)."""
        self._loop, self._writer = loop, writer
        self._sequence = Sequence(writer.next_seq)
        self._stampers: List[Stamper] = []
        self._of_rank: Dict[int, List[Stamper]] = {}
        self._own = self._stamper(NO_RANK, LAUNCHER)
        self._pipes: Dict[int, Stamper] = {}
        self._tail: Optional[Tail] = None
        self._tailed: Dict[str, Stamper] = {}
        self._metrics = self._stamper(NO_RANK, METRICS)
        self._metrics_pipe: Optional[int] = None
        self._usage = self._stamper(NO_RANK, METRICS)
        self._line_metrics: Optional[LineMetrics] = None
        self._timer: Optional[Timer] = None
        self._silent_since = 0.0

    @property
    def next_seq(self) -> int:
        return self._sequence.next

    @property
    def open_pipes(self) -> int:
        """Number of pipes that have not ended; that of metrics ends with `finish`."""
        return len(self._pipes.keys() - {self._metrics_pipe})

    def add_message(self, text: str) -> None:
        """Log a message of the launcher."""
        self._writer.add(self._own.feed(text.encode("utf-8", "replace") + b"\n", time.monotonic()))

    def add_pipe(self, rank: int, stream: str, fd: int, shown: Optional[str] = None) -> None:
        """Read `fd` to its end, and close it then. `shown`: the rank in the records, if not `rank`."""
        stamper = self._stamper(str(rank) if shown is None else shown, stream)
        self._of_rank.setdefault(rank, []).append(stamper)
        self._take(fd, stamper)

    def listen(self, fd: int, stream: str = LAUNCHER) -> None:
        """Read `fd` to its end, and log its lines, by default as messages of the launcher."""
        self._take(fd, self._stamper(NO_RANK, stream))

    def take_metrics(self, path: str) -> None:
        """Make a named pipe at `path`, and read the metrics that ranks write to it. Raises OSError."""
        with contextlib.suppress(FileExistsError):  # the launcher continues the work of another
            os.mkfifo(path, 0o600)
        # also for writing: it must not end with a rank
        fd = self._metrics_pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._take(fd, self._metrics)

    def add_metrics(self, lines: bytes) -> None:
        """Log lines of `metric_line`."""
        self._feed(self._metrics, lines)

    def add_usage(self, line: bytes) -> None:
        """Log what was measured of the ranks: it is none of their output, and no sign of their life."""
        if not self.stalled:
            self._writer.add(self._usage.feed(line, time.monotonic()), lives=False)

    def read_metrics(self, expression: str) -> None:
        """Read metrics from all lines with a regular expression that the job gives."""
        from client_lib.worker.line_metrics import LineMetrics  # here: few jobs have one

        try:
            self._line_metrics = LineMetrics(expression, self.add_metrics, self.add_message)
        except re.error as error:
            self.add_message("the expression of `metrics` can't be used by this Python: %s" % error)

    def tail(self, pattern: str, folders: List[str]) -> None:
        """Follow files from now on, until `finish`."""
        self._tail = Tail(pattern, folders, self._tailed_bytes)
        self._loop.call_later(LOOK_S, self._look)

    def printed_by(self, rank: int) -> Printed:
        """The last output of a rank, and its time; of a restarted rank that of its last process."""
        stampers = self._of_rank.get(rank, [])[-2:]
        lines = [[line.decode("utf-8", "replace") for line in stamper.last_lines] for stamper in stampers]
        silent_s = time.monotonic() - stampers[-1].fed_at if stampers else 0.0
        return Printed(lines, time.time() - silent_s)

    def last_lines_of_agent(self, rank: int) -> List[str]:
        """The last lines of an agent's stderr; `rank`: the rank of its process."""
        stderr = self._of_rank[rank][1]
        return [line.decode("utf-8", "replace") for line in stderr.last_lines]

    def finish(self) -> None:
        """End all streams; `flush` must be called until it returns True."""
        if self._tail:
            self._tail.finish()
            self._tail = None
        if self._metrics_pipe is not None:
            self._read(self._metrics_pipe)  # a block is all that a pipe holds
        for fd in list(self._pipes):
            self._close(fd)
        for stamper in self._tailed.values():
            self._add(stamper.end())
        if self._timer:
            self._timer.cancel()
        if self._writer.removed_bytes:
            self.add_message(
                "the log was over its size limit: %d bytes of its middle are gone" % self._writer.removed_bytes
            )

    def flush(self) -> bool:
        """Write the records of this round; False while the disk is full."""
        if self.stalled:
            return False
        if not self._writer.flush():
            self._stall()
            return False
        return True

    def _add(self, records: bytes) -> None:
        self._writer.add(records)
        if self._line_metrics:
            self._line_metrics.add(records)

    def _stamper(self, rank: str, stream: str) -> Stamper:
        stamper = Stamper(self._sequence, rank, stream)
        self._stampers.append(stamper)
        return stamper

    def _take(self, fd: int, stamper: Stamper) -> None:
        self._pipes[fd] = stamper
        if not self.stalled:
            self._loop.watch(fd, lambda: self._read(fd))

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _BLOCK)
        except BlockingIOError:
            return
        if data:
            self._feed(self._pipes[fd], data)
        else:
            self._close(fd)

    def _feed(self, stamper: Stamper, data: bytes) -> None:
        self.active_at = now = time.monotonic()
        records = stamper.feed(data, now)
        if records:
            self._add(records)
        elif now - self._silent_since > 1.0:
            self._silent_since = now
            self._writer.sign_of_life()
        if stamper.due is not None and self._timer is None:
            self._timer = self._loop.call_later(stamper.due - now, self._tick)

    def _close(self, fd: int) -> None:
        self._loop.forget(fd)
        os.close(fd)
        self._add(self._pipes.pop(fd).end())

    def _tick(self) -> None:
        if self.stalled:  # the rest of a line may still be in its pipe
            self._timer = self._loop.call_later(_RETRY_S, self._tick)
            return
        now = time.monotonic()
        for stamper in self._stampers:
            if stamper.due is not None and stamper.due <= now:
                self._add(stamper.tick(now))
        due = [stamper.due for stamper in self._stampers if stamper.due is not None]
        self._timer = self._loop.call_later(min(due) - now, self._tick) if due else None

    def _tailed_bytes(self, path: str, data: bytes) -> None:
        if path not in self._tailed:
            self._tailed[path] = self._stamper(NO_RANK, "train.log")
        self._feed(self._tailed[path], data)

    def _look(self) -> None:
        if self._tail:
            more = not self.stalled and self._tail.look()
            self._loop.call_later(0.0 if more else LOOK_S, self._look)

    def _stall(self) -> None:
        self.stalled = True
        for fd in self._pipes:
            self._loop.forget(fd)
        self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        if not (self.ends or self._writer.has_room(_ROOM)) or not self._writer.flush():
            self._loop.call_later(_RETRY_S, self._try_again)
            return
        self.stalled = False
        self.active_at = time.monotonic()
        for fd, stamper in self._pipes.items():
            self._take(fd, stamper)
