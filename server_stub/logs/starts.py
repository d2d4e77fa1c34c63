"""Finds the offsets at which a reader begins, from `tail` and `since`. It blocks: call it in a thread.

A tail is found by reading backwards, a time by bisection: neither reads a log from its beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import groupby, islice

from client_lib.spec.paths import Position
from server_stub.logs.query import LogQuery
from server_stub.logs.records import line_pattern, time_of
from server_stub.logs.segments import BLOCK, LogReader, Segment

_PROGRESS_OR_PART = re.compile(rb"\S+ \S+ \S+ \S*[+~] ")


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
    low, high = 0, len(segments)  # the first segment that begins at `stamp` or later
    while low < high:
        middle = (low + high) // 2
        if time_of(reader.window(segments[middle], 0, 64)) < stamp:
            low = middle + 1
        else:
            high = middle
    return _offset_in_segment(reader, segments[low - 1], stamp) if low else 0


def _offset_in_segment(reader: LogReader, segment: Segment, stamp: bytes) -> int:
    """Bisects over bytes until one block is left, then over its lines."""
    low, high = 0, reader.size(segment)
    while high - low > BLOCK:
        middle = (low + high) // 2
        window = reader.window(segment, middle, middle + BLOCK)
        newline = window.find(b"\n") + 1
        if newline and newline < len(window) and time_of(window, newline) < stamp:
            low = middle + newline
        else:
            high = middle
    while True:  # the last block, and more after it until a record is late enough
        window = reader.window(segment, low, low + BLOCK)
        cut = window.rfind(b"\n") + 1
        if not cut:
            return segment.start + low
        at = 0
        while at < cut and time_of(window, at) < stamp:
            at = window.index(b"\n", at) + 1
        low += at
        if at < cut:
            return segment.start + low


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
