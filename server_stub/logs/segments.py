"""Reads the log directories of workers: blocks of whole records by logical offset, and the offsets
at which a reader begins, from `tail` (by reading backwards) and `since` (by bisection). Blocking
file I/O, no asyncio.

The writer (a worker launcher) appends; it may begin a new segment, and it may remove old ones (size
limit). For the names of the files and the format of records see
client_lib.launcher_protocol.record.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from client_lib.launcher_protocol.log_segments import segment_name
from client_lib.spec.paths import Position
from server_stub.files.job_dirs import OpenFile
from server_stub.logs.records import STAMP, Block, line_pattern, time_of

if TYPE_CHECKING:
    from server_stub.logs.query import LogQuery

# more is not faster (pipes, sockets and caches like this size) and every follower may hold one
BLOCK = 64 * 1024
_RECORD = 32 * 1024  # more than the longest record: MAX_TEXT and its head
_HEAD = 64  # more than seq and time of a record
_NAME = re.compile(r"\d{20}\.log")
_PROGRESS_OR_PART = re.compile(rb"\S+ \S+ \S+ \S*[+~] ")
_LATE = b"~"  # sorts after every time
_NOWAIT = getattr(os, "RWF_NOWAIT", 0) if hasattr(os, "preadv") else 0


class LogReader:
    """Reads one worker's log. Holds one file open at most; not for two threads at a
    time, but any may close it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: tuple[int, OpenFile] | None = None
        self._closed = False

    def close(self) -> None:
        """Close the file. A file that a later read opens is closed when that read ends."""
        self._closed = True
        self._open = None

    def segments(self) -> list[int]:
        """The segments, by the offsets at which they begin; [] if there is no directory (yet)."""
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name[:-4]) for name in names if _NAME.fullmatch(name))

    def end(self) -> int:
        """The offset after the last byte; 0 for no log."""
        segments = self.segments()
        return segments[-1] + self.size(segments[-1]) if segments else 0

    def whole_end(self) -> int:
        """The offset after the last whole record."""
        segments = self.segments()
        if not segments:
            return 0
        size = self.size(segments[-1])
        begin = max(0, size - _RECORD)
        return segments[-1] + begin + self.window(segments[-1], begin, size).rfind(b"\n") + 1

    def block(self, offset: int, size: int = BLOCK, *, cached: bool = False) -> Block | None:
        """The next whole records at `offset`, or after it if that part of the log was removed;
        None: none yet. At most `size` bytes, but always one record. With `cached` it raises
        BlockingIOError instead of waiting for a disk."""
        held = self._open
        if (
            held
            and held[0] <= offset
            and (data := self._records(held[0], offset - held[0], size, cached))
        ):
            # to list the directory for each block takes a fifth of the time
            return Block(offset, data)
        segments = self.segments()
        first = bisect_right(segments, offset) - 1
        for segment in segments[max(first, 0) :]:
            start = max(offset, segment)
            if data := self._records(segment, start - segment, size, cached):
                return Block(start, data)
        return None

    def record_before(self, offset: int) -> bytes | None:
        """The last record that ends at or before `offset`, where it is still there."""
        for segment in reversed(self.segments()):
            end = min(offset - segment, self.size(segment))
            begin = max(0, end - _RECORD)
            record = self.window(segment, begin, end).rpartition(b"\n")[0].rpartition(b"\n")[2]
            if record:
                return record + b"\n"
        return None

    def window(self, segment: int, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of one segment, by offsets in the segment; fewer at its end, b""
        if the segment was removed.
        """
        file = self._file(segment) if begin < end else None
        return os.pread(file.descriptor, end - begin, begin) if file else b""

    def size(self, segment: int) -> int:
        """The bytes of a segment; 0 where it was removed."""
        file = self._file(segment)
        return os.fstat(file.descriptor).st_size if file else 0

    def _records(self, segment: int, begin: int, size: int, cached: bool) -> bytes:
        if cached:
            file = self._file(segment)
            return _cached_records(file, begin, size) if file else b""
        data = self.window(segment, begin, begin + size)
        cut = data.rfind(b"\n") + 1
        if data and not cut:
            data = self.window(segment, begin, begin + max(size, _RECORD))
            cut = data.find(b"\n") + 1
        return data[:cut]

    def _file(self, segment: int) -> OpenFile | None:
        held = self._open
        if held and held[0] == segment:
            return held[1]
        try:
            file = OpenFile(
                os.path.join(self.directory, segment_name(segment)), self.directory.parent
            )
        except FileNotFoundError:
            return None
        self._open = (segment, file)
        if self._closed:  # `close` may have run in another thread meanwhile
            self._open = None
        return file


def _cached_records(file: OpenFile, begin: int, size: int) -> bytes:
    """Read whole records from the cache of the operating system. Raises BlockingIOError: the bytes
    are not in it, or it has only a part of the first record."""
    if not _NOWAIT:
        raise BlockingIOError
    buffer = bytearray(size)
    try:
        count = os.preadv(file.descriptor, [buffer], begin, _NOWAIT)
    except OSError as error:  # EAGAIN, or a file system that can't tell
        raise BlockingIOError from error
    cut = buffer.rfind(b"\n", 0, count) + 1
    if count and not cut:
        raise BlockingIOError
    return bytes(memoryview(buffer)[:cut])


def find_starts(readers: Mapping[Position, LogReader], query: LogQuery) -> dict[Position, int]:
    """Offset of the first record to give, for each position. A query with a
    cursor goes on where that says.
    """
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
    """Offset of the first record whose time is `stamp` or later; the end of the log if all are
    older. Where a clock was set back, there may be several such offsets; the result is any one."""
    begins = {segment: time_of(reader.window(segment, 0, _HEAD)) for segment in reader.segments()}
    # a new one has none
    older = [segment for segment, time in begins.items() if len(time) == STAMP and time < stamp]
    if not older:
        return 0
    segment = older[-1]

    def time_after(at: int) -> bytes:
        """The time of the first whole record that begins after `at`."""
        records = reader.window(segment, at, at + BLOCK).partition(b"\n")[2]
        return time_of(records) if b"\n" in records else _LATE

    at = bisect_left(range(reader.size(segment)), stamp, key=time_after)
    return segment + at + reader.window(segment, at, at + BLOCK).find(b"\n") + 1


def _tail_starts(
    readers: Mapping[Position, LogReader], query: LogQuery, tail: int
) -> dict[Position, int]:
    """Counts lines back from the newest attempt on. Logs in which none was counted begin at their
    end; with fewer lines than `tail` all logs begin at their first record, which may be progress or
    a line that has no end yet."""
    starts = {position: reader.whole_end() for position, reader in readers.items()}
    if query.before is not None:
        starts = {
            position: min(end, query.before.get(position, 0)) for position, end in starts.items()
        }
    pattern = line_pattern(query)
    counted = set[Position]()
    newest_first = sorted(readers, reverse=True)
    for _, attempt in groupby(newest_first, key=lambda position: position[0]):
        lines = [
            lines_backwards(position, readers[position], pattern, starts[position])
            for position in attempt
        ]
        for _, position, offset in islice(merge(*lines, reverse=True), tail):
            starts[position] = offset
            counted.add(position)
            tail -= 1
    if tail:
        return dict.fromkeys(readers, 0)
    return starts | {each: _begin_of_line(readers[each], starts[each]) for each in counted}


def _begin_of_line(reader: LogReader, offset: int) -> int:
    """The offset of the first record of the line whose last record begins at `offset`, as far as
    its records follow each other in one segment."""
    record = reader.block(offset)
    origin = record.data.split(b" ", 4)[2:4] if record else []
    segments = reader.segments()
    while offset not in segments and (before := reader.record_before(offset)):
        _, _, rank, stream, _ = before.split(b" ", 4)
        if [rank, stream.removesuffix(b"+")] != origin or not stream.endswith(b"+"):
            break
        offset -= len(before)
    return offset


def lines_backwards(
    position: Position, reader: LogReader, pattern: re.Pattern[bytes], until: int
) -> Iterator[tuple[bytes, Position, int]]:
    """(time, position, offset) of the chosen records before `until` that end a line, the last one
    first; progress is no line."""
    for segment in reversed(reader.segments()):
        end = min(reader.size(segment), until - segment)
        carried = 0  # bytes at the end of the window whose record begins before it
        while end > 0:
            begin = max(0, end - BLOCK - carried)
            window = reader.window(segment, begin, end)
            first = 0 if begin == 0 else window.find(b"\n") + 1
            lines = [
                (time_of(match[1]), position, segment + begin + match.start())
                for match in pattern.finditer(window, first, window.rfind(b"\n") + 1)
                if match[1] and not _PROGRESS_OR_PART.match(match[1])
            ]
            yield from reversed(lines)
            carried = first
            end = begin + first
            if begin and first >= len(window):
                return  # no newline in a whole block: no launcher wrote this
