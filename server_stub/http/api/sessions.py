"""`/jobs/{name}/sessions`: a command, a terminal or a port of a running worker, for `client-lib exec`, `shell` and
`port-forward`.

A session is two streams of frames (client_lib.worker.session_frames): the answer to its POST, and the bodies of PUTs.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import StreamingResponse

from client_lib.spec.request import SessionRequest
from client_lib.spec.wire import Answer
from server_stub.http.api.answers import BYTES, LiveResponse, raw_answer, raw_body
from server_stub.http.api.context import CurrentUser, JsonBody, Owner, Parts
from server_stub.http.api.jobs import JOB

OFFSET_MAX = 2**53
SESSION = f"{JOB}/sessions/{{session}}"

router = APIRouter()

_Id = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="Chosen by the client, at random.")]
Offset = Annotated[int, Query(ge=0, le=OFFSET_MAX, description="Bytes sent before; repeated ones are dropped.")]


@router.post(SESSION, response_class=StreamingResponse, responses=raw_answer(BYTES))
async def begin_session(
    parts: Parts,
    user: CurrentUser,
    name: str,
    session: _Id,
    wanted: Annotated[SessionRequest, JsonBody],
    owner: Owner = None,
) -> StreamingResponse:
    """Begin a session in a worker of the running job, for its owner and admins. The session ends with this answer."""
    return LiveResponse(await parts.service.sessions.begin(user, name, session, wanted, owner), BYTES)


@router.put(SESSION, openapi_extra=raw_body(BYTES))
async def put_session(
    request: Request, parts: Parts, user: CurrentUser, name: str, session: _Id, offset: Offset = 0
) -> Answer:
    """Send bytes to a session of this user."""
    del name
    request.scope["routine"] = True
    await parts.service.sessions.take(user, session, offset, await request.body())
    return Answer(message="the bytes were passed on")
