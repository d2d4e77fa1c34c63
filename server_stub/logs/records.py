"""What can be learned from bytes of whole records without reading every one: filters, times, gaps. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from server_stub.logs.query import LogQuery

Filter = Callable[[bytes], bytes]
STAMP = 27  # bytes


def line_pattern(query: LogQuery) -> re.Pattern[bytes] | None:
    """Matches every record, and the chosen ones as group 1; None: all are chosen.

    Each match ends where the next begins, so that a scan never looks at a byte twice.
    """
    if not query.filtered:
        return None
    ranks = b"|".join(b"%d" % rank for rank in sorted(query.ranks)) or rb"\S+"
    streams = "|".join(re.escape(name) for name in sorted(query.streams)).encode() or rb"[^ +~]+"
    return re.compile(rb"(\d+ \S+ (?:%b) (?:%b)[+~]? .*\n)|.*\n" % (ranks, streams))


def line_filter(query: LogQuery) -> Filter:
    """The chosen records of a block of whole records."""
    pattern = line_pattern(query)
    if pattern is None:
        return lambda data: data
    find = pattern.findall
    return lambda data: b"".join(find(data))


def sequence_of(data: bytes, at: int = 0) -> int | None:
    """seq of the record that begins at `at`; None for bytes that no launcher wrote."""
    digits = data[at : data.find(b" ", at)]
    return int(digits) if digits.isdigit() else None


def last_record(data: bytes) -> int:
    """Where the last of the whole records in `data` begins."""
    return data.rfind(b"\n", 0, len(data) - 1) + 1


def split_at_gaps(data: bytes, expected: int | None) -> Iterator[tuple[int, bytes]]:
    """`data` in pieces, each with the number of records that are missing before it (0: none).

    `expected` is the seq that should come first; None: not known. One piece, at the price of counting newlines, where
    nothing is missing inside.
    """
    first, last = sequence_of(data), sequence_of(data, last_record(data))
    missing = first - expected if first is not None and expected is not None and first > expected else 0
    if first is None or last is None or last - first + 1 == data.count(b"\n"):
        yield missing, data
        return
    begin = at = 0
    before = first - 1
    while at < len(data):
        sequence = sequence_of(data, at)
        if sequence is not None:
            if sequence > before + 1 and at > begin:
                yield missing, data[begin:at]
                begin, missing = at, sequence - before - 1
            before = sequence
        at = data.index(b"\n", at) + 1
    yield missing, data[begin:]


def next_sequence(data: bytes) -> int | None:
    """The seq that should follow these records."""
    last = sequence_of(data, last_record(data))
    return None if last is None else last + 1


def time_of(data: bytes, at: int = 0) -> bytes:
    """Stamp of the record that begins at `at`."""
    begin = data.find(b" ", at) + 1
    return data[begin : begin + STAMP]
