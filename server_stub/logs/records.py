"""The job and the lines that a reader wants, and how records are found, filtered and merged by time in bytes of whole
records, without parsing each one. Pure, except that `since` is read by the clock."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from typing_extensions import Self  # of the standard library from Python 3.11 on

from client_lib.errors import InvalidRequest
from client_lib.spec.paths import Position, parse_cursor
from client_lib.spec.states import Reason, State
from client_lib.worker.format import METRICS, RANK, STREAMS, pattern

MAX_TAIL = 1_000_000
MAX_CONTEXT = 1000
MAX_EXPRESSION = 1000
Filter = Callable[[bytes], bytes]
STAMP = 27  # bytes
_METRICS = f" {METRICS} ".encode()
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True)
class LoggedJob:
    """The place of a job's logs (`server_stub.files.job_dirs.log_dir`), and its state."""

    job_id: str
    job_dir: Path
    n_workers: int
    attempt: int
    """The newest, from 1; its directories may not exist yet."""
    version: int
    state: State
    reason: Reason
    message: str


def _known_stream(name: str) -> str:
    if name not in STREAMS:
        raise ValueError(f"is unknown; there are: {', '.join(STREAMS)}")
    return name


_Since = Annotated[str, AfterValidator(lambda text: parse_since(text, datetime.now(timezone.utc)))]
_Cursor = Annotated[
    dict[Position, int],
    BeforeValidator(lambda given: parse_cursor(given) if isinstance(given, str) else given),
    WithJsonSchema({"type": "string"}),
]


def _as_list(schema: dict[str, Any]) -> None:
    """Describe a set as a list: a value that is given twice is accepted."""
    schema.pop("uniqueItems")


class LogQuery(BaseModel):
    """The lines that a reader wants: the parameters of `GET /jobs/{name}/logs`.

    A value that can't be read, and two fields that exclude each other, raise pydantic's ValidationError; it holds the
    InvalidRequest for the client.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    follow: bool = Field(False, description="Stay until the job is final and every line was sent.")
    cursor: _Cursor = Field(default_factory=dict, description="Continue here: attempt.worker:offset, joined by commas.")
    """If it is not empty, an earlier answer has applied `tail`."""
    before: _Cursor | None = Field(
        None, description="End here, at a cursor; with `tail` the page before it. Without `follow`, `grep`."
    )
    """A log that it lacks ends at its beginning."""
    tail: int | None = Field(None, ge=0, le=MAX_TAIL, description="Begin with this many last lines.")
    since: _Since | None = Field(None, description="RFC 3339, or how long ago: 90, 30s, 10m, 2h, 1d.")
    """Once read, a time stamp (client_lib.worker.format)."""
    ranks: frozenset[Annotated[int, Field(ge=0)]] = Field(
        frozenset(), alias="rank", description="Only these ranks.", json_schema_extra=_as_list
    )
    """Empty: every rank, and the lines of no rank."""
    streams: frozenset[Annotated[str, AfterValidator(_known_stream)]] = Field(
        frozenset(), alias="stream", description="Only these streams.", json_schema_extra=_as_list
    )
    attempt: int | None = Field(None, ge=1, description="Only this attempt; default: all, in order.")
    timestamps: bool = Field(False, description="Text: the time before each line.")
    grep: str | None = Field(
        None, description="Only lines with this regular expression; without `follow` and `cursor`."
    )
    context: int = Field(0, ge=0, le=MAX_CONTEXT, description="With `grep`: lines of the same rank before and after.")

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.grep is not None:
            try:
                if len(self.grep) > MAX_EXPRESSION:
                    raise ValueError(f"it is longer than {MAX_EXPRESSION} characters")
                re.compile(self.grep)
            except (ValueError, re.error, OverflowError, RecursionError) as error:
                raise InvalidRequest(f"grep={self.grep[:100]!r} is not a regular expression: {error}") from error
            if self.follow or self.cursor:
                raise InvalidRequest("grep searches the lines that there are: it takes no follow and no cursor")
        if self.before is not None and (self.follow or self.grep is not None):
            raise InvalidRequest("before reads older lines: it takes no follow and no grep")
        return self


def parse_since(text: str, now: datetime) -> str:
    """The stamp that `text` means: an RFC 3339 time, or how long ago (`90`, `30s`, `10m`, `2h`, `1d`).

    A time without an offset is UTC. Raises InvalidRequest.
    """
    duration = _DURATION.fullmatch(text.strip())
    try:
        if duration:
            time = now - timedelta(seconds=float(duration[1]) * _SECONDS[duration[2]])
        else:
            time = datetime.fromisoformat(text.strip().replace("Z", "+00:00").replace("z", "+00:00"))
            time = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        return time.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"since={text!r} is neither a time nor a duration",
            hint="write 2026-11-21T10:58:55Z, or how long ago: 30s, 10m, 2h, 1d",
        ) from error


class Block(NamedTuple):
    """Consecutive whole records of one worker's log, all of one segment."""

    start: int
    data: bytes

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.start + len(self.data)


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


def merge(blocks: dict[Position, Block]) -> Iterator[tuple[Position, Block]]:
    """Parts of the blocks, oldest first, until one of them is used up; `blocks` keeps what is left. Call it again with
    the next block of that log, if it has one. Records of equal time are ordered by position."""
    heap = [(time_of(block.data), position, 0) for position, block in blocks.items()]
    heapify(heap)
    while heap:
        (_, position, at), others = heap[0], heap[1:3]
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


def _end_before(data: bytes, at: int, position: Position, other: tuple[bytes, Position, int]) -> int:
    """The end of the records from `at` on that precede the record `other` of another log. Steps that double and a
    bisection find short and long runs quickly. If times fall because a clock was set back, there may be several such
    ends; the result is one of them."""

    def is_late(begin: int) -> bool:
        return (time_of(data, begin), position) > other[:2]

    last, step = last_record(data), 1
    if not is_late(last):
        return len(data)
    while at + step < last and not is_late(data.find(b"\n", at + step) + 1):
        at, step = at + step, 2 * step
    places = range(at, min(at + step, last - 1))
    at += bisect_left(places, True, key=lambda place: is_late(data.find(b"\n", place) + 1))
    return data.find(b"\n", at) + 1
