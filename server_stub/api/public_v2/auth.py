"""Who asks, in the platform's words: a pair of client_id and client_secret becomes a token.

The pair is a user's name on this server and a token of that user: an admin makes and takes back one thing
(`client-lib server token NAME`), and nothing has to be stored here.
"""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib.errors import Unauthorized
from server_stub import users_file
from server_stub.api.public_v2.answers import Authenticated, Token
from server_stub.api.public_v2.requests import Credentials
from server_stub.users import User
from server_stub.users_file import Tokens

SERVICE_AUTH = "/public/v2/service_auth"
WRONG = "invalid user credentials"


def auth_router(tokens: Callable[[], Tokens]) -> APIRouter:
    router = APIRouter()

    @router.post(SERVICE_AUTH, openapi_extra={"security": []})
    async def service_auth(credentials: Credentials) -> Authenticated:
        """A token for a pair of client_id and client_secret."""
        user = users_file.owner_of(credentials.client_secret, tokens())
        if user is None or user.name != credentials.client_id:
            raise Unauthorized(WRONG)
        return Authenticated(token=Token(access_token=credentials.client_secret))

    return router


class PlatformAuthentication:
    """The ASGI layer in front of every route but service_auth; handlers find the user in `scope["user"]`."""

    def __init__(self, app: ASGIApp, tokens: Callable[[], Tokens]) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != SERVICE_AUTH:
            header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            scope["user"] = self._user(header.decode("latin-1").strip())
        await self._app(scope, receive, send)

    def _user(self, header: str) -> User:
        """Platform: its document says `Bearer <token>`, its own clients send the token alone."""
        kind, _, rest = header.partition(" ")
        token = rest.strip() if kind.lower() == "bearer" else header
        user = users_file.owner_of(token, self._tokens()) if token else None
        if user is None:
            raise Unauthorized(WRONG)
        return user
