"""`GET /public/v2/jobs/{name}/logs`: text, chronological, open until the job has ended."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import PlainTextResponse, Response

from client_lib.errors import NotFound
from client_lib.spec.mlspace import in_queue
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from client_lib.worker.format import LAUNCHER
from server_stub.http.api.context import CurrentUser, Parts
from server_stub.http.api.logs import LogResponse
from server_stub.http.api.public_v2.jobs import JOBS
from server_stub.http.api.public_v2.text import STREAMS, PlatformText, line_by_line
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
    parts: Parts,
    user: CurrentUser,
    name: str,
    region: Annotated[str, Query(description="Required; any value is accepted.")],
    tail: Annotated[int, Query(ge=0, description="Begin with this many last lines; 0: with the first line.")] = 0,
    verbose: Annotated[bool, Query(description="The time before each line, and lines of the launcher.")] = True,
    x_client_library: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The output of the processes of a job; for a queued job one line that it is in the queue.

    Platform: the answer stays open while the job runs, and when it ends the job's status is a final one: the platform's
    command line asks again at once, without a pause, while it reads `running`.
    """
    del region  # Platform: 422 without it
    try:
        info = JobInfo.model_validate_json((await parts.service.get(user, name)).json)
    except NotFound as error:
        raise NotFound("not found") from error
    if info.state is State.PENDING:
        return PlainTextResponse(in_queue(name) + "\n")
    renderer = PlatformText(name, info.spec.type, verbose=verbose)
    job = await parts.service.find_logs(user, name)
    pieces = stream(parts.hub, job, _query(tail, verbose), renderer)
    if x_client_library.startswith("mls"):  # the platform's own clients
        pieces = line_by_line(pieces)
    return LogResponse(pieces, TEXT)


def _query(tail: int, verbose: bool) -> LogQuery:
    streams = STREAMS | ({LAUNCHER} if verbose else frozenset())
    return parse_query(now=datetime.now(timezone.utc), follow=True, tail=tail or None, streams=streams)
