"""`GET /public/v2/jobs/{name}/logs`: text, chronological, open until the job has ended.

A line has the platform's form: `[1,<rank>]<stdout>:`, before it the time if `verbose`:

    2026-11-21T14:54:31.000001Z [1,0]<stdout>:epoch 1
"""

# ruff: noqa: ARG002  # arguments of the Renderer protocol that this form does not need

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Header, Query
from starlette.responses import PlainTextResponse, Response

from client_lib.spec.job import JobType
from client_lib.spec.mlspace import in_queue
from client_lib.spec.paths import Position
from client_lib.spec.states import State
from client_lib.worker.format import GOES_ON, LAUNCHER, PROGRESS
from server_stub.http.api.answers import LiveResponse
from server_stub.http.api.context import CurrentUser, Parts
from server_stub.http.api.public_v2.jobs import JOBS, find_job
from server_stub.http.api.public_v2.translate import closing_line
from server_stub.logs import LoggedJob, LogQuery, stream
from server_stub.logs.records import MAX_TAIL
from server_stub.logs.render import FIELDS

STREAMS = frozenset({"stdout", "stderr"})
"""Platform: the output of processes. Lines of a train.log are not in its logs."""
SILENCE_S = 240.0
"""Platform: its clients give up a connection after 600 s without a byte."""
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
        self._sent_at = monotonic()

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        lines = [self._line(position, *found) for found in FIELDS.findall(data.decode("utf-8", "replace"))]
        return self._sent("".join(lines))

    def _line(self, position: Position, _: str, time: str, rank: str, stream: str, kind: str, text: str) -> str:
        """The text of a record; empty while its line is incomplete or a progress bar that may be overwritten."""
        source = _Source(position, rank, stream)
        text = self._begun.pop(source, "") + text
        if kind == GOES_ON and len(text) < _HELD_MAX:
            self._begun[source] = text
            return ""
        line = self._written(time, source, text)
        before = self._progress.pop(source, "")
        if kind == PROGRESS:
            self._progress[source] = line
            return ""
        return before + line

    def _written(self, time: str, source: _Source, text: str) -> str:
        when = f"{time} " if self._verbose else ""
        tag = f"[1,{source.rank}]<{source.stream}>:" if self._tagged and source.stream != LAUNCHER else ""
        return f"{when}{tag}{text}\n"

    def gap(self, position: Position, missing: int) -> bytes:
        return self._sent(f"... {missing} lines of worker {position[1]} are gone ...\n")

    def state(self, job: LoggedJob, cursor: Mapping[Position, int]) -> bytes:
        return b""

    def ping(self) -> bytes:
        return self._sent("\n") if monotonic() - self._sent_at > SILENCE_S else b""

    def end(self, job: LoggedJob) -> bytes:
        """Incomplete lines, the last progress bars, and the reason if the job did not succeed."""
        begun = [self._written("", source, text) for source, text in self._begun.items()]
        return "".join(
            [*begun, *self._progress.values(), closing_line(job.state, job.reason, self._name, job.message)]
        ).encode()

    def _sent(self, text: str) -> bytes:
        if text:
            self._sent_at = monotonic()
        return text.encode()


async def line_by_line(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same bytes, one line in each piece.

    Platform: its clients cut the received bytes into pieces of at most 256 bytes, print each on a line, and count the
    pieces to find their position after a lost connection. With one line in each piece the count is always the same.
    """
    async with aclosing(pieces):
        async for piece in pieces:
            for line in piece.splitlines(keepends=True):
                yield line


TEXT = "text/plain; charset=utf-8"
"""Platform: without the charset its clients read UTF-8 as Latin-1."""

router = APIRouter()


@router.get(
    f"{JOBS}/{{name}}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_logs(
    parts: Parts,
    user: CurrentUser,
    name: str,
    region: Annotated[str, Query(description="Required; any value is accepted.")],
    tail: Annotated[
        int, Query(ge=0, le=MAX_TAIL, description="Begin with this many last lines; 0: with the first line.")
    ] = 0,
    verbose: Annotated[bool, Query(description="The time before each line, and lines of the launcher.")] = True,
    x_client_library: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The output of the processes of a job; for a queued job one line that it is in the queue.

    Platform: the answer stays open while the job runs, and when it ends the job's status is a final one: the platform's
    command line asks again at once, without a pause, while it reads `running`.
    """
    del region  # Platform: 422 without it
    info = await find_job(parts, user, name)
    if info.state is State.PENDING:
        return PlainTextResponse(in_queue(name) + "\n")
    renderer = PlatformText(name, info.spec.type, verbose=verbose)
    job = await parts.service.lookup.find_logs(user, name)
    streams = STREAMS | ({LAUNCHER} if verbose else frozenset())
    pieces = stream(parts.hub, job, LogQuery(follow=True, tail=tail or None, streams=streams), renderer)
    if x_client_library.startswith("mls"):  # the platform's own clients
        pieces = line_by_line(pieces)
    return LiveResponse(pieces, TEXT)
