"""Collects a worker's log: pipes of the ranks, tailed files, messages of the launcher.

The launcher's loop reads the pipes; `stamp` makes records of the bytes, and `format` writes them,
once per round. While the disk is full no pipe is read: the ranks block in their writes, and no line
is lost. They go on when _ROOM bytes are free: the last bytes are kept for ending and removing jobs.
"""

import contextlib
import glob
import os
import re
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from client_lib.durable import free_bytes
from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.launcher_protocol.record import LAUNCHER, METRICS, NO_RANK
from client_lib.worker.line_metrics import LineMetrics
from client_lib.worker.loop import Loop, Timer
from client_lib.worker.stamp import Sequence, Stamper

_BLOCK = 65536  # a pipe holds no more; larger pipes are slower
_RETRY_S = 0.5  # how often a full disk is tried again
_OF_RANK = ("stdout", "stderr")
_ROOM = 4 * 2**20  # free bytes with which a stalled log continues

# for _Tail
_LOOK_S = 0.05  # interval of the checks of files and plain names
_SEARCH_S = 1.0  # interval of the searches for a pattern
_SURE_S = 1.0  # a write sets a file's time before its size; the size follows within this time
_COMPARED = 256  # bytes before the position; if they change, the file was rewritten


class Printed(NamedTuple):
    """The output of one rank."""

    lines: List[List[str]]
    """The last lines of its stdout and of its stderr."""
    until: float
    """Time of the last write to stderr, in seconds since 1970."""


class _File:
    """One followed file. `_position` is the offset of the next byte to read."""

    def __init__(self, path: str, from_end: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)
        self._position = status.st_size if from_end else 0
        self._before = self._bytes_before()
        self._written_at = status.st_mtime_ns
        self._of_earlier_runs = from_end  # nothing of this attempt was read yet
        self._doubted_since: Optional[float] = None

    def read(self, ended: bool) -> bytes:
        """The next bytes, at most one block; empty at the end. `ended`: all writers have ended."""
        status = os.fstat(self.fd)
        if self._was_rewritten(status, ended):
            self._position = 0
            self._before = b""
        data = os.pread(self.fd, min(_BLOCK, status.st_size - self._position), self._position)
        if data:
            self._position += len(data)
            self._before = (self._before + data)[-_COMPARED:]
            self._written_at = status.st_mtime_ns
            self._of_earlier_runs = False
        return data

    def _was_rewritten(self, status: os.stat_result, ended: bool) -> bool:
        if status.st_size < self._position:
            return True
        grown = status.st_size > self._position
        if not grown and status.st_mtime_ns in (self._written_at, status.st_atime_ns):
            self._written_at = status.st_mtime_ns  # unchanged, or touched, which sets both times
            return False
        if self._bytes_before() != self._before:
            return True
        if grown or not self._of_earlier_runs:
            return False
        # only the time has changed: the text of an earlier run was written again, or a write has
        # begun
        now = time.monotonic()
        self._doubted_since = self._doubted_since or now
        return ended or now - self._doubted_since > _SURE_S

    def _bytes_before(self) -> bytes:
        begin = max(0, self._position - _COMPARED)
        return os.pread(self.fd, self._position - begin, begin)


class _Tail:
    """All files that match `pattern` in any of `folders`. `sink(path, bytes)` gets the bytes added
    to them.

    A file that exists when the attempt starts is read from its size at that moment: its content
    belongs to earlier runs. A file that appears later is read from its beginning, and so is one
    that was truncated or rewritten between two checks. A file that was replaced (rotated) is read
    to its end, then the new one is read. Files are polled, as inotify reports no changes on network
    file systems: content that exists for less than _LOOK_S may be missed.
    """

    def __init__(
        self, pattern: str, folders: List[str], sink: Callable[[str, bytes], None]
    ) -> None:
        self._is_glob = glob.has_magic(pattern)
        roots = dict.fromkeys(os.path.realpath(folder) for folder in folders)
        below = [
            os.path.join(glob.escape(root) if self._is_glob else root, pattern) for root in roots
        ]
        self._patterns = [pattern] if os.path.isabs(pattern) else below
        self._sink = sink
        self._files: Dict[str, _File] = {}
        self._searched_at = 0.0
        self._search(from_end=True)

    def look(self) -> bool:
        """Find new and replaced files, and pass at most a block of each to the
        sink; True: there may be more.
        """
        if not self._is_glob or time.monotonic() - self._searched_at >= _SEARCH_S:
            self._search()
        return self._read_all()

    def finish(self) -> None:
        """Pass the rest of all files to the sink; the ranks have ended."""
        self._search()
        while self._read_all(ended=True):
            pass
        for path in list(self._files):
            os.close(self._files.pop(path).fd)

    def _read_all(self, ended: bool = False) -> bool:
        return any([self._read(path, ended) for path in list(self._files)])

    def _read(self, path: str, ended: bool = False) -> bool:
        try:
            data = self._files[path].read(ended)
        except OSError:
            # a stale handle of a network file system: the next search opens the file again
            os.close(self._files.pop(path).fd)
            return False
        if data:
            self._sink(path, data)
        return bool(data)

    def _search(self, from_end: bool = False) -> None:
        self._searched_at = time.monotonic()
        found: Dict[Tuple[int, int], str] = {}  # by identity: one file may have two paths
        for pattern in self._patterns:
            for path in sorted(glob.glob(pattern)) if self._is_glob else [pattern]:
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    found.setdefault((status.st_dev, status.st_ino), path)
        for identity, path in found.items():
            known = self._files.get(path)
            if known is not None and known.identity == identity:
                continue
            if known is not None:
                while self._read(path):
                    pass
                if path in self._files:
                    os.close(self._files.pop(path).fd)
            if os.path.isfile(path):
                # removed again, or unreadable: the next search tries again
                with contextlib.suppress(OSError):
                    self._files[path] = _File(path, from_end)


class WorkerLog:
    """`flush` is to be called after each round of the loop."""

    def __init__(self, loop: Loop, writer: SegmentWriter) -> None:
        self.stalled = False
        """The disk is full now."""
        self.ends = False
        """No rank runs any more: the rest of the log may use the last free bytes."""
        self.active_at = 0.0
        """Time of the last read of a pipe, or of the end of a stall (monotonic seconds)."""
        self._loop = loop
        self._writer = writer
        self._sequence = Sequence(writer.next_seq)
        self._stampers: List[Stamper] = []
        self._of_rank: Dict[int, List[Stamper]] = {}
        self._own = self._stamper(NO_RANK, LAUNCHER)
        self._pipes: Dict[int, Stamper] = {}
        self._tail: Optional[_Tail] = None
        self._tailed: Dict[str, Stamper] = {}
        self._metrics = self._stamper(NO_RANK, METRICS)
        self._metrics_pipe: Optional[int] = None
        self._new_ranks: Optional[int] = None
        self._rest_of_new = b""
        self._usage = self._stamper(NO_RANK, METRICS)
        self._readers: List[Callable[[bytes], None]] = []
        self._timer: Optional[Timer] = None
        self._silent_since = 0.0

    @property
    def next_seq(self) -> int:
        return self._sequence.next

    @property
    def open_pipes(self) -> int:
        """Number of pipes that have not ended; the pipe of metrics ends with `finish`."""
        return len(self._pipes.keys() - {self._metrics_pipe})

    def add_message(self, text: str) -> None:
        """Log a message of the launcher."""
        self._writer.add(self._own.feed(text.encode("utf-8", "replace") + b"\n", time.monotonic()))

    def add_pipe(self, rank: int, stream: str, fd: int, shown: Optional[str] = None) -> None:
        """Read `fd` to its end, and close it then. `shown`: the rank in
        the records, if not `rank`.
        """
        stamper = self._stamper(str(rank) if shown is None else shown, stream)
        self._of_rank.setdefault(rank, []).append(stamper)
        self._take(fd, stamper)

    def listen(self, fd: int, stream: str = LAUNCHER) -> None:
        """Read `fd` to its end, and log its lines, by default as messages of the launcher."""
        self._take(fd, self._stamper(NO_RANK, stream))

    def take_metrics(self, path: str) -> None:
        """Make a named pipe at `path`, and read the metrics that ranks
        write to it. Raises OSError.
        """
        with contextlib.suppress(FileExistsError):  # the launcher continues the work of another
            os.mkfifo(path, 0o600)
        # also for writing: it must not end with a rank
        fd = self._metrics_pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._take(fd, self._metrics)

    def take_rank_pipes(self, folder: str) -> None:
        """Read the output of the ranks that an agent of torchrun starts. Raises OSError.

        The agent renumbers its ranks whenever the group changes, so its own output cannot tell
        their lines apart: a rank (rank_runner/pipes.py) makes two named pipes in this folder,
        writes `RANK NAME` into the pipe `new`, and continues as soon as they are opened and removed
        here.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):  # left by an earlier launcher
            os.unlink(os.path.join(folder, name))
        new = os.path.join(folder, "new")
        os.mkfifo(new, 0o600)
        # opened for writing, too: no end of file
        fd = self._new_ranks = os.open(new, os.O_RDWR | os.O_NONBLOCK)
        self._loop.watch(fd, lambda: self._take_new_ranks(fd, folder))

    def add_metrics(self, lines: bytes) -> None:
        """Log lines of `metric_lines`."""
        self._feed(self._metrics, lines)

    def add_usage(self, line: bytes) -> None:
        """Log what was measured of the ranks: it is none of their output,
        and no sign of their life.
        """
        if not self.stalled:
            self._writer.add(self._usage.feed(line, time.monotonic()), lives=False)

    def add_checkpoints(self, lines: bytes) -> None:
        """Log lines of `checkpoint_lines`, which are no sign of life of the ranks either."""
        self._writer.add(self._usage.feed(lines, time.monotonic()), lives=False)

    def read_metrics(self, expression: str) -> None:
        """Read metrics from all lines with a regular expression that the job gives."""
        try:
            found = LineMetrics(expression, self.add_metrics, self.add_message)
        except re.error as error:
            self.add_message("the expression of `metrics` can't be used by this Python: %s" % error)
            return
        self.read_records(found.add)

    def read_records(self, reader: Callable[[bytes], None]) -> None:
        """Call a reader with all records of the ranks, whole ones, from now on."""
        self._readers.append(reader)

    def tail(self, pattern: str, folders: List[str]) -> None:
        """Follow files from now on, until `finish`."""
        self._tail = _Tail(pattern, folders, self._tailed_bytes)
        self._loop.call_later(_LOOK_S, self._look)

    def printed_by(self, rank: int) -> Printed:
        """The last output of a rank, and its time; of a restarted rank the output of its last
        process."""
        stampers = self._of_rank.get(rank, [])[-2:]
        silent_s = time.monotonic() - stampers[-1].fed_at if stampers else 0.0
        return Printed([stamper.last_texts() for stamper in stampers], time.time() - silent_s)

    def last_lines_of_agent(self, rank: int) -> List[str]:
        """The last lines of an agent's stderr; `rank`: the rank of its process."""
        return self._of_rank[rank][1].last_texts()

    def finish(self) -> None:
        """End all streams; `flush` must be called until it returns True."""
        if self._tail:
            self._tail.finish()
            self._tail = None
        if self._metrics_pipe is not None:
            self._read(self._metrics_pipe)  # a block is all that a pipe holds
        if self._new_ranks is not None:
            self._loop.forget(self._new_ranks)
            os.close(self._new_ranks)
        for fd in list(self._pipes):
            self._close(fd)
        for stamper in self._tailed.values():
            self._add(stamper.end())
        if self._timer:
            self._timer.cancel()
        gone = self._writer.removed_bytes
        if gone:
            self.add_message(
                "the log was over its size limit: %d bytes of its middle are gone" % gone
            )

    def flush(self) -> bool:
        """Write the records of this round; False while the disk is full."""
        if not self.stalled and not self._writer.flush():
            self.stalled = True
            for fd in self._pipes:
                self._loop.forget(fd)
            self._loop.call_later(_RETRY_S, self._try_again)
        return not self.stalled

    def _try_again(self) -> None:
        has_room = False
        with contextlib.suppress(OSError):
            has_room = self.ends or free_bytes(self._writer.path) >= _ROOM
        if not has_room or not self._writer.flush():
            self._loop.call_later(_RETRY_S, self._try_again)
            return
        self.stalled = False
        self.active_at = time.monotonic()
        for fd, stamper in self._pipes.items():
            self._take(fd, stamper)

    def _add(self, records: bytes) -> None:
        self._writer.add(records)
        for reader in self._readers:
            reader(records)

    def _stamper(self, rank: str, stream: str) -> Stamper:
        stamper = Stamper(self._sequence, rank, stream)
        self._stampers.append(stamper)
        return stamper

    def _take(self, fd: int, stamper: Stamper) -> None:
        self._pipes[fd] = stamper
        if not self.stalled:
            self._loop.watch(fd, lambda: self._read(fd))

    def _take_new_ranks(self, new: int, folder: str) -> None:
        *lines, self._rest_of_new = (self._rest_of_new + os.read(new, _BLOCK)).split(b"\n")
        for line in lines:
            rank, _, name = line.decode("ascii", "replace").partition(" ")
            paths = [
                os.path.join(folder, "%s.%s" % (os.path.basename(name), stream))
                for stream in _OF_RANK
            ]
            if not rank.isdigit():
                continue
            try:
                fds = [os.open(path, os.O_RDONLY | os.O_NONBLOCK) for path in paths]
            except OSError:  # the rank has ended
                continue
            for stream, fd, path in zip(_OF_RANK, fds, paths):  # noqa: B905  Python 3.8 has no strict
                self.add_pipe(int(rank), stream, fd)
                os.unlink(path)

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
            self._loop.call_later(0.0 if more else _LOOK_S, self._look)
