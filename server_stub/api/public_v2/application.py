"""The routes of `/public/v2` as one ASGI application of its own, with the platform's errors.

    PlatformErrors -> Limits -> PlatformAuthentication -> routes

`server_stub.app` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib import __version__
from client_lib.errors import ClientLibError
from server_stub.api.context import Context
from server_stub.api.public_v2 import answers, catalogue, jobs, logs
from server_stub.api.public_v2.auth import auth_router
from server_stub.users_file import Tokens

_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": answers.Failed, "description": "Refused, with the reason."},
    401: {"model": answers.Failed, "description": "No token, or a wrong one."},
    403: {"model": answers.Failed, "description": "Another's job."},
    404: {"model": answers.Failed, "description": "There is no such thing."},
    409: {"model": answers.Failed, "description": "Not as things are."},
    413: {"model": answers.Failed, "description": "Too large."},
    422: {"model": answers.WrongForm, "description": "Not of this form."},
    500: {"model": answers.Failed, "description": "A failure of the server."},
    503: {"model": answers.Failed, "description": "Try again."},
    507: {"model": answers.Failed, "description": "The server's disk is full."},
}


def routes(tokens: Callable[[], Tokens] = dict) -> FastAPI:
    """The routes alone, without the parts that answer; enough for the OpenAPI document."""
    app = FastAPI(
        title="client_lib, in the words of ML Space",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # the document is docs/openapi-public-v2.json, made by server_stub.openapi
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,
        responses=_ERRORS,
    )
    for router in (auth_router(tokens), jobs.router, logs.router, catalogue.router):
        app.include_router(router)
    app.add_exception_handler(ClientLibError, _our_error)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(RequestValidationError, _wrong_form)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    return app


def application(parts: Context, tokens: Callable[[], Tokens]) -> FastAPI:
    app = routes(tokens)
    app.state.context = parts
    return app


class PlatformErrors:
    """The ASGI layer that answers for what the layers inside refuse or fail over."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientLibError as problem:
            if begun:  # the access log cuts it
                raise
            await answers.error(problem)(scope, receive, send)


def _our_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ClientLibError)
    return answers.error(error)


def _routing_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = answers.failed(error.status_code, str(error.detail).lower())
    response.headers.update(error.headers or {})
    return response


def _wrong_form(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answers.wrong_form(list(error.errors()))


def _nobody_there(_: Request, __: Exception) -> Response:
    return Response(status_code=499)
