"""The three forms in which logs leave the server. Pure: records and facts in, bytes out; one
renderer per answer.

Frames (client_lib.spec.paths) carry records as the files have them. Text is for people and pipes.
It has no cursor, no states and no heartbeat, which would be a line: a proxy must not close a silent
connection. Lines are whole, up to HELD_MAX, and of several lines of progress in a row it has the
last one. NDJSON is for other programs:
it has an object for each record, and objects with `event` for all else; the newest `position` of
each log, joined by commas, is the cursor.
"""

# ruff: noqa: ARG002  # each form of an answer uses some of the arguments

import json
import re
from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring as quoted
from typing import NamedTuple, Protocol

from client_lib.launcher_protocol.record import GOES_ON, NO_RANK, RECORD
from client_lib.launcher_protocol.whole_lines import WholeLines
from client_lib.spec.paths import Position, format_cursor
from server_stub.logs.records import LoggedJob

HELD_MAX = 8 * 2**20
"""Characters of lines without an end that an answer as text holds, of all ranks together. A longer
line is given in pieces."""
FIELDS = re.compile(RECORD)
"""In JSON only the text of these groups needs quotes."""


class Renderer(Protocol):
    def records(self, position: Position, end: int, data: bytes) -> bytes:
        """`data` may be empty: nothing up to `end` was chosen."""
        ...

    def gap(self, position: Position, missing: int) -> bytes: ...
    def end(self, job: LoggedJob) -> bytes: ...

    def state(self, job: LoggedJob, cursor: Mapping[Position, int]) -> bytes:
        return b""

    def ping(self) -> bytes:
        return b""


def facts(job: LoggedJob) -> dict[str, object]:
    return {
        "state": str(job.state),
        "reason": str(job.reason),
        "message": job.message,
        "attempt": job.attempt,
    }


class Frames:
    def records(self, position: Position, end: int, data: bytes) -> bytes:
        return b"@log %d %d %d %d\n%b" % (*position, end, len(data), data)

    def gap(self, position: Position, missing: int) -> bytes:
        return b"@gap %d %d %d\n" % (*position, missing)

    def state(self, job: LoggedJob, cursor: Mapping[Position, int]) -> bytes:
        skipped = {"cursor": format_cursor(cursor)} if cursor else {}
        return b"@state %b\n" % json.dumps(facts(job) | skipped).encode()

    def ping(self) -> bytes:
        return b"@ping\n"

    def end(self, job: LoggedJob) -> bytes:
        return b"@end %b\n" % json.dumps(facts(job)).encode()


Source = tuple[Position, str, str]
"""The log, rank and stream of a line."""


class _Origin(NamedTuple):
    time: str
    source: Source


class Text(Renderer):
    """`[rank] text`, or the text alone if the reader wants one rank. A line over HELD_MAX has `…`
    where it continues. Lines of no rank have the name of their stream instead, and their worker if
    it is not the first: `[train.log]`, `[train.log 1]`."""

    def __init__(self, *, prefix: bool, timestamps: bool) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._whole = WholeLines[Source, _Origin, str](HELD_MAX)
        self._going_on: set[Source] = set()

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        lines = []
        for _, time, rank, stream, kind, text in FIELDS.findall(data.decode("utf-8", "replace")):
            source = (position, rank, stream)
            lines += self._whole.add(source, _Origin(time, source), kind, text)
        return self._rendered(lines)

    def _rendered(self, lines: Iterable[tuple[_Origin, str, str]]) -> bytes:
        return "".join(self._line(origin, kind, text) for origin, kind, text in lines).encode()

    def _line(self, origin: _Origin, kind: str, text: str) -> str:
        position, rank, stream = origin.source
        before = "…" if origin.source in self._going_on else ""
        after = "…" if kind == GOES_ON else ""
        (self._going_on.add if after else self._going_on.discard)(origin.source)
        place = f"{stream} {position[1]}" if position[1] else stream
        who = f"[{place if rank == NO_RANK else rank}] " if self._prefix else ""
        return f"{origin.time + ' ' if self._timestamps else ''}{who}{before}{text}{after}\n"

    def gap(self, position: Position, missing: int) -> bytes:
        return f"… {missing} lines of worker {position[1]} are gone …\n".encode()

    def end(self, job: LoggedJob) -> bytes:
        return self._rendered(self._whole.close())


class NdJson:
    """One object per line. The last record of a part has the `position` after it."""

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        reached = format_cursor({position: end})
        place = f'"attempt":{position[0]},"worker":{position[1]}'
        objects = [
            f'{{"time":"{time}",{place},"rank":{rank if rank != NO_RANK else "null"},"seq":{seq},'
            f'"stream":"{stream}","kind":"{kind}","text":{quoted(text)}}}\n'
            for seq, time, rank, stream, kind, text in FIELDS.findall(
                data.decode("utf-8", "replace")
            )
        ]
        if not objects:
            return _event("position", position=reached)
        objects[-1] = f'{objects[-1][:-2]},"position":"{reached}"}}\n'
        return "".join(objects).encode()

    def gap(self, position: Position, missing: int) -> bytes:
        return _event("gap", attempt=position[0], worker=position[1], lines=missing)

    def state(self, job: LoggedJob, cursor: Mapping[Position, int]) -> bytes:
        return _event("state", **facts(job))

    def ping(self) -> bytes:
        return _event("ping")

    def end(self, job: LoggedJob) -> bytes:
        return _event("end", **facts(job))


def _event(name: str, **fields: object) -> bytes:
    return f"{json.dumps({'event': name} | fields)}\n".encode()
