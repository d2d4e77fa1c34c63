"""Logs of a job, and how records are found, filtered and merged by time in bytes of whole records,
without parsing each one. Pure, and standard library only: the process of each search loads it."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapify, heapreplace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from client_lib.launcher_protocol.record import METRICS, RANK, STREAMS, pattern
from client_lib.spec.paths import Position
from client_lib.spec.states import Reason, State

if TYPE_CHECKING:
    from server_stub.logs.query import LogQuery

Filter = Callable[[bytes], bytes]
STAMP = 27  # bytes
_METRICS = f" {METRICS} ".encode()


@dataclass(frozen=True)
class LoggedJob:
    """The place of a job's logs (`server_stub.files.job_dirs.log_dir`), and its state."""

    job_id: str
    job_dir: Path
    n_workers: int
    attempt: int  # the newest, from 1; its directories may not exist yet
    version: int
    state: State
    reason: Reason
    message: str


class Block(NamedTuple):
    """Consecutive whole records of one worker's log, all of one segment."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.start + len(self.data)


def line_pattern(query: LogQuery) -> re.Pattern[bytes]:
    """Matches every record, and captures a chosen record as group 1; metrics are never chosen. Each
    match ends where the next begins, so that a scan never looks at a byte twice."""
    ranks = "|".join(map(str, sorted(query.ranks))) or RANK
    streams = "|".join(re.escape(name) for name in sorted(query.streams or STREAMS))
    return re.compile(f"({pattern(rank=f'(?:{ranks})', stream=f'(?:{streams})')})|.*\n".encode())


def line_filter(query: LogQuery) -> Filter:
    """The chosen records of a block of whole records."""
    find = line_pattern(query).findall
    if query.ranks or query.streams:
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
    """The number of missing records before these of one segment. `expected`: the seq that should
    come; None: not known. Only the first record is read: inside a segment seq has no holes
    (client_lib.launcher_protocol.record), and to count records would cost as much as to send them.
    """
    first = sequence_of(data)
    return (
        first - expected if first is not None and expected is not None and first > expected else 0
    )


def next_sequence(data: bytes) -> int | None:
    """The seq that should follow these records."""
    last = sequence_of(data, last_record(data))
    return None if last is None else last + 1


def time_of(data: bytes, at: int = 0) -> bytes:
    """Stamp of the record that begins at `at`."""
    begin = data.find(b" ", at) + 1
    return data[begin : begin + STAMP]


def merge(blocks: dict[Position, Block]) -> Iterator[tuple[Position, Block]]:
    """Merge the blocks: yield parts of them, oldest first, until one block is used up; `blocks`
    keeps the rest. Call it again with the next block of that log, if there is one. Records of equal
    time are ordered by position."""
    heap = [(time_of(block.data), position, 0) for position, block in blocks.items()]
    heapify(heap)
    while heap:
        (_, position, at) = heap[0]
        others = heap[1:3]
        start, data = blocks[position]
        end = _end_before(data, at, position, min(others)) if others else len(data)
        yield position, Block(start + at, data[at:end])
        heapreplace(heap, (time_of(data, end), position, end))
        if end == len(data):
            break
    for _, position, at in heap:
        blocks[position] = Block(blocks[position].start + at, blocks[position].data[at:])
        if not blocks[position].data:
            del blocks[position]


def _end_before(
    data: bytes, at: int, position: Position, other: tuple[bytes, Position, int]
) -> int:
    """Find the end of the records, from `at` on, that precede the record `other` of another log.
    Steps that double and a bisection find short and long runs quickly. If times fall because a
    clock was set back, there may be several such ends; the result is any one."""

    def is_late(begin: int) -> bool:
        return (time_of(data, begin), position) > other[:2]

    last = last_record(data)
    step = 1
    if not is_late(last):
        return len(data)
    while at + step < last and not is_late(data.find(b"\n", at + step) + 1):
        at = at + step
        step = 2 * step
    places = range(at, min(at + step, last - 1))
    at += bisect_left(places, True, key=lambda place: is_late(data.find(b"\n", place) + 1))
    return data.find(b"\n", at) + 1
