"""Reading one worker's log directory: blocks of whole records by logical offset. Blocking file I/O, no asyncio.

The writer (a worker launcher) appends; it may begin a new segment, and it may remove old ones (size limit). A reader
needs nothing from it but the files: see client_lib.worker.format for their names and the record format.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from pathlib import Path
from typing import NamedTuple

from server_stub.files.owned import OpenFile

BLOCK = 64 * 1024  # more is not faster (pipes, sockets and caches like this size) and every follower may hold one
_RECORD = 32 * 1024  # more than the longest record: MAX_TEXT and its head
_NAME = re.compile(r"\d{20}\.log")
_NOWAIT = getattr(os, "RWF_NOWAIT", 0) if hasattr(os, "preadv") else 0


class Segment(NamedTuple):
    start: int
    name: str


class Block(NamedTuple):
    """Consecutive whole records of one segment."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.start + len(self.data)


def _start(segment: Segment) -> int:
    return segment.start


def list_segments(directory: Path) -> list[Segment]:
    """The segments ordered by offset; [] if there is no directory (yet)."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(Segment(int(name[:-4]), name) for name in names if _NAME.fullmatch(name))


class _OpenSegment(OpenFile):
    def read(self, size: int, offset: int) -> bytes:
        return os.pread(self.descriptor, size, offset)

    def records_cached(self, size: int, offset: int) -> bytes:
        """The whole records among the bytes there, copied once. Raises BlockingIOError where the bytes would have to
        come from the disk, or are but a part of a record: that may mean that only this part is in the cache."""
        if not _NOWAIT:
            raise BlockingIOError
        buffer = bytearray(size)
        try:
            count = os.preadv(self.descriptor, [buffer], offset, _NOWAIT)
        except OSError as error:  # EAGAIN, or a file system that can't tell
            raise BlockingIOError from error
        cut = buffer.rfind(b"\n", 0, count) + 1
        if count and not cut:
            raise BlockingIOError
        return bytes(memoryview(buffer)[:cut])

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size


class LogReader:
    """Reads one worker's log. Holds one file open at most; not for two threads at a time, but any may close it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._segments: list[Segment] = []
        self._open: tuple[str, _OpenSegment] | None = None
        self._closed = False

    def close(self) -> None:
        """Close the file. A file that a later read opens is closed when that read ends."""
        self._closed = True
        self._open = None

    def end(self) -> int:
        """The offset after the last byte; 0 for no log."""
        before, segments = None, self.segments()
        while segments != before:
            if not segments:
                return 0
            last = segments[-1]
            file = self._file(last)
            if file:
                return last.start + file.size()
            before, segments = segments, self.segments()  # removed between the two calls, or no file of the log's owner
        return segments[-1].start

    def whole_end(self) -> int:
        """The offset after the last whole record."""
        segments = self.segments()
        if not segments:
            return 0
        size = self.size(segments[-1])
        begin = max(0, size - _RECORD)
        return segments[-1].start + begin + self.window(segments[-1], begin, size).rfind(b"\n") + 1

    def segments(self) -> list[Segment]:
        """The segments, read from the directory."""
        self._segments = list_segments(self.directory)
        return self._segments

    def block(self, offset: int, size: int = BLOCK, *, cached: bool = False) -> Block | None:
        """The next whole records at `offset`, or after it if that part of the log was removed; None: none yet.

        At most `size` bytes, but always one record. With `cached` it raises BlockingIOError instead of waiting for a
        disk.
        """
        while True:
            before = self._segment_at(offset)
            offset = max(offset, before.start) if before else offset
            data = self._records(before, offset, size, cached) if before else b""
            if not data:
                # The writer may have begun another segment, which only a new list shows. If so, this segment was
                # complete before that list was made: read it once more.
                self.segments()
                after = self._segment_at(offset)
                if after == before:
                    after = self._segment_after(offset)
                if not after:
                    return None
                data = self._records(before, offset, size, cached) if before else b""
                if not data:
                    offset = max(offset, after.start)
                    continue
            return Block(offset, data)

    def record_before(self, offset: int) -> bytes | None:
        """The last record that ends at or before `offset`, where it is still there."""
        for segment in reversed(self.segments()):
            file = self._file(segment) if segment.start < offset else None
            if file:
                end = min(offset - segment.start, file.size())
                begin = max(0, end - _RECORD)
                lines = file.read(end - begin, begin).rpartition(b"\n")[0].rpartition(b"\n")
                if lines[2]:
                    return lines[2] + b"\n"
        return None

    def window(self, segment: Segment, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of one segment, by its own offsets; fewer at its end, b"" where it was removed."""
        file = self._file(segment)
        return file.read(end - begin, begin) if file else b""

    def size(self, segment: Segment) -> int:
        file = self._file(segment)
        return file.size() if file else 0

    def _segment_at(self, offset: int) -> Segment | None:
        """The segment with `offset` (it may begin later if a part was removed); None: there is no segment."""
        index = bisect_right(self._segments, offset, key=_start) - 1
        return self._segments[max(index, 0)] if self._segments else None

    def _segment_after(self, offset: int) -> Segment | None:
        index = bisect_right(self._segments, offset, key=_start)
        return self._segments[index] if index < len(self._segments) else None

    def _records(self, segment: Segment, offset: int, size: int, cached: bool) -> bytes:
        file = self._file(segment)
        if not file:
            return b""
        if cached:
            return file.records_cached(size, offset - segment.start)
        data = file.read(size, offset - segment.start)
        cut = data.rfind(b"\n") + 1
        if data and not cut:
            data = file.read(max(size, _RECORD), offset - segment.start)
            cut = data.find(b"\n") + 1
        return data if cut == len(data) else data[:cut]

    def _file(self, segment: Segment) -> _OpenSegment | None:
        held = self._open
        if held and held[0] == segment.name:
            return held[1]
        try:
            file = _OpenSegment(os.path.join(self.directory, segment.name), self.directory.parent)
        except FileNotFoundError:
            return None
        self._open = (segment.name, file)
        if self._closed:  # `close` may have run in another thread meanwhile
            self._open = None
        return file
