"""The logs of several workers as one history, ordered by time. Pure: blocks in, parts of blocks out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
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
        self._data = block.data
        self._offset = block.start
        self._lines: list[bytes] | None = None
        self._times: list[bytes] = []
        self._index = 0
        self.time = time_of(block.data)
        self._last_time = time_of(block.data, last_record(block.data))
        self.empty = False

    def __lt__(self, other: Head) -> bool:
        return (self.time, self.position) < (other.time, other.position)

    def rest(self) -> Part:
        """All that is left."""
        data = self._data if self._lines is None else b"".join(self._lines[self._index :])
        return self._part(data, empty=True)

    def take(self, other: Head) -> Part:
        """The records that come before the first one of `other`: at least one, as this head is the smaller."""
        inclusive = self.position < other.position
        if self._last_time < other.time or (inclusive and self._last_time == other.time):
            return self.rest()
        if self._lines is None:
            self._lines = [line + b"\n" for line in self._data.split(b"\n")[:-1]]
            self._times = [time_of(line) for line in self._lines]
        bisect = bisect_right if inclusive else bisect_left
        # a clock that was set back makes times fall: then the first record alone goes, never none
        end = max(self._index + 1, bisect(self._times, other.time, self._index))
        data = b"".join(self._lines[self._index : end])
        self._index = end
        empty = end == len(self._lines)
        if not empty:
            self.time = self._times[end]
        return self._part(data, empty=empty)

    def _part(self, data: bytes, *, empty: bool) -> Part:
        self._offset += len(data)
        self.empty = empty
        return Part(self.position, self._offset, data)


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
