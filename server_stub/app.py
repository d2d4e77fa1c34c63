"""The application: routes, error answers and the layers around them. No sockets, no files: `server_stub.serve` runs it.

AccessLog -> Limits -> Authentication -> api.* (found at once, or by FastAPI's routes) -> service
          -> PlatformErrors -> Limits -> PlatformAuthentication -> api.public_v2 -> service, below /public/v2
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TextIO

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib import __version__
from client_lib.errors import ClientLibError, InvalidRequest
from client_lib.spec import paths
from server_stub.access_log import AccessLog
from server_stub.api import answers, jobs, outputs, server, snapshots, workers
from server_stub.api.context import Context, context, user
from server_stub.api.logs import logs_router
from server_stub.api.operation import RawRoute
from server_stub.auth import Authentication, Users
from server_stub.limits import Limits
from server_stub.service import JobLogs

PUBLIC_V2 = "/public/v2/"


def build(parts: Context, users: Users, log_to: TextIO | None = sys.stderr) -> ASGIApp:
    """The whole server as one ASGI application. `log_to`: where the lines of the access log go; None: nowhere."""
    app = routes()
    app.state.context = parts
    ours = Limits(Authentication(_Straight(app), users, parts.workers), parts.settings)
    return AccessLog(_Doors(ours, lambda: _public_v2(parts, users)), parts.traffic, log_to)


class _Straight:
    """Operations whose path holds no name, and those of workers, are found by one lookup and called at once; the others
    by FastAPI, whose layers and search through the routes take a tenth of a submit. AccessLog answers errors of
    either."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        routes = [route for route in app.routes if isinstance(route, RawRoute) and _is_straight(route)]
        self._routes = {(method, route.path): route for route in routes for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, names = paths.split_worker(scope["path"]) or (scope["path"], {})
        route = self._routes.get((scope["method"], path))
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["app"], scope["route"], scope["path_params"] = self._app, route, names
        try:
            await route.app(scope, receive, send)
        except ClientDisconnect:
            await _nobody_there()(scope, receive, send)


def _is_straight(route: RawRoute) -> bool:
    of_worker = paths.split_worker(route.path)
    return not route.param_convertors or (of_worker is not None and of_worker[0] == route.path)


class _Doors:
    """`/public/v2` is an application of its own, made when somebody first asks for it: most servers never need it."""

    def __init__(self, ours: ASGIApp, make_public_v2: Callable[[], ASGIApp]) -> None:
        self._ours = ours
        self._make_public_v2 = make_public_v2
        self._public_v2: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith(PUBLIC_V2):
            await self._ours(scope, receive, send)
            return
        self._public_v2 = self._public_v2 or self._make_public_v2()
        await self._public_v2(scope, receive, send)


def _public_v2(parts: Context, users: Users) -> ASGIApp:
    from server_stub.api.public_v2.application import PlatformErrors, application
    from server_stub.api.public_v2.auth import PlatformAuthentication

    answering = PlatformAuthentication(application(parts, users.tokens), users.tokens)
    return PlatformErrors(Limits(answering, parts.settings))


def routes() -> FastAPI:
    """The routes alone, without the parts that answer; enough for the OpenAPI document."""
    app = FastAPI(
        title="client_lib",
        version=__version__,
        summary="Runs distributed PyTorch jobs.",
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # the document is docs/openapi.json, made by server_stub.openapi
        telemetry={"tracing": False, "metrics": False, "logs": False},  # asked at each request; `metrics` is ours
        redirect_slashes=False,  # a redirect drops the body and, in some clients, the token
    )
    for part in (jobs, outputs, snapshots, server, workers):
        app.router.routes.extend(part.router.routes)  # include_router adds three calls to each request
    app.router.routes.extend(logs_router(lambda: app.state.context.hub, _find_logs).routes)
    app.add_exception_handler(ClientLibError, _our_error)
    app.add_exception_handler(HTTPException, _routing_error)
    app.add_exception_handler(RequestValidationError, _wrong_parameter)
    app.add_exception_handler(ClientDisconnect, _nobody_there)
    app.add_exception_handler(Exception, _internal_error)
    return app


async def _find_logs(request: Request, name: str, owner: str | None) -> JobLogs:
    return await context(request).service.find_logs(user(request), name, owner)


def _our_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ClientLibError)
    return answers.error(error)


def _routing_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = answers.routing_error(error.status_code, request.method, request.url.path)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(sorted(_methods_of(request)))
    return response


def _methods_of(request: Request) -> set[str]:
    """All that the path knows; the router itself tells those of one route of it."""
    matching = (route for route in request.app.routes if route.path_regex.match(request.url.path))
    return {method for route in matching for method in route.methods}


def _wrong_parameter(_: Request, error: Exception) -> Response:
    """A parameter that FastAPI itself refused, as one sentence each."""
    assert isinstance(error, RequestValidationError)
    return answers.error(InvalidRequest("\n".join(map(_sentence, error.errors()))))


def _sentence(finding: dict[str, Any]) -> str:
    name = finding["loc"][1]  # behind where it stood (query, path), before its index among several
    return f"{name}={finding.get('input')!r}: {finding['msg'][:1].lower()}{finding['msg'][1:]}"


def _nobody_there(*_: object) -> Response:
    """Cut while it was sending; only the access log sees this status, which is nginx' word for it."""
    return Response(status_code=499)


def _internal_error(request: Request, _: Exception) -> Response:
    return answers.internal_error(request.scope["request_id"])
