"""The three forms in which logs leave the server. Pure: records and facts in, bytes out; one renderer per answer.

Frames (client_lib.spec.log_stream) carry records as they lie in the files. Text is for people and pipes: no cursor, no
states; the last progress of a run of them only. NDJSON is for other programs: one object per record, and objects with
`event` for what is no record; the newest `position` of each log, joined by commas, is the cursor.
"""

# ruff: noqa: ARG002  # each form of an answer leaves out some of what it is told

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Protocol

from client_lib.spec.log_stream import Position, format_cursor
from client_lib.worker.format import GOES_ON, PROGRESS, Record, parse
from server_stub.logs.source import JobLogs


class Renderer(Protocol):
    def records(self, position: Position, end: int, data: bytes) -> bytes:
        """`data` may be empty: nothing up to `end` was chosen."""
        ...

    def gap(self, position: Position, missing: int) -> bytes: ...
    def state(self, job: JobLogs, cursor: Mapping[Position, int]) -> bytes: ...
    def ping(self) -> bytes: ...
    def end(self, job: JobLogs) -> bytes: ...


def facts(job: JobLogs) -> dict[str, object]:
    return {"state": str(job.state), "reason": str(job.reason), "message": job.message, "attempt": job.attempt}


class Frames:
    """Bytes pass through."""

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        return b"@log %d %d %d %d\n%b" % (*position, end, len(data), data)

    def gap(self, position: Position, missing: int) -> bytes:
        return b"@gap %d %d %d\n" % (*position, missing)

    def state(self, job: JobLogs, cursor: Mapping[Position, int]) -> bytes:
        skipped = {"cursor": format_cursor(cursor)} if cursor else {}
        return b"@state %b\n" % json.dumps(facts(job) | skipped).encode()

    def ping(self) -> bytes:
        return b"@ping\n"

    def end(self, job: JobLogs) -> bytes:
        return b"@end %b\n" % json.dumps(facts(job)).encode()


class Text:
    """`[rank] text`, or the text alone where one rank was asked for; `…` where a line goes on."""

    def __init__(self, *, prefix: bool, timestamps: bool) -> None:
        self._prefix = prefix
        self._timestamps = timestamps
        self._progress: dict[tuple[Position, int | None, str], bytes] = {}
        self._going_on: set[tuple[Position, int | None, str]] = set()

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        return b"".join([self._record(position, parse(line)) for line in data.split(b"\n")[:-1]])

    def gap(self, position: Position, missing: int) -> bytes:
        return f"… {missing} lines of worker {position[1]} are gone …\n".encode()

    def state(self, job: JobLogs, cursor: Mapping[Position, int]) -> bytes:
        return b""

    def ping(self) -> bytes:
        return b""

    def end(self, job: JobLogs) -> bytes:
        return b"".join(self._progress.values())

    def _record(self, position: Position, record: Record) -> bytes:
        key = (position, record.rank, record.stream)
        goes_on = record.kind == GOES_ON
        stamp = record.time + " " if self._timestamps else ""
        rank = "" if not self._prefix else "[%s] " % ("-" if record.rank is None else record.rank)
        before = "…" if key in self._going_on else ""
        line = f"{stamp}{rank}{before}{record.text}{'…' if goes_on else ''}\n".encode()
        (self._going_on.add if goes_on else self._going_on.discard)(key)
        if record.kind == PROGRESS:
            self._progress[key] = line
            return b""
        return self._progress.pop(key, b"") + line


class NdJson:
    """One object per line. The last record of a part says in `position` where to go on behind it."""

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        lines = data.split(b"\n")[:-1]
        objects = [_fields(position, parse(line)) for line in lines]
        reached = {"position": format_cursor({position: end})}
        if not objects:
            return _event("position", **reached)
        objects[-1] |= reached
        return "".join(f"{json.dumps(fields, ensure_ascii=False)}\n" for fields in objects).encode()

    def gap(self, position: Position, missing: int) -> bytes:
        return _event("gap", attempt=position[0], worker=position[1], lines=missing)

    def state(self, job: JobLogs, cursor: Mapping[Position, int]) -> bytes:
        return _event("state", **facts(job))

    def ping(self) -> bytes:
        return _event("ping")

    def end(self, job: JobLogs) -> bytes:
        return _event("end", **facts(job))


def _fields(position: Position, record: Record) -> dict[str, str | int | None]:
    seq, time, rank, stream, kind, text = record
    place = {"attempt": position[0], "worker": position[1], "rank": rank}
    return {"time": time} | place | {"seq": seq, "stream": stream, "kind": kind, "text": text}


def _event(name: str, **fields: object) -> bytes:
    return f"{json.dumps({'event': name} | fields)}\n".encode()
