"""How the platform writes logs: `[1,<rank>]<stdout>:` before each line, the time before that when `verbose`. Pure.

2026-11-21T14:54:31.000001Z [1,0]<stdout>:epoch 1
"""

# ruff: noqa: ARG002  # a text leaves out some of what it is told

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import NamedTuple

from client_lib.spec.job import JobType
from client_lib.spec.log_stream import Position
from client_lib.worker.format import GOES_ON, LAUNCHER, PROGRESS
from server_stub.api.public_v2.translate import over
from server_stub.logs.render import FIELDS
from server_stub.logs.source import JobLogs

STREAMS = frozenset({"stdout", "stderr"})
"""Platform: what the processes print. A train.log is a file there, and so are its lines not in the logs."""
SILENCE_S = 240.0
"""Platform: its clients take a connection for dead after 600 s without a byte."""
_HELD_MAX = 2**20


class _Source(NamedTuple):
    position: Position
    rank: str
    stream: str


class PlatformText:
    """A Renderer of server_stub.logs; one per answer."""

    def __init__(self, name: str, job_type: str, *, verbose: bool) -> None:
        self._name, self._verbose = name, verbose
        self._tagged = job_type != JobType.PYTORCH_ELASTIC  # Platform: that type runs without mpirun, which tags
        self._progress: dict[_Source, str] = {}
        self._begun: dict[_Source, str] = {}
        self._spoke_at = monotonic()

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        lines = [self._line(position, *found) for found in FIELDS.findall(data.decode("utf-8", "replace"))]
        return self._said("".join(lines))

    def _line(self, position: Position, _: str, time: str, rank: str, stream: str, kind: str, text: str) -> str:
        """What a record adds: nothing while its line goes on or is drawn over by the next."""
        source = _Source(position, rank, stream)
        text = self._begun.pop(source, "") + text
        if kind == GOES_ON and len(text) < _HELD_MAX:
            self._begun[source] = text
            return ""
        line = self._spelled(time, source, text)
        before = self._progress.pop(source, "")
        if kind == PROGRESS:
            self._progress[source] = line
            return ""
        return before + line

    def _spelled(self, time: str, source: _Source, text: str) -> str:
        when = f"{time} " if self._verbose else ""
        tag = f"[1,{source.rank}]<{source.stream}>:" if self._tagged and source.stream != LAUNCHER else ""
        return f"{when}{tag}{text}\n"

    def gap(self, position: Position, missing: int) -> bytes:
        return self._said(f"... {missing} lines of worker {position[1]} are gone ...\n")

    def state(self, job: JobLogs, cursor: Mapping[Position, int]) -> bytes:
        return b""

    def ping(self) -> bytes:
        return self._said("\n") if monotonic() - self._spoke_at > SILENCE_S else b""

    def end(self, job: JobLogs) -> bytes:
        """Lines that were begun, the last progress, and why the job ended if it did not succeed."""
        begun = [self._spelled("", source, text) for source, text in self._begun.items()]
        return "".join(
            [*begun, *self._progress.values(), over(job.state, job.reason, self._name, job.message)]
        ).encode()

    def _said(self, text: str) -> bytes:
        if text:
            self._spoke_at = monotonic()
        return text.encode()


async def line_by_line(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes, a line in each piece.

    Platform: its clients cut what arrives into pieces of 256 bytes at most, print each on a line of its own, and count
    the pieces to find their place after a lost connection. So lines stay whole, and the count is the same every time.
    """
    async with aclosing(pieces):
        async for piece in pieces:
            for line in piece.splitlines(keepends=True):
                yield line
