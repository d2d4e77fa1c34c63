"""Failures of a call as our errors: no answer at all, or an answer with a bad
status. Standard library only.
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import BadStatusLine
from typing import NamedTuple
from urllib.parse import urlsplit

from client_lib import errors
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import CA_BUNDLE, INSECURE, Config, Endpoint

CONNECT_S = 5.0
READ_S = 60.0
ERROR_BODY_MAX = 64 * 1024  # bytes of an error's body that are read
_TEXT_MAX = 200  # characters of a foreign answer in a message


class Transient(Exception):
    """A failure that may be gone at the next try. `error` is what the user sees when it isn't."""

    def __init__(self, error: errors.ClientLibError, retry_after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


def check_endpoint_rules(endpoint: Endpoint, config: Config) -> None:
    """Raises InvalidRequest for a token that no header can carry, and for one that would be sent in
    clear text over a network, unless the user allowed it."""
    token = endpoint.token
    parts = urlsplit(endpoint.url)
    if token is None:
        return
    if not (token.isascii() and token.isprintable() and token.strip() == token):
        raise errors.InvalidRequest(
            "the token holds characters that no HTTP header can carry", hint="copy it again"
        )
    if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not config.insecure:
        raise errors.InvalidRequest(
            f"the token would travel readable over plain http to {parts.hostname}",
            hint=f"use https://, or accept the risk with insecure=True or {INSECURE}=1",
        )


# --- failures without an answer


class FailureRow(NamedTuple):
    kind: type[Exception]
    message: str  # `{url}` and `{read_s}` are filled in
    hint: str | None = None
    transient: bool = True
    ours: type[errors.ClientLibError] = errors.ServerUnreachable


CUT = "{url} broke off in the middle of its answer"
UNTRUSTED = (
    "{url}: its certificate isn't trusted, or it speaks no TLS",
    f"give the certificate authority with ca_bundle= or {CA_BUNDLE}",
    False,
)
SOCKET_FAILURES = (
    FailureRow(
        ConnectionRefusedError,
        "{url} does not answer (connection refused)",
        "`client-lib serve` starts a server; without an endpoint the local one is started for you",
    ),
    FailureRow(
        socket.gaierror,
        "{url}: the host's name is unknown",
        "is the endpoint spelled right?",
        transient=False,
    ),
    FailureRow(ConnectionResetError, "{url} closed the connection without an answer"),
    FailureRow(
        BadStatusLine, "{url} speaks no HTTP", "is the port right?", False, errors.BadResponse
    ),
)


@contextmanager
def translated(table: Sequence[FailureRow], url: str, read_s: float) -> Iterator[None]:
    """Raise failures of a library as our error of the first row whose kind is the failure or among
    its causes; in a Transient, if the next try may succeed."""
    try:
        yield
    except tuple(row.kind for row in table) as error:
        if isinstance(error, errors.ClientLibError):  # some are OSErrors, too
            raise
        found = next(row for row in table if _caused_by(error, row.kind))
        ours = found.ours(found.message.format(url=url, read_s=read_s), hint=found.hint)
        # there is no chained traceback where our message says all that it could
        says_all = _caused_by(error, ConnectionRefusedError) or _caused_by(error, socket.gaierror)
        raise (Transient(ours) if found.transient else ours) from (None if says_all else error)


def _caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """requests wraps urllib3, which wraps the socket's error: in args, `reason`,
    `__cause__` or `__context__`.
    """
    chain = [error]
    for link in chain:  # grows while it is read
        inner = (*link.args, getattr(link, "reason", None), link.__cause__, link.__context__)
        chain += [
            found for found in inner if isinstance(found, BaseException) and found not in chain
        ]
    return any(isinstance(link, kind) for link in chain)


# --- answers with a bad status


_UNKNOWN = (errors.BadResponse, "this is no client-lib server, or of another version")
_STATUSES: dict[
    int, tuple[type[errors.ClientLibError], str]
] = {  # for answers without one of our error bodies
    401: (errors.Unauthorized, "no token that it knows"),
    403: (errors.Forbidden, "something in front of the server forbids it"),
    413: (errors.TooLarge, "too large for something in front of the server"),
    429: (errors.Unavailable, "too many requests"),
    502: (errors.Unavailable, "a proxy without its server"),
    503: (errors.Unavailable, "not ready"),
    504: (errors.Unavailable, "a proxy that waited in vain for its server"),
    507: (errors.StorageFull, "its disk is full"),
}
_CODE_OF_NEWER = {
    404: errors.NotFound,
    409: errors.Conflict,
    401: errors.Unauthorized,
    403: errors.Forbidden,
}


def error_of_answer(
    method: str,
    url: str,
    status: int,
    phrase: str,
    header: Callable[[str], str | None],
    body: bytes,
) -> Exception:
    """The error that a bad answer means. An unavailable server is a
    Transient: the call is repeated.
    """
    if method == "HEAD" and status == 404:  # an answer to HEAD has no body
        return errors.NotFound(f"{url} does not exist")
    try:
        data = json.loads(body)
        code = str(data["code"])
        message = str(data["message"])
        hint = data.get("hint")
        of_status = _CODE_OF_NEWER.get(
            status, errors.ServerError if status >= 500 else errors.InvalidRequest
        )
        kind = errors.BY_CODE.get(code, of_status)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # no error body of ours
        kind, meaning = _STATUSES.get(status, _UNKNOWN)
        location = header("Location")
        shown = f"a redirect to {location}" if location else as_text(body)
        message = (
            f"{url.split('?')[0]} answered {status} {phrase}{f' ({shown})' if shown else ''}: "
            f"{meaning}"
        )
        hint = f"if {location} is the server, use its address as the endpoint" if location else None
    ours = kind(message, hint=hint)
    if not isinstance(ours, errors.Unavailable):
        return ours
    try:
        return Transient(ours, max(0.0, float(header("Retry-After") or 0)))
    except ValueError:  # a date, or no number: our own pauses are used
        return Transient(ours)


def bad_content(url: str, wanted: str, body: bytes) -> errors.BadResponse:
    """The error for a good status whose body is another than was asked for."""
    return errors.BadResponse(
        f"what {url} answers is no {wanted}: {as_text(body)!r}",
        hint="is that a client-lib server? `client-lib config show` says where the address comes "
        "from",
    )


def as_text(body: bytes) -> str:
    """The visible text of an HTML page or another body, on one line."""
    import html  # its table of 2231 names takes 3 ms, and most answers are good

    text = body[:ERROR_BODY_MAX].decode("utf-8", "replace")
    text = re.sub(
        r"<(script|style|title)\b.*?</\1>|<[^<>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE
    )
    text = " ".join(html.unescape(text).split())
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
