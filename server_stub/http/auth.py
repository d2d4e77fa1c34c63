"""Authentication: the Bearer token of a request belongs to a user, or below the paths of workers to an attempt.
Scripts of the pages have the cookie of a login instead of a token.

An ASGI layer in front of every route, so that it protects all of them: without a token only the health paths
answer. Handlers find the user in `scope["user"]`, or the attempt in `scope["attempt"]`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib.errors import ClientLibError, InvalidRequest, NotFound, Unauthorized
from client_lib.spec import paths
from server_stub.http import users_file
from server_stub.http.api.answers import error
from server_stub.http.logins import CSRF_HEADER, Logins
from server_stub.http.users_file import Tokens, bearer
from server_stub.service.values import User
from server_stub.worker_gateway import WorkerRegistry

OPEN_PATHS = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ})

_HEADERS_KNOWN = 1000

log = logging.getLogger(__name__)


CurrentTokens = Callable[[], Tokens]
"""Returns the tokens that are valid now."""


def local_tokens(token: str) -> CurrentTokens:
    """The one token of a local server."""
    tokens = {users_file.digest(token): users_file.local_user()}
    return lambda: tokens


class FileTokens:
    """The tokens in the file of users, which is read again after a change: tokens are added and revoked without a
    restart."""

    def __init__(self, path: Path, check: Callable[[Mapping[str, str]], object] | None = None) -> None:
        """`check` is called with the name of each user's account. It raises InvalidRequest if no job can run under one.

        Raises its error and those of users_file.read: a server does not start with a file that it can't use.
        """
        self._path = path
        self._check = check
        self._seen = self._stamp()
        self._tokens = self._read()

    def __call__(self) -> Tokens:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = self._read()
            except (InvalidRequest, NotFound) as error:  # perhaps half written by an editor
                log.error("%s; the previous users stay", error.message)
        return self._tokens

    def accounts(self) -> dict[str, str]:
        return _accounts(self())

    def _read(self) -> Tokens:
        tokens = users_file.read(self._path)
        if self._check:
            self._check(_accounts(tokens))
        return tokens

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def _accounts(tokens: Tokens) -> dict[str, str]:
    return {user.name: user.account or user.name for user in tokens.values()}


def authenticate(header: str | None, tokens: Tokens) -> User:
    """The user whose token the `Authorization` header carries. Raises Unauthorized."""
    if not header:
        raise Unauthorized("this server wants a token", hint="set CLIENT_LIB_TOKEN, or token= of a profile")
    found = users_file.owner_of(bearer(header), tokens)
    if found is None:
        raise Unauthorized(
            "the server does not know this token", hint="it may have been replaced; check CLIENT_LIB_TOKEN"
        )
    return found


class Authentication:
    """The ASGI layer."""

    def __init__(self, app: ASGIApp, tokens: CurrentTokens, workers: WorkerRegistry, logins: Logins) -> None:
        self._app = app
        self._current_tokens = tokens
        self._logins = logins
        self._workers = workers
        self._tokens: Tokens = {}
        self._known: dict[str | None, User] = {}
        """Headers that were found among `_tokens`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._authenticate(scope)
        except ClientLibError as problem:
            await error(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _authenticate(self, scope: Scope) -> None:
        """Add the user or the attempt to the scope. Raises Unauthorized."""
        if scope["path"] in OPEN_PATHS:
            return
        headers = Headers(scope=scope)
        header = headers.get("authorization")
        if paths.is_of_workers(scope["path"]):
            scope["attempt"] = self._workers.admit(bearer(header or ""))
        elif "cookie" in headers and header is None and (user := self._logins.user(scope, headers.get(CSRF_HEADER))):
            scope["user"] = user
        else:
            scope["user"] = self._user(header)

    def _user(self, header: str | None) -> User:
        """The user of this header. A valid header is remembered until the tokens change."""
        tokens = self._current_tokens()
        if tokens is not self._tokens or len(self._known) > _HEADERS_KNOWN:
            self._tokens, self._known = tokens, {}
        if header not in self._known:
            self._known[header] = authenticate(header, tokens)
        return self._known[header]
