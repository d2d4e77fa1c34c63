"""Finds times, gaps and matching records in bytes of whole records, without parsing each record, and merges the logs
of several workers by time. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

from client_lib.spec.paths import Position
from client_lib.worker.format import METRICS, RANK, STREAMS, pattern
from server_stub.logs.query import LogQuery

Filter = Callable[[bytes], bytes]
STAMP = 27  # bytes
_METRICS = f" {METRICS} ".encode()


class Block(NamedTuple):
    """Consecutive whole records of one segment."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.start + len(self.data)


class Part(NamedTuple):
    """Consecutive records of one worker's log."""

    position: Position
    end: int
    data: bytes


def line_pattern(query: LogQuery) -> re.Pattern[bytes]:
    """Matches every record, and the chosen ones as group 1; metrics are none.

    Each match ends where the next begins, so that a scan never looks at a byte twice.
    """
    ranks = "|".join(map(str, sorted(query.ranks))) or RANK
    streams = "|".join(re.escape(name) for name in sorted(query.streams or STREAMS))
    return re.compile(f"({pattern(rank=f'(?:{ranks})', stream=f'(?:{streams})')})|.*\n".encode())


def line_filter(query: LogQuery) -> Filter:
    """The chosen records of a block of whole records."""
    find = line_pattern(query).findall
    if query.filtered:
        return lambda data: b"".join(find(data))
    return lambda data: b"".join(find(data)) if _METRICS in data else data


def sequence_of(data: bytes, at: int = 0) -> int | None:
    """seq of the record that begins at `at`; None for bytes that no launcher wrote."""
    digits = data[at : data.find(b" ", at)]
    return int(digits) if digits.isdigit() else None


def last_record(data: bytes) -> int:
    """The offset of the last record in `data`."""
    return data.rfind(b"\n", 0, len(data) - 1) + 1


def missing_before(data: bytes, expected: int | None) -> int:
    """The number of missing records before these of one segment. `expected`: the seq that should come; None: not known.

    Only the first record is read: inside a segment seq has no holes (client_lib.worker.format), and counting the
    records of each block would cost as much as sending it.
    """
    first = sequence_of(data)
    return first - expected if first is not None and expected is not None and first > expected else 0


def next_sequence(data: bytes) -> int | None:
    """The seq that should follow these records."""
    last = sequence_of(data, last_record(data))
    return None if last is None else last + 1


def time_of(data: bytes, at: int = 0) -> bytes:
    """Stamp of the record that begins at `at`."""
    begin = data.find(b" ", at) + 1
    return data[begin : begin + STAMP]


class Head:
    """The records of one worker's newest block that are not merged yet."""

    def __init__(self, position: Position, block: Block) -> None:
        self.position = position
        self.time = time_of(block.data)
        """Time of the first of them."""
        self.empty = False
        self._block = block
        self._at = 0
        self._last_time = time_of(block.data, last_record(block.data))

    def __lt__(self, other: Head) -> bool:
        return (self.time, self.position) < (other.time, other.position)

    def rest(self) -> Part:
        return self._take(len(self._block.data))

    def take(self, other: Head) -> Part:
        """The records before the first one of `other`: at least one, because this head is the smaller one."""
        late = (other.time, other.position)
        if (self._last_time, self.position) < late:
            return self.rest()
        data = self._block.data
        end = data.find(b"\n", self._at) + 1
        while end < len(data) and (time_of(data, end), self.position) < late:
            end = data.find(b"\n", end) + 1
        return self._take(end)

    def _take(self, end: int) -> Part:
        data = self._block.data[self._at : end]
        self._at = end
        self.empty = end == len(self._block.data)
        if not self.empty:
            self.time = time_of(self._block.data, end)
        return Part(self.position, self._block.start + end, data)


def merge(heads: Iterable[Head]) -> Iterator[Part]:
    """Parts of the heads, oldest first, until one head is empty. Call it again with that worker's next block, or
    without the worker at the end of its log. Records of equal time are ordered by position."""
    heap = list(heads)
    heapify(heap)
    while heap:
        head = heap[0]
        if len(heap) == 1:
            yield head.rest()
            return
        yield head.take(min(heap[1:3]))
        if head.empty:
            return
        heapreplace(heap, head)
