"""The job and the lines that a reader wants, and the texts in which a request gives times and cursors. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.paths import Position, parse_cursor
from client_lib.spec.states import Reason, State

MAX_TAIL = 1_000_000
MAX_CONTEXT = 1000
MAX_EXPRESSION = 1000
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


@dataclass(frozen=True)
class LogQuery:
    """The lines that a reader wants."""

    follow: bool = False
    cursor: Mapping[Position, int] = field(default_factory=dict)
    """Offset at which each log continues. If it is not empty, an earlier answer has applied `tail`."""
    before: Mapping[Position, int] | None = None
    """Offset at which each log ends for this reader, 0 if it is missing; None: no such end."""
    tail: int | None = None
    """Begin with this many last lines of all chosen logs together. None: begin at the first line."""
    since: str | None = None
    """Begin at the first line with this time stamp (client_lib.worker.format) or a later one."""
    ranks: frozenset[int] = frozenset()
    """Empty: every rank, and the lines of no rank."""
    streams: frozenset[str] = frozenset()
    """Empty: every stream."""
    attempt: int | None = None
    """None: all attempts, one after the other."""
    timestamps: bool = False
    """Text only: the time before each line."""
    grep: str | None = None
    """Only lines with this regular expression (Python's `re`); see `search`."""
    context: int = 0
    """Number of lines of the same rank before and after each that `grep` finds."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest: `grep` is no regular expression, or two fields exclude each other."""
        if self.grep is not None:
            _check_expression(self.grep)
            if self.follow or self.cursor:
                raise InvalidRequest("grep searches the lines that there are: it takes no follow and no cursor")
        if self.before is not None and (self.follow or self.grep is not None):
            raise InvalidRequest("before reads older lines: it takes no follow and no grep")

    @property
    def filtered(self) -> bool:
        return bool(self.ranks or self.streams)


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


def _check_expression(text: str) -> None:
    try:
        if len(text) > MAX_EXPRESSION:
            raise ValueError(f"it is longer than {MAX_EXPRESSION} characters")
        re.compile(text)
    except (ValueError, re.error, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"grep={text[:100]!r} is not a regular expression: {error}") from error


def read_cursor(text: str) -> dict[Position, int]:
    """The offsets in a cursor. Raises InvalidRequest."""
    try:
        return parse_cursor(text)
    except ValueError as error:
        raise InvalidRequest(str(error), hint="pass the cursor as an earlier answer gave it, or none") from error
