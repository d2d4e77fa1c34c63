"""The application: routes and the layers around them. No sockets, no files: `server_stub.serve`
runs it.

AccessLog -> Guard -> http.api.* -> service
          -> Guard -> http.api.public_v2.* -> service, below /public/v2
          -> http.page -> service, for browsers
"""

import sys
from functools import cache, partial
from typing import Any, TextIO

from fastapi import Depends, FastAPI
from fastapi.routing import iter_route_contexts
from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib import __version__
from server_stub.http.access_log import AccessLog
from server_stub.http.api import answers, jobs, server, workers
from server_stub.http.api.context import Context, refuse_unknown_parameters
from server_stub.http.auth import authenticate
from server_stub.http.limits import Guard

PUBLIC_V2 = "/public/v2/"
PAGES = ("/login", "/logout", "/jobs/", "/server", "/static/")


def rest_api() -> FastAPI:
    """The routes of `/api/v1` and their error responses."""
    app = FastAPI(
        title="client_lib",
        version=__version__,
        summary="Runs distributed PyTorch jobs.",
        responses=answers.ERRORS,
        docs_url=None,  # its pages load scripts from elsewhere
        redoc_url=None,
        openapi_url=None,  # the document is docs/openapi.json, made by docs/schemas.py
        # the access log and /metrics are ours
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,  # a redirect drops the body and, in some clients, the token
        strict_content_type=False,  # agents send JSON without a Content-Type
        separate_input_output_schemas=False,
        generate_unique_id_function=lambda route: route.name,
    )
    for part in (jobs, workers, server):
        app.include_router(part.router, dependencies=[Depends(refuse_unknown_parameters)])
    app.include_router(server.probes)
    answers.add_error_handlers(app, answers.error, answers.http_error, answers.invalid_request)
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of routes that ask for a token."""
    document = app.openapi()
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document


def build(
    parts: Context, log_to: TextIO | None = sys.stderr, app: FastAPI | None = None
) -> ASGIApp:
    """The whole server as one ASGI application. `log_to`: stream of the
    access log; None: no log.
    """
    app = app or rest_api()
    app.state.context = parts
    of_user_or_worker = partial(authenticate, parts.users, parts.logins, parts.workers)
    app.add_middleware(
        Guard, bodies=parts.bodies, error=answers.error, authenticate=of_user_or_worker
    )
    # FastAPI builds its routes when they are first read; the first request would wait 0.1 s for it
    list(iter_route_contexts(app.routes))

    @cache
    def public_v2() -> ASGIApp:
        from server_stub.http.api.public_v2 import application  # most servers never need it

        return application(parts)

    @cache
    def pages() -> ASGIApp:
        from server_stub.http.page.routes import Pages

        return Pages(parts).application()

    async def by_path(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        chosen: ASGIApp = app
        if path.startswith(PUBLIC_V2):
            chosen = public_v2()
        elif path == "/" or path.startswith(PAGES):
            chosen = pages()
        await chosen(scope, receive, send)

    return AccessLog(by_path, parts.traffic, log_to)
