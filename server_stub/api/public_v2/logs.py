"""`GET /public/v2/jobs/{name}/logs`: text, chronological, open until the job has ended."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Send

from client_lib.errors import NotFound
from client_lib.spec.mlspace import in_queue
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from client_lib.worker.format import LAUNCHER
from server_stub.api.context import context, user
from server_stub.api.logs import STREAM_HEADERS
from server_stub.api.public_v2.jobs import JOBS
from server_stub.api.public_v2.text import STREAMS, PlatformText, line_by_line
from server_stub.logs import LogQuery, parse_query, stream

TEXT = "text/plain; charset=utf-8"
"""Platform: without the charset its clients read UTF-8 as Latin-1."""

router = APIRouter()


@router.get(
    f"{JOBS}/{{name}}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_logs(
    request: Request,
    name: str,
    region: Annotated[str, Query(description="Needed, and any will do.")],
    tail: Annotated[int, Query(ge=0, description="Begin with the last so many lines; 0: with the first.")] = 0,
    verbose: Annotated[bool, Query(description="The time before each line, and what the launcher says.")] = True,
) -> Response:
    """What the processes of a job print. Of a job that waits: that it does, and no more.

    Platform: the answer stays open while the job runs, and when it ends the job's status is a final one: the platform's
    command line asks again at once, without a pause, while it reads `running`.
    """
    del region  # Platform: 422 without it
    parts, asking = context(request), user(request)
    try:
        info = JobInfo.model_validate_json((await parts.service.get(asking, name)).json)
    except NotFound as error:
        raise NotFound("not found") from error
    if info.state is State.PENDING:
        return PlainTextResponse(in_queue(name) + "\n")
    renderer = PlatformText(name, info.spec.type, verbose=verbose)
    job = await parts.service.find_logs(asking, name)
    pieces = stream(parts.hub, job, _query(tail, verbose), renderer)
    return _Stream(_cut(request, pieces), media_type=TEXT, headers=STREAM_HEADERS)


class _Stream(StreamingResponse):
    """Closes its stream when the reader vanishes, and so frees its place among the followers."""

    def __init__(self, content: AsyncGenerator[bytes, None], *, media_type: str, headers: dict[str, str]) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._stream = content

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._stream):
            await super().stream_response(send)


def _query(tail: int, verbose: bool) -> LogQuery:
    streams = STREAMS | ({LAUNCHER} if verbose else frozenset())
    return parse_query(now=datetime.now(timezone.utc), follow=True, tail=tail or None, streams=streams)


def _cut(request: Request, pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Line by line for the platform's own clients, which say who they are."""
    theirs = request.headers.get("x-client-library", "").startswith("mls")
    return line_by_line(pieces) if theirs else pieces
