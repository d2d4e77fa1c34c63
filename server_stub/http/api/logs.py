"""GET /jobs/{name}/logs: frames, text or NDJSON by `Accept`; see server_stub.logs for their content."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, NonNegativeInt

from client_lib.spec.paths import JOBS, LOG_FRAMES, NDJSON
from client_lib.worker.format import STREAMS
from server_stub.http.api.answers import LiveResponse
from server_stub.http.api.context import CurrentUser, Owner, Parts
from server_stub.logs import LoggedJob, LogHub, LogQuery
from server_stub.logs import stream as begin_stream
from server_stub.logs.records import MAX_CONTEXT, MAX_TAIL, parse_since, read_cursor
from server_stub.logs.render import Frames, NdJson, Renderer, Text
from server_stub.logs.search import answer_of, search
from server_stub.logs.stream import logs

router = APIRouter()


def _known_stream(name: str) -> str:
    if name not in STREAMS:
        raise ValueError(f"is unknown; there are: {', '.join(STREAMS)}")
    return name


_Stream = Annotated[str, AfterValidator(_known_stream)]


async def log_hub(parts: Parts) -> LogHub:
    return parts.hub


async def job_logs(parts: Parts, user: CurrentUser, name: str, owner: Owner = None) -> LoggedJob:
    """The logs of a job that this user may read. Raises NotFound."""
    return await parts.service.lookup.find_logs(user, name, owner)


@router.get(
    f"{JOBS}/{{name}}/logs",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The log. Frames, for readers that resume, are described in client_lib.spec.paths. "
            "Frames and NDJSON carry a heartbeat every 15 s; text has none: each byte would be part of a line.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                NDJSON: {"schema": {"type": "string"}},
                LOG_FRAMES: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def get_logs(
    hub: Annotated[LogHub, Depends(log_hub)],
    job: Annotated[LoggedJob, Depends(job_logs)],
    accept: Annotated[str, Header(include_in_schema=False)] = "",
    follow: Annotated[bool, Query(description="Stay until the job is final and every line was sent.")] = False,
    cursor: Annotated[str, Query(description="Continue here: attempt.worker:offset, joined by commas.")] = "",
    before: Annotated[
        str | None,
        Query(description="End here, at a cursor; with `tail` the page before it. Without `follow`, `grep`."),
    ] = None,
    tail: Annotated[int | None, Query(ge=0, le=MAX_TAIL, description="Begin with this many last lines.")] = None,
    since: Annotated[str | None, Query(description="RFC 3339, or how long ago: 90, 30s, 10m, 2h, 1d.")] = None,
    rank: Annotated[list[NonNegativeInt], Query(description="Only these ranks.")] = [],  # noqa: B006  # FastAPI copies it
    stream: Annotated[list[_Stream], Query(description="Only these streams.")] = [],  # noqa: B006
    attempt: Annotated[int | None, Query(ge=1, description="Only this attempt; default: all, in order.")] = None,
    timestamps: Annotated[bool, Query(description="Text: the time before each line.")] = False,
    grep: Annotated[
        str | None, Query(description="Only lines with this regular expression; without `follow` and `cursor`.")
    ] = None,
    context: Annotated[
        int, Query(ge=0, le=MAX_CONTEXT, description="With `grep`: lines of the same rank before and after.")
    ] = 0,
) -> StreamingResponse:
    """The lines of the job so far, and with `follow` each new line as it is written."""
    query = LogQuery(
        follow=follow,
        cursor=read_cursor(cursor),
        before=None if before is None else read_cursor(before),
        tail=tail,
        since=None if since is None else parse_since(since, datetime.now(timezone.utc)),
        ranks=frozenset(rank),
        streams=frozenset(stream),
        attempt=attempt,
        timestamps=timestamps,
        grep=grep,
        context=context,
    )
    media_type, renderer = _renderer(accept, query)
    if grep is None:
        pieces = begin_stream(hub, job, query, renderer)
    else:
        pieces = answer_of(job, await search(logs(job, query), query), renderer)
    return LiveResponse(pieces, media_type)


def _renderer(accept: str, query: LogQuery) -> tuple[str, Renderer]:
    """The form that `accept` asks for; text where it names no other form."""
    if LOG_FRAMES in accept:
        return LOG_FRAMES, Frames()
    if NDJSON in accept:
        return NDJSON, NdJson()
    return "text/plain; charset=utf-8", Text(prefix=len(query.ranks) != 1, timestamps=query.timestamps)
