"""Reads the log directories of workers: blocks of whole records by logical offset, and the offsets at which a reader
begins, from `tail` and `since`. Blocking file I/O, no asyncio.

A tail is found by reading backwards, a time by bisection: neither reads a log from its beginning.

The writer (a worker launcher) appends; it may begin a new segment, and it may remove old ones (size limit). A reader
needs nothing from it but the files: see client_lib.worker.format for their names and the record format.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from client_lib.spec.paths import Position
from server_stub.files.owned import OpenFile
from server_stub.logs.query import LogQuery
from server_stub.logs.records import Block, line_pattern, time_of

BLOCK = 64 * 1024  # more is not faster (pipes, sockets and caches like this size) and every follower may hold one
_RECORD = 32 * 1024  # more than the longest record: MAX_TEXT and its head
_NAME = re.compile(r"\d{20}\.log")
_PROGRESS_OR_PART = re.compile(rb"\S+ \S+ \S+ \S*[+~] ")
_LATE = b"~"  # after every time


class Segment(NamedTuple):
    start: int
    name: str


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

    def block(self, offset: int, size: int = BLOCK) -> Block | None:
        """The next whole records at `offset`, or after it if that part of the log was removed; None: none yet.

        At most `size` bytes, but always one record.
        """
        while True:
            before = self._segment_at(offset)
            offset = max(offset, before.start) if before else offset
            data = self._records(before, offset, size) if before else b""
            if not data:
                # The writer may have begun another segment, which only a new list shows. If so, this segment was
                # complete before that list was made: read it once more.
                self.segments()
                after = self._segment_at(offset)
                if after == before:
                    after = self._segment_after(offset)
                if not after:
                    return None
                data = self._records(before, offset, size) if before else b""
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
        index = bisect_right(self._segments, offset, key=attrgetter("start")) - 1
        return self._segments[max(index, 0)] if self._segments else None

    def _segment_after(self, offset: int) -> Segment | None:
        index = bisect_right(self._segments, offset, key=attrgetter("start"))
        return self._segments[index] if index < len(self._segments) else None

    def _records(self, segment: Segment, offset: int, size: int) -> bytes:
        file = self._file(segment)
        if not file:
            return b""
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


def find_starts(readers: Mapping[Position, LogReader], query: LogQuery) -> dict[Position, int]:
    """Offset of the first record to give, for each position. A query with a cursor goes on where that says."""
    if query.cursor:
        return {position: query.cursor.get(position, 0) for position in readers}
    starts = dict.fromkeys(readers, 0)
    if query.since is not None:
        since = query.since.encode()
        starts = {position: offset_of_time(reader, since) for position, reader in readers.items()}
    if query.tail is not None:
        tails = _tail_starts(readers, query, query.tail)
        starts = {position: max(starts[position], tails[position]) for position in readers}
    return starts


def offset_of_time(reader: LogReader, stamp: bytes) -> int:
    """Offset of the first record whose time is `stamp` or later; the end of the log if all are older.

    Times are taken to grow. If a clock was set back, it is the offset of one such place.
    """
    segments = reader.segments()
    index = bisect_left(segments, stamp, key=lambda segment: time_of(reader.window(segment, 0, 64)))
    return _offset_in_segment(reader, segments[index - 1], stamp) if index else 0


def _offset_in_segment(reader: LogReader, segment: Segment, stamp: bytes) -> int:
    """Bisects over blocks, then reads the lines from the first record of the one before."""

    def first_time(begin: int) -> bytes:
        window = reader.window(segment, begin, begin + BLOCK)
        records = window.partition(b"\n")[2] if begin else window
        return time_of(records) if records else _LATE

    begins = range(0, max(reader.size(segment), 1), BLOCK)
    begin = begins[max(bisect_left(begins, stamp, key=first_time) - 1, 0)]
    window = reader.window(segment, begin, begin + 2 * BLOCK)
    at = window.find(b"\n") + 1 if begin else 0
    cut = window.rfind(b"\n") + 1
    while at < cut and time_of(window, at) < stamp:
        at = window.index(b"\n", at) + 1
    return segment.start + begin + at


def _tail_starts(readers: Mapping[Position, LogReader], query: LogQuery, tail: int) -> dict[Position, int]:
    """Counts lines back from the newest attempt on. Logs in which none was counted begin at their end; with fewer lines
    than `tail` all logs begin at their first record, which may be progress or a line that has no end yet."""
    starts = {position: reader.whole_end() for position, reader in readers.items()}
    if query.before is not None:
        starts = {position: min(end, query.before.get(position, 0)) for position, end in starts.items()}
    pattern = line_pattern(query)
    newest_first = sorted(readers, reverse=True)
    for _, attempt in groupby(newest_first, key=lambda position: position[0]):
        lines = [lines_backwards(position, readers[position], pattern, starts[position]) for position in attempt]
        for _, position, offset in islice(merge(*lines, reverse=True), tail):
            starts[position] = offset
            tail -= 1
    return dict.fromkeys(readers, 0) if tail else starts


def lines_backwards(
    position: Position, reader: LogReader, pattern: re.Pattern[bytes], until: int
) -> Iterator[tuple[bytes, Position, int]]:
    """(time, position, offset) of the chosen records before `until` that end a line, the last one first; progress is
    no line."""
    for segment in reversed(reader.segments()):
        end = min(reader.size(segment), until - segment.start)
        carried = 0  # bytes at the end of the window whose record begins before it
        while end > 0:
            begin = max(0, end - BLOCK - carried)
            window = reader.window(segment, begin, end)
            first = 0 if begin == 0 else window.find(b"\n") + 1
            lines = [
                (time_of(match[1]), position, segment.start + begin + match.start())
                for match in pattern.finditer(window, first, window.rfind(b"\n") + 1)
                if match[1] and not _PROGRESS_OR_PART.match(match[1])
            ]
            yield from reversed(lines)
            carried = first
            end = begin + first
            if begin and first >= len(window):
                return  # no newline in a whole block: no launcher wrote this
