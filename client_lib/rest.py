"""HTTP as the client needs it: one pool of connections per server, a time-out on every call, every failure as one of
our errors. It is the adapter of requests without its Session: what that adds (cookies, .netrc, redirects, merged
settings) is what a token must be kept from, and half a millisecond per call.

Two tables translate, and nothing else does: `_FAILURES` for requests' exceptions, `_STATUSES` for answers that don't
carry one of our error bodies (a proxy's HTML, another program). What every call is and returns is `api`; when a call is
tried again is `retry`. Only `api` uses this.
"""

from __future__ import annotations

import html
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import BadStatusLine
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
from requests import exceptions as failures
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, ReadTimeoutError

from client_lib import errors, retry
from client_lib.config import CA_BUNDLE, INSECURE, Config, Endpoint, is_loopback
from client_lib.retry import Transient

CONNECT_S = 5.0
READ_S = 60.0
_POOL = 32  # keep-alive connections; a thread more than that opens its own
_SHOWN = 200  # characters of a foreign answer in a message
_LOOK = 64 * 1024  # bytes of an error's body that are read

T = TypeVar("T")
Params = Mapping[str, str | int | float | list[str]]


class Upload(Protocol):
    """A body that is read in blocks; its length is sent in front, so that a server can refuse it unread."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...


class Body(NamedTuple):
    """What a call sends: read from its beginning at each try."""

    data: bytes | Upload
    content_type: str


class Rest:
    """Calls to one server. Thread-safe, and a forked child makes connections of its own."""

    def __init__(self, locate: Callable[[], Endpoint], config: Config) -> None:
        """`locate` says where the server is: asked at the first call and again when nothing answers there."""
        self._locate = locate
        self._config = config
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    @property
    def endpoint(self) -> Endpoint:
        return self._connect().endpoint

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        read_s: float = READ_S,
        removes: bool = False,
        retry_s: float | None = None,
    ) -> bytes:
        """The body of a good answer. The call must be safe to repeat: it is, while the server does not answer.

        `retry_s`: other than the configured bound.
        `removes`: that the thing isn't there is the success of an earlier try whose answer was lost; the body is empty.
        Raises the error that the server sent, or one that says why there is no answer of it.
        """
        request = _Request(method, path, params, body, headers, read_s)
        tries = 0

        def act(connection: _Connection) -> bytes:
            nonlocal tries
            tries += 1
            try:
                return connection.exchange(request)
            except errors.NotFound:
                if removes and tries > 1:
                    return b""
                raise

        return self._repeated(act, self._config.retry_s if retry_s is None else retry_s)

    def stream(
        self, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None, read_s: float
    ) -> requests.Response:
        """An answer whose body the caller reads and closes, inside `translated`. `read_s`: the longest silence."""
        request = _Request("GET", path, params, None, headers, read_s)
        return self._repeated(lambda connection: connection.send(request), self._config.retry_s)

    def _repeated(self, act: Callable[[_Connection], T], bound_s: float) -> T:
        def attempt() -> T:
            connection = self._connect()
            try:
                return act(connection)
            except Transient:
                self._forget(connection)  # a local server comes back at another port
                raise

        return retry.call(attempt, bound_s)

    def close(self) -> None:
        with self._lock:
            if self._connection:
                self._connection.adapter.close()
            self._connection = None

    def _connect(self) -> _Connection:
        connection = self._connection
        if connection and connection.pid == os.getpid():
            return connection
        with self._lock:
            if not self._connection or self._connection.pid != os.getpid():
                self._connection = _Connection(self._locate(), self._config)
            return self._connection

    def _forget(self, connection: _Connection) -> None:
        """The next call asks `locate` again. Calls of other threads on the old connections end as they end."""
        with self._lock:
            if self._connection is connection:
                self._connection = None


class _Request(NamedTuple):
    method: str
    path: str
    params: Params | None = None
    body: Body | None = None
    headers: Mapping[str, str] | None = None
    read_s: float = READ_S


class _Connection:
    """Keep-alive connections to one endpoint."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        _refuse_to_leak(endpoint, config)
        self.endpoint = endpoint
        self.pid = os.getpid()
        self.adapter = HTTPAdapter(pool_maxsize=_POOL)
        self._headers = {"User-Agent": "client-lib", "Accept-Encoding": "identity"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        # what of the environment counts is read here, once
        self._verify = _existing(config.ca_bundle) or os.environ.get("REQUESTS_CA_BUNDLE") or True
        here = is_loopback(urlsplit(endpoint.url).hostname or "")
        self._proxies = {} if here else get_environ_proxies(endpoint.url)

    def exchange(self, request: _Request) -> bytes:
        with self.send(request) as response, translated(self.endpoint.url, request.read_s):
            return response.content

    def send(self, request: _Request) -> requests.Response:
        """A good answer, its body unread; an answer that is none is raised as the error that it means."""
        method, path, params, body, headers, read_s = request
        sent = {**self._headers, **(headers or {}), **({"Content-Type": body.content_type} if body else {})}
        with translated(self.endpoint.url, read_s):
            prepared = requests.Request(
                method, self.endpoint.url + path, params=params, data=body.data if body else None, headers=sent
            ).prepare()
            response = self.adapter.send(
                prepared, stream=True, timeout=(CONNECT_S, read_s), verify=self._verify, proxies=self._proxies
            )
        if 200 <= response.status_code < 300:
            return response
        with response:
            raise _refusal(response)


def _existing(ca_bundle: str | None) -> str | None:
    if ca_bundle and not os.path.exists(ca_bundle):
        raise errors.InvalidRequest(f"ca_bundle {ca_bundle!r} isn't there")
    return ca_bundle


def _refuse_to_leak(endpoint: Endpoint, config: Config) -> None:
    """No token travels readable over a network unless the user said so."""
    token, parts = endpoint.token, urlsplit(endpoint.url)
    if token is None:
        return
    if not (token.isascii() and token.isprintable() and token.strip() == token):
        raise errors.InvalidRequest("the token holds characters that no HTTP header can carry", hint="copy it again")
    if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not config.insecure:
        raise errors.InvalidRequest(
            f"the token would travel readable over plain http to {parts.hostname}",
            hint=f"use https://, or accept the risk with insecure=True or {INSECURE}=1",
        )


# --- failures without an answer


class _Failure(NamedTuple):
    kind: type[Exception]
    message: str
    """`{url}` and `{read_s}` are filled in."""
    hint: str | None = None
    transient: bool = True
    ours: type[errors.ClientLibError] = errors.ServerUnreachable


_CUT = "{url} broke off in the middle of its answer"
_FAILURES = (  # the first row whose kind is the failure, or is among its causes
    _Failure(failures.ProxyError, "{url} can't be reached through the proxy", "see HTTPS_PROXY and NO_PROXY"),
    _Failure(
        failures.SSLError,
        "{url}: its certificate isn't trusted, or it speaks no TLS",
        f"give the certificate authority with ca_bundle= or {CA_BUNDLE}",
        transient=False,
    ),
    _Failure(failures.ConnectTimeout, f"{{url}} does not answer (no connection within {CONNECT_S:g} s)"),
    _Failure(failures.ReadTimeout, "{url} took the request but sent nothing for {read_s:g} s"),
    _Failure(ReadTimeoutError, "{url} sent nothing more for {read_s:g} s"),
    _Failure(
        ConnectionRefusedError,
        "{url} does not answer (connection refused)",
        "`client-lib serve` starts a server; without an endpoint the local one is started for you",
    ),
    _Failure(socket.gaierror, "{url}: the host's name is unknown", "is the endpoint spelled right?", transient=False),
    _Failure(ConnectionResetError, "{url} closed the connection without an answer"),
    _Failure(BadStatusLine, "{url} speaks no HTTP", "is the port right?", False, errors.BadResponse),
    _Failure(failures.ChunkedEncodingError, _CUT, ours=errors.BadResponse),
    _Failure(failures.ContentDecodingError, "{url} answered garbage", None, False, errors.BadResponse),
    _Failure(failures.ConnectionError, "{url} does not answer"),
    _Failure(failures.RequestException, "{url} can't be asked", None, False, errors.InvalidRequest),
    _Failure(HTTPError, _CUT, ours=errors.BadResponse),
)


@contextmanager
def translated(url: str, read_s: float) -> Iterator[None]:
    """Inside, exceptions of requests and urllib3 leave as ours (in a Transient, if the next try may go better)."""
    try:
        yield
    except (failures.RequestException, HTTPError) as error:
        raise _ours(error, url, read_s) from error


def _ours(error: Exception, url: str, read_s: float) -> Exception:
    found = next(row for row in _FAILURES if _caused_by(error, row.kind))
    ours = found.ours(found.message.format(url=url, read_s=read_s), hint=found.hint)
    return Transient(ours) if found.transient else ours


def _caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    """requests wraps urllib3, which wraps the socket's error: in args, `reason`, `__cause__` or `__context__`."""
    chain = [error]
    for link in chain:  # grows while it is read
        inner = (*link.args, getattr(link, "reason", None), link.__cause__, link.__context__)
        chain += [found for found in inner if isinstance(found, BaseException) and found not in chain]
    return any(isinstance(link, kind) for link in chain)


# --- answers that are none


class _Status(NamedTuple):
    ours: type[errors.ClientLibError]
    meaning: str
    transient: bool = False


_STATUSES = {  # for answers without one of our error bodies
    401: _Status(errors.Unauthorized, "no token that it knows"),
    403: _Status(errors.Forbidden, "something in front of the server forbids it"),
    404: _Status(errors.BadResponse, "this is no client-lib server, or of another version"),
    413: _Status(errors.TooLarge, "too large for something in front of the server"),
    429: _Status(errors.Unavailable, "too many requests", transient=True),
    502: _Status(errors.Unavailable, "a proxy without its server", transient=True),
    503: _Status(errors.Unavailable, "not ready", transient=True),
    504: _Status(errors.Unavailable, "a proxy that waited in vain for its server", transient=True),
    507: _Status(errors.StorageFull, "its disk is full"),
}
_UNKNOWN = _Status(errors.BadResponse, "this is no client-lib server, or of another version")
_CODE_OF_NEWER = {404: errors.NotFound, 409: errors.Conflict, 401: errors.Unauthorized, 403: errors.Forbidden}
_RETRY_LATER = (errors.Unavailable,)


def _refusal(response: requests.Response) -> Exception:
    """The error that a bad answer means, in a Transient where the next try may go better."""
    body = _beginning(response)
    ours = _from_body(response.status_code, body) or _from_status(response, body)
    if isinstance(ours, _RETRY_LATER):
        return Transient(ours, _retry_after(response.headers.get("Retry-After")))
    return ours


def _beginning(response: requests.Response) -> bytes:
    try:
        return next(response.iter_content(_LOOK), b"")
    except (failures.RequestException, HTTPError):
        return b""  # the status says enough


def _from_body(status: int, body: bytes) -> errors.ClientLibError | None:
    """The class that the server raised, by its code; None: this is no error body of ours."""
    try:
        data = json.loads(body)
        code, message, hint = str(data["code"]), str(data["message"]), data.get("hint")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    of_status = _CODE_OF_NEWER.get(status, errors.ServerError if status >= 500 else errors.InvalidRequest)
    return errors.BY_CODE.get(code, of_status)(message, hint=hint)


def _from_status(response: requests.Response, body: bytes) -> errors.ClientLibError:
    if response.request.method == "HEAD" and response.status_code == 404:
        return errors.NotFound(f"{response.request.path_url} isn't there")  # by HTTP's rule without a body
    meaning = _STATUSES.get(response.status_code, _UNKNOWN)
    moved = response.headers.get("Location")
    shown = f"a redirect to {moved}" if moved else as_text(body)
    url = (response.request.url or "").split("?")[0]
    return meaning.ours(
        f"{url} answered {response.status_code} {response.reason}{f' ({shown})' if shown else ''}: {meaning.meaning}",
        hint=f"if {moved} is the server, use its address as the endpoint" if moved else None,
    )


def as_text(body: bytes) -> str:
    """What a human would see of an HTML page or another body, on one line."""
    text = body.decode("utf-8", "replace")
    text = re.sub(r"<(script|style|title)\b.*?</\1>|<[^>]*>", " ", text, flags=re.DOTALL | re.IGNORECASE)
    text = " ".join(html.unescape(text).split())
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _retry_after(value: str | None) -> float:
    """Seconds; 0 for an absent header or one that holds a date or nonsense (then our own pauses are used)."""
    try:
        return max(0.0, float(value or 0))
    except ValueError:
        return 0.0
