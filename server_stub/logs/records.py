"""Finds times, gaps and matching records in bytes of whole records, without parsing each record. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable

from client_lib.worker.format import METRICS, RANK, STREAMS, pattern
from server_stub.logs.query import LogQuery

Filter = Callable[[bytes], bytes]
STAMP = 27  # bytes


_METRICS = f" {METRICS} ".encode()


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
