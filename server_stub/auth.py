"""Who sends a request: a Bearer token belongs to a user, and without one only the two health paths answer. Below the
paths of workers it belongs to an attempt instead.

An ASGI layer in front of every route, so that no route can forget it; handlers find the user in `scope["user"]`, or
the attempt in `scope["attempt"]`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from client_lib.errors import InvalidRequest, NotFound, Unauthorized
from client_lib.spec import paths
from server_stub import users_file
from server_stub.users import User
from server_stub.users_file import Tokens
from server_stub.workers import WorkerDesk

OPEN_PATHS = frozenset({paths.HEALTHZ, paths.READYZ})

_HEADERS_KNOWN = 1000

log = logging.getLogger(__name__)


class Users(Protocol):
    def tokens(self) -> Tokens:
        """All that are valid now."""
        ...


class LocalUsers:
    """The one token of a local server."""

    def __init__(self, token: str) -> None:
        self._tokens = {users_file.digest(token): users_file.local_user()}

    def tokens(self) -> Tokens:
        return self._tokens


class FileUsers:
    """The file of users. It is read again when it changed, so that a token is given or taken without a restart."""

    def __init__(self, path: Path) -> None:
        """Raises as users_file.read does: a server doesn't start with a file that it can't read."""
        self._path = path
        self._seen = self._stamp()
        self._tokens = users_file.read(path)

    def tokens(self) -> Tokens:
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._tokens = users_file.read(self._path)
            except (InvalidRequest, NotFound) as error:  # half written by an editor: those of before stay
                log.error("%s; the users of before stay", error.message)
        return self._tokens

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            there = os.stat(self._path)
        except OSError:
            return None
        return there.st_mtime_ns, there.st_size, there.st_ino


def authenticate(header: str | None, tokens: Tokens) -> User:
    """Whose token the `Authorization` header carries.

    Raises Unauthorized.
    """
    if not header:
        raise Unauthorized("this server wants a token", hint="set CLIENT_LIB_TOKEN, or token= of a profile")
    found = users_file.owner_of(_bearer(header), tokens)
    if found is None:
        raise Unauthorized(
            "the server does not know this token", hint="it may have been replaced; check CLIENT_LIB_TOKEN"
        )
    return found


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise Unauthorized("the Authorization header is not 'Bearer <token>'")
    return token.strip()


class Authentication:
    """The ASGI layer."""

    def __init__(self, app: ASGIApp, users: Users, workers: WorkerDesk) -> None:
        self._app = app
        self._users = users
        self._workers = workers
        self._tokens: Tokens = {}
        self._known: dict[bytes, User] = {}
        """Headers that were looked up among `_tokens`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in OPEN_PATHS:
            found = next((value for name, value in scope["headers"] if name == b"authorization"), None)
            if paths.is_of_workers(scope["path"]):
                scope["attempt"] = self._workers.admit(_bearer(found.decode("latin-1") if found else ""))
            else:
                scope["user"] = self._user(found)
        await self._app(scope, receive, send)

    def _user(self, header: bytes | None) -> User:
        """As `authenticate`; a header that was right is known until the tokens change."""
        tokens = self._users.tokens()
        if tokens is not self._tokens or len(self._known) > _HEADERS_KNOWN:
            self._tokens, self._known = tokens, {}
        known = self._known.get(header or b"")
        if known is None:
            known = authenticate(header.decode("latin-1") if header else None, tokens)
            self._known[header or b""] = known
        return known
