"""Merges the logs of several workers by time. Pure: blocks in, parts of blocks out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

from client_lib.spec.paths import Position
from server_stub.logs.records import last_record, time_of
from server_stub.logs.segments import Block


class Part(NamedTuple):
    """Consecutive records of one worker's log."""

    position: Position
    end: int
    data: bytes


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
        precedes = self.position < other.position
        if self._last_time < other.time or (precedes and self._last_time == other.time):
            return self.rest()

        def late(at: int) -> bool:
            time = time_of(self._block.data, at)
            return time > other.time or (time == other.time and not precedes)

        return self._take(_first_late(self._block.data, self._at, late))

    def _take(self, end: int) -> Part:
        data = self._block.data[self._at : end]
        self._at = end
        self.empty = end == len(self._block.data)
        if not self.empty:
            self.time = time_of(self._block.data, end)
        return Part(self.position, self._block.start + end, data)


def _first_late(data: bytes, low: int, late: Callable[[int], bool]) -> int:
    """The offset of the first late record after the one at `low`; the end if there is none.

    The search doubles its steps and then bisects, so that short and long runs are found quickly. If times fall because
    a clock was set back, it finds one such place after the record at `low`.
    """
    high, step = len(data), 1
    while (probe := data.find(b"\n", low + step) + 1) and probe < high:
        if late(probe):
            high = probe
            break
        low, step = probe, step * 2
    top = high  # records between low and top may be late, those from high on are
    while top - low > 1:
        middle = (low + top) // 2
        probe = data.find(b"\n", middle, top) + 1
        if not probe or probe >= high:
            top = middle
        elif late(probe):
            high, top = probe, middle
        else:
            low = probe
    return high


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
