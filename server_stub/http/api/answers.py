"""Responses: JSON texts as they are stored, and every error as an ErrorBody with its status."""

import asyncio
import errno
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from client_lib.errors import (
    ClientLibError,
    InvalidRequest,
    NotFound,
    ServerError,
    Unauthorized,
    Unavailable,
)
from client_lib.spec import paths
from client_lib.spec.refusals import refused
from client_lib.spec.wire import ErrorBody
from server_stub.files.job_dirs import OpenFile

log = logging.getLogger(__name__)

ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": ErrorBody,
        "description": "Any error: the client raises the class that `code` names.",
    }
}
ARCHIVE = "application/gzip"
BYTES = "application/octet-stream"
TAR = "application/x-tar"
_IDLE_S = 30.0
"""Longest time in which the reader of a download takes nothing."""


def raw_body(media_type: str) -> dict[str, Any]:
    """`openapi_extra` of an operation that reads its body by itself."""
    return {"requestBody": {"content": _binary(media_type)}}


def raw_answer(media_type: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of an operation that answers a file."""
    return {200: {"description": "The bytes.", "content": _binary(media_type)}}


def _binary(media_type: str) -> dict[str, Any]:
    return {media_type: {"schema": {"type": "string", "format": "binary"}}}


_LIVE = {
    # no-transform: a proxy that compresses waits for more bytes
    "Cache-Control": "no-store, no-transform",
    "X-Accel-Buffering": "no",  # nginx
    "X-Content-Type-Options": "nosniff",
}


class LiveResponse(StreamingResponse):
    """Closes its stream when the reader disconnects, which frees what it holds;
    also before the first byte.
    """

    def __init__(self, content: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(content, media_type=media_type, headers=_LIVE)
        self._stream = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._stream):
            await super().__call__(scope, receive, send)


class DownloadResponse(LiveResponse):
    """Breaks off when the reader takes nothing for `_IDLE_S`, for a stream that holds a turn."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            try:
                await asyncio.wait_for(send(message), _IDLE_S)
            except asyncio.TimeoutError:
                raise ServerError(f"the reader took nothing for {_IDLE_S:.0f} s") from None

        await super().__call__(scope, receive, send_soon)


class JsonText(Response):
    """A text that is JSON already: stored jobs are sent without being parsed."""

    media_type = "application/json"


class OpenFileResponse(FileResponse):
    """Sends the bytes of an open file, also if another file has its name meanwhile."""

    def __init__(self, opened: OpenFile, **options: Any) -> None:
        super().__init__(f"/dev/fd/{opened.descriptor}", **options)
        self._opened = opened  # it stays open as long as this response


def error(problem: ClientLibError) -> Response:
    """Status and body of one of our errors."""
    response = JSONResponse(problem.body(), problem.http_status)
    if isinstance(problem, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(problem, Unavailable):
        response.headers["Retry-After"] = "1"
    elif problem.http_status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        response.headers["Connection"] = "close"  # the rest of the body is not read
    return response


def add_error_handlers(
    app: FastAPI,
    form: Callable[[ClientLibError], Response],
    http_error: Callable[[Request, HTTPException], Response],
    invalid_request: Callable[[Request, RequestValidationError], Response],
) -> None:
    """Answer every exception of the handlers of `app`: our errors in this `form`; and by the two
    functions the framework's errors, such as the router's 404 and 405, and wrong parameters and
    bodies."""

    async def answer(request: Request, problem: Exception) -> Response:
        # of a body that was not read
        cause = problem.__cause__ if isinstance(problem, HTTPException) else problem
        if isinstance(cause, ClientLibError):
            return form(cause)
        if isinstance(cause, ClientDisconnect):  # the access log shows 499, as nginx does
            return Response(status_code=499)
        if isinstance(problem, HTTPException):
            return http_error(request, problem)
        if isinstance(problem, RequestValidationError):
            return invalid_request(request, problem)
        if isinstance(problem, OSError):
            return form(out_of_files(problem))
        request_id = request.scope["request_id"]  # the log of the server has the traceback
        return form(
            ServerError(
                "the server had an error in this request", hint=f"see {request_id} in its log"
            )
        )

    for kind in (
        ClientLibError,
        HTTPException,
        RequestValidationError,
        ClientDisconnect,
        OSError,
        Exception,
    ):
        app.add_exception_handler(kind, answer)


def http_error(request: Request, problem: HTTPException) -> Response:
    """Errors of the framework: 404 and 405 of the router, and 400 for a
    body that could not be read.
    """
    path = request.url.path
    if problem.status_code == HTTPStatus.BAD_REQUEST:
        return error(
            InvalidRequest(f"the body is no JSON object: {problem.__cause__ or problem.detail}")
        )
    if problem.status_code == HTTPStatus.NOT_FOUND:
        return error(
            NotFound(
                f"{paths.NO_SUCH_PATH} {path}", hint="docs/openapi.json lists the paths of this API"
            )
        )
    if problem.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response = error(InvalidRequest(f"{path} does not know the method {request.method}"))
        # of all routes: the router names only the methods of the first one that matches
        routes = [
            each for each in iter_route_contexts(request.app.routes) if each.path_regex.match(path)
        ]
        response.headers["Allow"] = ", ".join(
            sorted({name for route in routes for name in route.methods or ()})
        )
    else:
        response = error(ServerError(HTTPStatus(problem.status_code).phrase))
    response.status_code = problem.status_code
    return response


def invalid_request(request: Request, problem: RequestValidationError) -> Response:
    """Wrong parameters or a wrong body, one sentence for each finding."""
    sentences = []
    in_body = []
    for finding in problem.errors():
        if isinstance(ours := finding.get("ctx", {}).get("error"), ClientLibError):
            return error(ours)
        place = finding["loc"]
        message = str(finding["msg"]).removeprefix("Value error, ")
        if place[0] == "body":
            in_body.append({**finding, "loc": place[1:]})
        elif finding["type"] == "missing":
            sentences.append(f"{place[1]} is missing")
        else:
            sentences.append(
                f"{place[1]}={finding.get('input')!r}: {message[:1].lower()}{message[1:]}"
            )
    unread = (each for each in in_body if not (each["loc"] or isinstance(each["input"], dict)))
    whole = next((each for each in in_body if each["type"] == "json_invalid"), next(unread, None))
    if whole is not None:  # the input itself is not shown: it may hold secrets
        sentences.append(
            f"the body is no JSON object: {whole.get('ctx', {}).get('error', whole['msg'])}"
        )
    elif in_body:
        sentences.append(
            refused(in_body, request.scope["route"].body_field.field_info.annotation).message
        )
    return error(InvalidRequest("\n".join(sentences)))


def out_of_files(problem: OSError) -> Unavailable:
    """The answer when the server can open no more files. Raises every other
    error again: it is a bug.
    """
    if problem.errno not in (errno.EMFILE, errno.ENFILE):
        raise problem
    log.error("a request is refused: %s", problem)
    return Unavailable(
        "the server can open no more files",
        hint="try again; its limit is too low for its connections",
    )
