"""The log between the launcher, which writes it, and those who carry it away: to the server and to stdout.

The launcher's segments (format.py) are the spool. What every reader has done with is deleted; over a limit the oldest
segments are, done with or not, and the next read says that there is a gap: an over-full volume would have the whole pod
evicted. For several threads.

Standard library only, Python >= 3.8.
"""

import os
import threading
from typing import Dict, List, NamedTuple, Optional, Tuple

from client_lib.worker.format import parse, segment_name

FULL = 0.8  # of the volume; the rest is for what comes between two looks
_BLOCK = 1024 * 1024
_TAIL = 64 * 1024  # more than the longest record


class Piece(NamedTuple):
    """Whole records. `gap`: what was between them and the reader's position is gone."""

    offset: int
    data: bytes
    gap: bool

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class Spool:
    """The log directory of one worker. `readers`: their names."""

    def __init__(self, folder: str, volume_bytes: int, readers: List[str]) -> None:
        self._folder = folder
        self._limit = int(volume_bytes * FULL)
        self._lock = threading.Lock()
        self._at: Dict[str, int] = {name: 0 for name in readers}
        self._done: Dict[str, int] = {name: 0 for name in readers}
        self._begin = (0, 0)

    def begin(self, offset: int, seq: int) -> None:
        """Of the first record: what lies before it was carried away from another pod of this worker, or from here."""
        self._begin = (seq, offset)
        with self._lock:
            for positions in (self._at, self._done):
                positions.update(dict.fromkeys(positions, offset))

    def read(self, reader: str) -> Optional[Piece]:
        """The next records for this reader; None: there are none now."""
        with self._lock:
            at = self._at[reader]
        for start, size in self._segments():
            if start + size <= at:
                continue
            offset = max(at, start)
            data = self._read(start, offset - start)
            if data is None:  # dropped between the two looks: the next one is there
                continue
            return Piece(offset, data, offset > at) if data else None
        return None

    def move(self, reader: str, at: int, done: Optional[int] = None) -> None:
        """Go on reading at `at`; what lies before `done` (default: `at`) is not needed any more."""
        with self._lock:
            self._at[reader] = at
            self._done[reader] = max(self._done[reader], at if done is None else done)

    def leave(self, reader: str) -> None:
        """It reads no more: nothing is kept for it."""
        with self._lock:
            self._at.pop(reader, None)
            self._done.pop(reader, None)

    def tidy(self) -> int:
        """Delete what is done with, and the oldest while there is too much. How many bytes were dropped unread."""
        segments = self._segments()
        with self._lock:
            done = min(self._done.values(), default=0)
        kept, dropped = sum(size for _, size in segments), 0
        for start, size in segments[:-1]:  # never the one that is being written
            over = kept > self._limit
            if start + size > done and not over:
                break
            os.unlink(self._path(start))
            kept -= size
            dropped += max(0, start + size - max(start, done))
        return dropped

    def newest(self) -> int:
        """Changes whenever a rank has written something, a record or not: the launcher touches the file at least."""
        segments = self._segments()
        try:
            return os.stat(self._path(segments[-1][0])).st_mtime_ns if segments else 0
        except FileNotFoundError:
            return 0

    def end(self) -> Tuple[int, int]:
        """(seq, offset) of the record that would come next, for a log whose writer is dead."""
        for start, size in reversed(self._segments()):
            begin = max(0, size - _TAIL)
            tail = self._read(start, begin)
            if tail:
                last = tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
                return parse(last).seq + 1, start + begin + len(tail)
        return self._begin

    def _path(self, start: int) -> str:
        return os.path.join(self._folder, segment_name(start))

    def _segments(self) -> List[Tuple[int, int]]:
        """(start, size), in order."""
        found = []
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        for name in names:
            if name.endswith(".log"):
                try:
                    found.append((int(name[:-4]), os.stat(os.path.join(self._folder, name)).st_size))
                except FileNotFoundError:  # dropped just now
                    continue
        return sorted(found)

    def _read(self, start: int, begin: int) -> Optional[bytes]:
        """Whole records; b"" where there is none yet, None where the segment is gone."""
        try:
            with open(self._path(start), "rb") as file:
                file.seek(begin)
                data = file.read(_BLOCK)
        except FileNotFoundError:
            return None
        return data[: data.rfind(b"\n") + 1]
