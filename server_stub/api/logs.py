"""GET /jobs/{name}/logs: frames, text or NDJSON by `Accept`; see server_stub.logs for what they hold."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from starlette.types import Send

from client_lib.spec.paths import JOBS, LOG_FRAMES, NDJSON
from server_stub.api.operation import check_query
from server_stub.logs import JobLogs, LogHub, LogQuery, Outlet, parse_query, stream
from server_stub.logs.render import Frames, NdJson, Renderer, Text

FindLogs = Callable[[Request, str, str | None], Awaitable[JobLogs]]
"""(request, job name, owner) -> the job, for a user who may read it. Raises Unauthorized, NotFound."""

STREAM_HEADERS = {
    "Cache-Control": "no-store, no-transform",  # no-transform: a proxy that compresses waits for more bytes
    "X-Accel-Buffering": "no",  # nginx
    "X-Content-Type-Options": "nosniff",
}


def logs_router(hub: Callable[[], LogHub], find_logs: FindLogs) -> APIRouter:
    """The route. `hub` is asked at each request, as it is made when the server starts."""
    router = APIRouter()

    @router.get(f"{JOBS}/{{name}}/logs", response_class=StreamingResponse, responses=_RESPONSES)
    async def logs(
        request: Request,
        name: str,
        follow: Annotated[bool, Query(description="stay until the job is final and every line is out")] = False,
        cursor: Annotated[str, Query(description="go on here: attempt.worker:offset, joined by commas")] = "",
        tail: Annotated[int | None, Query(description="begin with the last so many lines")] = None,
        since: Annotated[str | None, Query(description="RFC 3339, or how long ago: 90, 30s, 10m, 2h, 1d")] = None,
        rank: Annotated[list[int], Query(description="only these ranks")] = [],  # noqa: B006  # FastAPI copies it
        stream: Annotated[list[str], Query(description="only these streams")] = [],  # noqa: B006
        attempt: Annotated[int | None, Query(description="only this one; default: all, in order")] = None,
        timestamps: Annotated[bool, Query(description="text: the time before each line")] = False,
        owner: Annotated[str | None, Query(description="another owner's job, for those who may see it")] = None,
    ) -> StreamingResponse:
        """The job's lines: what there are, and with `follow` each as it is written."""
        check_query(request, parameters)
        query = parse_query(
            now=datetime.now(timezone.utc),
            follow=follow,
            cursor=cursor,
            tail=tail,
            since=since,
            ranks=rank,
            streams=stream,
            attempt=attempt,
            timestamps=timestamps,
        )
        job = await find_logs(request, name, owner)
        return answer(hub(), job, query, request.headers.get("accept", ""))

    parameters = _query_of(router)
    return router


def _query_of(router: APIRouter) -> dict[str, str]:
    """Name -> meaning of what the one route of this router reads from the query."""
    (route,) = router.routes
    assert isinstance(route, APIRoute)
    return {field.alias: field.field_info.description or "" for field in route.dependant.query_params}


def answer(hub: LogHub, job: JobLogs, query: LogQuery, accept: str) -> StreamingResponse:
    """The streamed answer in the form that `accept` asks for; text where it asks for none of ours.

    Raises NotFound: there is no such attempt, or no such rank.
    """
    media_type, renderer = _renderer(accept, query)
    outlet = Outlet()
    content = stream(hub, job, query, renderer, outlet)
    return LogResponse(content, outlet, media_type=media_type, headers=STREAM_HEADERS)


class LogResponse(StreamingResponse):
    """Closes its stream when the reader vanishes, wherever it stood, and so frees its place among the followers."""

    def __init__(
        self, content: AsyncGenerator[bytes, None], outlet: Outlet, *, media_type: str, headers: dict[str, str]
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._stream = content
        self._outlet = outlet

    async def stream_response(self, send: Send) -> None:
        self._outlet.open(send)  # `live` uses it only behind the first piece, and so behind the head
        async with aclosing(self._stream):
            await super().stream_response(send)


def _renderer(accept: str, query: LogQuery) -> tuple[str, Renderer]:
    if LOG_FRAMES in accept:
        return LOG_FRAMES, Frames()
    if NDJSON in accept:
        return NDJSON, NdJson()
    return "text/plain; charset=utf-8", Text(prefix=len(query.ranks) != 1, timestamps=query.timestamps)


_RESPONSES: dict[int | str, dict[str, object]] = {
    200: {
        "description": "The log. Frames, for readers that resume, are described in client_lib.spec.log_stream. Frames "
        "and NDJSON carry a sign of life every 15 s; text has none: whatever is sent would be a line.",
        "content": {
            "text/plain": {"schema": {"type": "string"}},
            NDJSON: {"schema": {"type": "string"}},
            LOG_FRAMES: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
