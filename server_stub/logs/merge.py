"""The logs of several workers as one history, ordered by time. Pure: blocks in, parts of blocks out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heapreplace
from typing import NamedTuple

from client_lib.spec.log_stream import Position
from server_stub.logs.records import last_record, time_of
from server_stub.logs.segments import Block


class Part(NamedTuple):
    """Some records of one worker's log, one behind the other."""

    position: Position
    end: int
    data: bytes


class Head:
    """What is left of one worker's newest block."""

    def __init__(self, position: Position, block: Block) -> None:
        self.position = position
        self.time = time_of(block.data)
        """Of the first record that is left."""
        self.empty = False
        self._block = block
        self._at = 0
        self._last_time = time_of(block.data, last_record(block.data))

    def __lt__(self, other: Head) -> bool:
        return (self.time, self.position) < (other.time, other.position)

    def rest(self) -> Part:
        """All that is left."""
        return self._take(len(self._block.data))

    def take(self, other: Head) -> Part:
        """The records that come before the first one of `other`: at least one, as this head is the smaller."""
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
    """Where the first record behind that at `low` begins that is late; the end if none is.

    Steps that double, then bisection: a run of one record is found as quickly as one of a thousand. Where times fall,
    because a clock was set back, it is one such place, behind the record at `low` in any case.
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
    """Parts of the heads, oldest first, until one head is empty: give that worker's next block, or leave it out at the
    end of its log, and call again. Records of equal time go in the order of their positions."""
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
