"""Authentication of requests: a Bearer token belongs to a user, or below the paths of workers to an
attempt. Browsers send the cookie of a login, which stands for a token.

`limits.Guard` has every request authenticated: without a token only the health paths and the path
that names the issuer answer. Handlers find the user in `scope["user"]`, or the attempt in
`scope["attempt"]`.

A one-time link or a token becomes a login. A login ends with its time or its token, at a logout,
and when its token has KEPT newer logins. Logins survive a restart of the server, in a file of
digests, from which no cookie can be made. Changes need the token of a page beside the cookie.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import math
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from client_lib.durable import write_json
from client_lib.errors import Forbidden, Unauthorized
from client_lib.spec import paths
from server_stub.http.users_file import CurrentTokens, OidcEntry, bearer, digest
from server_stub.users import User
from server_stub.worker_gateway.attempt import OpenAttempt, WorkerRegistry

if TYPE_CHECKING:
    from server_stub.http.oidc import Oidc

OPEN_PATHS = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ, paths.LOGIN})
LINK_S = 120.0  # a link is opened at once, or by hand from a terminal
LOGIN_S = 12 * 3600.0
KEPT = 20  # links, and logins, of one token
_OF_ISSUER = 1000  # tokens
CSRF_HEADER = "X-CSRF-Token"

Entries = dict[str, tuple[str, float]]
"""Digest of a code or of a cookie -> digest of its token, and the Unix time at which it ends."""

log = logging.getLogger(__name__)


async def authenticate(users: Users, logins: Logins, workers: WorkerRegistry, scope: Scope) -> None:
    """The authentication of `/api/v1`. Raises Unauthorized; Unavailable:
    the issuer does not answer.
    """
    if scope["path"] in OPEN_PATHS:
        return
    headers = Headers(scope=scope)
    header = headers.get("authorization")
    if paths.is_of_workers(scope["path"]):
        scope["attempt"] = workers.admit(bearer(header or ""))
    elif (
        "cookie" in headers
        and header is None
        and (user := logins.user(scope, headers.get(CSRF_HEADER)))
    ):
        scope["user"] = user
    else:
        scope["user"] = await users.of_header(header)


def sender(scope: Scope) -> str:
    """The sender of a request, under whose name its shares are counted: a user, or all jobs of a
    user together. No user's name has a space."""
    if "user" in scope:
        return cast(User, scope["user"]).name
    if "attempt" in scope:
        return f"the jobs of {cast(OpenAttempt, scope['attempt']).group.owner}"
    return "clients without a token"


class Users:
    """The users of all valid tokens: the users of the users file, or the one user of a local
    server, and the users of the issuer.
    """

    def __init__(self, tokens: CurrentTokens) -> None:
        self.tokens = tokens
        self._oidc: Oidc | None = None
        self._find_issuer(tokens().oidc)

    def _find_issuer(self, entry: OidcEntry | None) -> Oidc | None:
        """The issuer that the users file names, with its keys as far as they are known."""
        if entry is None:
            self._oidc = None
        elif self._oidc is None or self._oidc.entry != entry:
            from server_stub.http.oidc import Oidc  # most servers never need its libraries

            self._oidc = Oidc(entry)
        return self._oidc

    async def of_header(self, header: str | None) -> User:
        """The user whose token the `Authorization` header carries. Raises Unauthorized;
        Unavailable: the issuer does not answer."""
        tokens = self.tokens()
        oidc = self._find_issuer(tokens.oidc)
        way_out = (
            "`client-lib login` gets one"
            if oidc
            else "set CLIENT_LIB_TOKEN, or token= of a profile"
        )
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


class Logins:
    """The logins of browsers to one server. Event loop only."""

    def __init__(self, file: Path, tokens: CurrentTokens, *, loopback: bool) -> None:
        """`loopback`: the server listens on a loopback address; it has no other name."""
        self._file = file
        self._tokens = tokens
        self._loopback = loopback
        self._links: Entries = {}
        self._of_issuer: dict[bytes, tuple[User, OidcEntry | None]] = {}
        """Users with tokens of an issuer, and the table `[oidc]` that named it. Their logins
        outlast these tokens, and end with this server, or when that table changes."""
        try:
            read = json.loads(file.read_text()).items()
            self._logins: Entries = {
                key: (bytes.fromhex(token).hex(), float(ends)) for key, (token, ends) in read
            }
        except (OSError, ValueError, AttributeError, TypeError):
            # none yet, or damaged: users log in again
            self._logins = {}

    def new_link(self, token: str, user: User) -> str:
        """The code of a link that logs in the user of this token, once."""
        tokens = self._tokens()
        if digest(token) not in tokens:
            self._of_issuer = dict([*self._of_issuer.items()][1 - _OF_ISSUER :]) | {
                digest(token): (user, tokens.oidc)
            }
        self._links, code = _with_new(self._links, _hex(token), LINK_S)
        return code

    def log_in(self, token: str | None, code: str = "") -> str:
        """The value of a new cookie, for a token or the code of a link. Raises Unauthorized."""
        known, ends = (
            self._links.pop(_hex(code), ("", 0.0)) if token is None else (_hex(token), math.inf)
        )
        # the digest of an issuer's token is no proof that it has not expired; a link of its user is
        user = self._user_of(known) if token is None else self._tokens().get(bytes.fromhex(known))
        if ends < time.time() or user is None:
            refused = (
                "this link was used before, or is too old"
                if token is None
                else "this token is not valid"
            )
            raise Unauthorized(refused, hint="`client-lib ui` makes a new link")
        self._logins, value = _with_new(self._logins, known, LOGIN_S)
        try:
            write_json(str(self._file), self._logins)
        except OSError as error:
            log.error("a login ends with this server, as it can't be written: %s", error)
        return value

    def log_out(self, value: str) -> None:
        """End the login with this cookie."""
        self._logins.pop(_hex(value), None)
        try:
            write_json(str(self._file), self._logins)
        except OSError as error:
            log.error("all logins end with this server, as they can't be written: %s", error)
            self._file.unlink(missing_ok=True)  # the file still has this login

    def user(self, scope: Scope, csrf: str | None) -> User | None:
        """The user of `of_cookie`. Raises Forbidden also if the request would change something, and
        `csrf` is not the CSRF token of the login's pages."""
        user = self.of_cookie(scope)
        needs_csrf = user is not None and scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if needs_csrf and not hmac.compare_digest(
            csrf_token(scope).encode(), (csrf or "").encode()
        ):
            raise Forbidden("this page belongs to an earlier login", hint="load the page again")
        return user

    def of_cookie(self, scope: Scope) -> User | None:
        """The user whose cookie the request carries; None: it carries none that is valid.

        Raises Forbidden: it asks a loopback server under another name, as does a page that had its
        own name resolved to this machine.
        """
        try:
            host = urlsplit(f"//{Headers(scope=scope).get('host', '')}").hostname or ""
        except ValueError:
            host = ""
        if self._loopback and not paths.is_loopback(host):
            raise Forbidden(
                "this server listens on a loopback address, and has no pages under the name "
                f"{host!r}",
                hint="open it as 127.0.0.1 or localhost; a proxy has to send such a Host header",
            )
        token, ends = self._logins.get(_hex(cookie(scope)), ("", 0.0))
        return self._user_of(token) if ends > time.time() else None

    def _user_of(self, token: str) -> User | None:
        """The user of a token by its digest."""
        tokens = self._tokens()
        of_issuer, oidc = self._of_issuer.get(bytes.fromhex(token), (None, None))
        return tokens.get(bytes.fromhex(token)) or (
            of_issuer if oidc and oidc == tokens.oidc else None
        )


def cookie(scope: Scope) -> str:
    """The value of the cookie of this server; "": there is none."""
    return Request(scope).cookies.get(_name(scope), "")


def set_cookie(response: Response, scope: Scope, value: str) -> None:
    """Set or, with "", remove the cookie. Without a path it is for the folder of the login page."""
    secure = "https" in (scope["scheme"], Headers(scope=scope).get("x-forwarded-proto"))
    age = int(LOGIN_S) if value else 0
    response.set_cookie(
        _name(scope), value, age, path=None, secure=secure, httponly=True, samesite="strict"
    )


def csrf_token(scope: Scope) -> str:
    """The token that the pages of this login carry."""
    return hmac.new(cookie(scope).encode(), b"csrf", hashlib.sha256).hexdigest()


def _name(scope: Scope) -> str:
    """The name has the port: a browser sends the cookies of a host to all of its ports."""
    return f"client_lib_{(scope.get('server') or ('', 0))[1]}"


def _hex(secret: str) -> str:
    return digest(secret).hex()


def _with_new(entries: Entries, token: str, lasts_s: float) -> tuple[Entries, str]:
    """The entries that have not ended, of this token the newest, with one for a
    new secret; and the secret.
    """
    now = time.time()
    secret = secrets.token_urlsafe(32)
    live = {key: entry for key, entry in entries.items() if entry[1] > now}
    for key in [key for key, entry in live.items() if entry[0] == token][: 1 - KEPT]:
        del live[key]
    return {**live, _hex(secret): (token, now + lasts_s)}, secret
