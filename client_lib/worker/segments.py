"""Appends records to a worker's log: a directory of segment files (format.py) with a size limit.

A full disk stalls the log alone: unwritten records wait here, and the caller stops reading the ranks' pipes meanwhile.
"""

import os
from typing import List, Optional, Sequence, Tuple

from client_lib.worker.disk import free_bytes
from client_lib.worker.format import MAX_TEXT, segment_name, segments

_TAIL_BYTES = 4 * MAX_TEXT  # contains the last record


class SegmentWriter:
    """The only writer of one log directory. `add` collects, `flush` writes."""

    def __init__(self, path: str, limit_bytes: int, segment_bytes: int, begin: Tuple[int, int] = (0, 0)) -> None:
        """`begin`: (offset, seq) of the first record of an empty log."""
        self.offset, self.next_seq = begin
        """Bytes of records written since the attempt began, removed ones included; seq of the next record."""
        self.removed_bytes = 0
        self._path = path
        self._limit = limit_bytes
        self._segment = max(1, min(segment_bytes, limit_bytes // 8))  # small enough that a middle can be removed
        self._waiting: List[bytes] = []
        self._lives = False  # some of the waiting records are of the ranks
        self._unwritten = b""
        self._fd: Optional[int] = None
        self._room = 0
        self._starts: List[int] = []  # offsets of the segments that exist
        self._first = self.offset  # offset of the first record that this log has ever held
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._resume()

    def add(self, records: bytes, *, lives: bool = True) -> None:
        """`lives` False: they are no sign of life of the ranks, and leave the file's time as it is."""
        self._waiting.append(records)
        self._lives = self._lives or lives

    def flush(self) -> bool:
        """Write everything; False: the disk is full, call again later."""
        fd = None if self._lives or not self._waiting else self._fd
        written_at = os.fstat(fd).st_mtime_ns if fd else 0
        try:
            while self._unwritten or self._waiting:
                self._write_some()
        except OSError:
            return False
        if fd and fd == self._fd:
            os.utime(fd, ns=(written_at, written_at))
        self._lives = False
        return True

    def has_room(self, size: int) -> bool:
        """True if the disk has at least `size` bytes free."""
        try:
            return free_bytes(self._path) >= size
        except OSError:
            return False

    def sign_of_life(self) -> None:
        """Touch the file after bytes of the ranks that made no record: the watchdog reads the file's time."""
        if self._fd is not None:
            os.utime(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _resume(self) -> None:
        """Continue after the last whole record of an earlier launcher; an incomplete one is cut off."""
        sizes = dict(segments(self._path))
        self._starts = list(sizes)
        while self._starts:
            size, seq = end_of(os.path.join(self._path, segment_name(self._starts[-1])))
            if size:
                sizes[self._starts[-1]] = size
                self.offset, self.next_seq = self._starts[-1] + size, seq + 1
                self._first = self._starts[0]
                self.removed_bytes = self.offset - self._first - sum(sizes[start] for start in self._starts)
                return
            os.unlink(os.path.join(self._path, segment_name(self._starts.pop())))

    def _write_some(self) -> None:
        if not self._unwritten:
            # a segment begins with a record, so a new one begins between two blocks only
            if self._room <= 0:
                self._begin_segment()
            self._unwritten = b"".join(self._waiting)
            self._waiting.clear()
        assert self._fd is not None
        written = os.write(self._fd, self._unwritten)
        self.offset += written
        self._room -= written
        self._unwritten = self._unwritten[written:]

    def _begin_segment(self) -> None:
        path = os.path.join(self._path, segment_name(self.offset))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.close()
        self._fd = fd
        self._room = self._segment
        self._starts.append(self.offset)
        self._remove_middle()

    def _remove_middle(self) -> None:
        while True:
            index = middle(self._starts, self.offset - self._first - self.removed_bytes, self._segment, self._limit)
            if index is None:
                return
            start = self._starts.pop(index)
            self.removed_bytes += self._starts[index] - start
            os.unlink(os.path.join(self._path, segment_name(start)))


def end_of(path: str) -> Tuple[int, int]:
    """(bytes of whole records, seq of the last one) of a segment whose writer is dead; the rest of the file is cut off.
    (0, -1): there is no whole record."""
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - _TAIL_BYTES)
        file.seek(begin)
        whole, newline, _ = file.read().rpartition(b"\n")
        end = begin + len(whole) + 1 if newline else 0
        if end < size:  # otherwise the file keeps its time, which the watchdog reads
            file.truncate(end)
    return end, int(whole.rpartition(b"\n")[2].split(b" ", 1)[0]) if newline else -1


def middle(starts: Sequence[int], kept: int, room: int, limit: int) -> Optional[int]:
    """Index of the segment to remove, so that the log keeps the first half of the limit, and of the newest records as
    many as fit together with `room` bytes for the newest segment; None: `kept` bytes are not too many, or nothing can
    be removed.

    `starts`: offsets of the existing segments.
    """
    if kept + room <= limit:
        return None
    return next((index for index, start in enumerate(starts[:-1]) if start >= limit // 2), None)
