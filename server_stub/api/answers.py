"""How answers look: JSON texts as they are, and every error as an ErrorBody with an honest status."""

from __future__ import annotations

import json
from http import HTTPStatus

from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from client_lib.errors import ClientLibError, InvalidRequest, NotFound, ServerError, Unauthorized, Unavailable

JSON = "application/json"


class _Text(Response):
    """What Starlette's does for every kind of content and server, for one."""

    def __init__(self, content: bytes, status: int) -> None:
        self.status_code, self.body, self.background = status, content, None
        self.raw_headers = [(b"content-length", b"%d" % len(content)), (b"content-type", JSON.encode())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  the base's signature
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def json_text(content: bytes, status: int = 200) -> Response:
    """A text that is JSON already: stored jobs are sent as they lie in the database."""
    return _Text(content, status)


def json_model(model: BaseModel, status: int = 200) -> Response:
    return json_text(model.model_dump_json().encode(), status)


def error(problem: ClientLibError) -> Response:
    """Status and body of one of our errors."""
    response = json_text(json.dumps(problem.body()).encode(), problem.http_status)
    if isinstance(problem, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(problem, Unavailable):
        response.headers["Retry-After"] = "1"
    elif problem.http_status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        response.headers["Connection"] = "close"  # what is still on its way is not read
    return response


def routing_error(status: int, method: str, path: str) -> Response:
    """What the router refuses, in our words: 404 for a path that is none, 405 for a method that a path has not."""
    if status == HTTPStatus.NOT_FOUND:
        return error(NotFound(f"there is nothing at {path}", hint="the paths of this API are in /openapi.json"))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response = error(InvalidRequest(f"{path} does not know the method {method}"))
    else:
        response = error(ServerError(HTTPStatus(status).phrase))
    response.status_code = status
    return response


def internal_error(request_id: str) -> Response:
    """An exception that nobody expected: its traceback is in the server's log under the id, not in the answer."""
    return error(ServerError("the server failed over this request", hint=f"its log says why, under {request_id}"))
