"""`/public/v2`: the REST API of the ML Space platform as an application of its own, on the same
service as `/api/v1`.

    jobs        paths of jobs; it also knows the folders in which code may lie
    catalogue   paths of instance types, images and regions
    translate   bodies of requests and responses, and their translation from and to our form; pure

It is imported at its first request: most servers never need it. A comment that begins with
"Platform:" describes a peculiarity that the platform's clients depend on. Statuses and dates are in
`client_lib.spec.mlspace`.

Authentication exchanges a pair of client_id and client_secret for a token. The pair is the name of
a user of this server and a token of that user: one of the users file, where an admin adds and
revokes it (`client-lib server token NAME`), or one of the issuer. Nothing has to be stored here.
"""

import json
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from client_lib import __version__
from client_lib.errors import ClientLibError, NotFound, Unauthorized, Unavailable
from server_stub.http.api.answers import add_error_handlers
from server_stub.http.api.context import Context, Parts
from server_stub.http.api.public_v2 import catalogue, jobs
from server_stub.http.api.public_v2.models import Authenticated, Credentials, Failed, Token
from server_stub.http.auth import Users
from server_stub.http.limits import Guard
from server_stub.users import User

_SERVICE_AUTH = "/public/v2/service_auth"
_WRONG = "invalid user credentials"
_FINDINGS_SHOWN = 20
_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Failed, "description": "Refused, with the reason."},
    401: {"model": Failed, "description": "No token, or a wrong one."},
    403: {"model": Failed, "description": "The job of another user."},
    404: {"model": Failed, "description": "No such object."},
    409: {"model": Failed, "description": "Not possible in the present state."},
    413: {"model": Failed, "description": "Too large."},
    500: {"model": Failed, "description": "A failure of the server."},
    503: {"model": Failed, "description": "Try again."},
    507: {"model": Failed, "description": "The server's disk is full."},
}

_service_auth = APIRouter()


def routes() -> FastAPI:
    """The routes and their error responses, without the parts of a server; enough
    for the OpenAPI document.
    """
    app = FastAPI(
        title="client_lib: the API of ML Space",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # the document is docs/openapi-public-v2.json, made by docs/schemas.py
        telemetry={"tracing": False, "metrics": False, "logs": False},
        redirect_slashes=False,
        responses=_ERRORS,
    )
    for router in (_service_auth, jobs.router, catalogue.router):
        app.include_router(router)
    add_error_handlers(app, error, _http_error, _wrong_form)
    return app


def application(parts: Context) -> FastAPI:
    """The whole API with its layers."""
    app = routes()
    app.state.context = parts
    authenticate = partial(_authenticate, parts.users)
    app.add_middleware(Guard, bodies=parts.bodies, error=error, authenticate=authenticate)
    return app


@_service_auth.post(_SERVICE_AUTH, openapi_extra={"security": []})
async def service_auth(parts: Parts, credentials: Credentials) -> Authenticated:
    """A token for a pair of client_id and client_secret."""
    user = await _user(parts.users, credentials.client_secret)
    if user.name != credentials.client_id:
        raise Unauthorized(_WRONG)
    return Authenticated(token=Token(access_token=credentials.client_secret))


async def _authenticate(users: Users, scope: Scope) -> None:
    if scope["path"] != _SERVICE_AUTH:
        header = Headers(scope=scope).get("authorization", "").strip()
        kind, _, rest = header.partition(" ")
        # Platform: its document demands `Bearer <token>`, its own clients send the bare token
        scope["user"] = await _user(users, rest.strip() if kind.lower() == "bearer" else header)


async def _user(users: Users, token: str) -> User:
    """The user of a token. Raises Unauthorized, always in the words of
    the platform; Unavailable.
    """
    try:
        return await users.of_header(f"Bearer {token}")
    except Unauthorized as wrong:
        raise Unauthorized(_WRONG) from wrong


def _http_error(_: Request, problem: HTTPException) -> Response:
    return _failed(problem.status_code, str(problem.detail).lower(), problem.headers)


def _wrong_form(_: Request, problem: RequestValidationError) -> Response:
    """The 422 response. Values are left out of the findings: they may be secrets."""
    findings = problem.errors()[:_FINDINGS_SHOWN]
    detail = [{key: finding[key] for key in ("loc", "msg", "type")} for finding in findings]
    # ASCII: a key may be no UTF-8
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")


def error(problem: ClientLibError) -> Response:
    """One of our errors in the platform's form. An InvalidRequest becomes 400: 422
    is for wrong schemas there.
    """
    # Platform: exactly this message for all that is missing
    message = "not found" if isinstance(problem, NotFound) else str(problem)
    status = 400 if problem.http_status == HTTPStatus.UNPROCESSABLE_ENTITY else problem.http_status
    return _failed(
        status, message, {"Retry-After": "1"} if isinstance(problem, Unavailable) else None
    )


def _failed(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Platform: the Content-Type has no `charset`, with which its command line takes a
    response for text and fails.
    """
    return JSONResponse(Failed(error_code=1, error_message=message).model_dump(), status, headers)
