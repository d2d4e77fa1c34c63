"""Authentication: the Bearer token of a request belongs to a user, or below the paths of workers to an attempt.
Scripts of the pages have the cookie of a login instead of a token.

An ASGI layer in front of every route, so that it protects all of them: without a token only the health paths
and the one that names the issuer answer. Handlers find the user in `scope["user"]`, or the attempt in
`scope["attempt"]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib.errors import ClientLibError, Unauthorized
from client_lib.spec import paths
from server_stub.http.logins import CSRF_HEADER, Logins
from server_stub.http.users_file import CurrentTokens, UserTokens, bearer, digest
from server_stub.service.values import User
from server_stub.worker_gateway import WorkerRegistry

if TYPE_CHECKING:
    from server_stub.http.oidc import Oidc

OPEN_PATHS = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ, paths.LOGIN})


class Users:
    """The users of all valid tokens: those of the users file, or the one of a local server, and those of the issuer."""

    def __init__(self, tokens: CurrentTokens) -> None:
        self.tokens = tokens
        self._oidc: Oidc | None = None
        self._find_issuer(tokens())

    def _find_issuer(self, tokens: UserTokens) -> Oidc | None:
        """The issuer of the users file, with the keys that are known of it."""
        if tokens.oidc is None:
            self._oidc = None
        elif self._oidc is None or self._oidc.entry != tokens.oidc:
            from server_stub.http.oidc import Oidc  # most servers never need its libraries

            self._oidc = Oidc(tokens.oidc)
        return self._oidc

    async def of_header(self, header: str | None) -> User:
        """The user whose token the `Authorization` header carries. Raises Unauthorized; Unavailable: the issuer does
        not answer."""
        tokens = self.tokens()
        oidc = self._find_issuer(tokens)
        way_out = "`client-lib login` gets one" if oidc else "set CLIENT_LIB_TOKEN, or token= of a profile"
        if not header:
            raise Unauthorized("this server wants a token", hint=way_out)
        token = bearer(header)
        if user := tokens.get(digest(token)):
            return user
        if oidc is None or token.count(".") != 2:  # a JWT has three parts
            way_out = way_out if oidc else "it may have been replaced; check CLIENT_LIB_TOKEN"
            raise Unauthorized("the server does not know this token", hint=way_out)
        user, groups = await oidc.accept(token)
        return replace(user, team=tokens.team_of(user.name, groups))


class Authentication:
    """The ASGI layer. `authenticate` adds the user or the attempt to the scope, or raises a ClientLibError, from
    which `error` makes the response."""

    def __init__(
        self,
        app: ASGIApp,
        authenticate: Callable[[Scope], Awaitable[None]],
        error: Callable[[ClientLibError], Response],
    ) -> None:
        self._app, self._authenticate, self._error = app, authenticate, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._authenticate(scope)
        except ClientLibError as problem:
            await self._error(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def authenticate(users: Users, logins: Logins, workers: WorkerRegistry, scope: Scope) -> None:
    """The authentication of `/api/v1`. Raises Unauthorized; Unavailable: the issuer does not answer."""
    if scope["path"] in OPEN_PATHS:
        return
    headers = Headers(scope=scope)
    header = headers.get("authorization")
    if paths.is_of_workers(scope["path"]):
        scope["attempt"] = workers.admit(bearer(header or ""))
    elif "cookie" in headers and header is None and (user := logins.user(scope, headers.get(CSRF_HEADER))):
        scope["user"] = user
    else:
        scope["user"] = await users.of_header(header)
