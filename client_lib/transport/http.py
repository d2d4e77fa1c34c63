"""HTTP for the SDK: one `requests.Session` per server, a time-out on every call, every failure as one of our errors.

The session reads nothing of the environment by itself (`trust_env` is off: a .netrc would replace the token); proxies
and REQUESTS_CA_BUNDLE are taken from the environment once, when the session is made. Redirects are not followed: the
token stays with its server.

`_FAILURES` translates exceptions of requests, `failures` everything else. `retry` decides how often a call is repeated.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import requests
from requests import exceptions as failures
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.exceptions import HTTPError, ReadTimeoutError

from client_lib import errors
from client_lib.transport import retry
from client_lib.transport.config import Config, Endpoint, is_loopback
from client_lib.transport.failures import (
    CONNECT_S,
    CUT,
    ERROR_BODY_MAX,
    NO_PROXY_WAY,
    READ_S,
    SOCKET_FAILURES,
    UNTRUSTED,
    FailureRow,
    check_endpoint_rules,
    error_of_answer,
    error_of_failure,
)
from client_lib.transport.retry import Transient

_POOL = 32  # keep-alive connections; more threads than that open connections of their own

T = TypeVar("T")
Params = Mapping[str, str | int | float | list[str]]


class Upload(Protocol):
    """A body that is read in blocks. Its length is sent first, so that a server can refuse it unread."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...


class Body(NamedTuple):
    """The body of a request; each try sends it from its beginning."""

    data: bytes | Upload
    content_type: str


class Rest:
    """Calls to one server. Thread-safe; a forked child opens connections of its own."""

    def __init__(self, locate: Callable[[], Endpoint], config: Config) -> None:
        """`locate` returns the server's address. It is called before the first request and after a lost connection."""
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
        """Return the body of a good answer. The call must be safe to repeat: it is repeated while no answer comes.

        `retry_s`: replaces the configured bound of the repetitions.
        `removes`: NotFound on a repeated call means that an earlier try succeeded and its answer was lost; the body is
        empty then.
        Raises the error that the server sent, or one that explains why there is no answer.
        """
        request = _Request(method, path, params, body, headers, read_s)
        tries = 0

        def attempt(connection: _Connection) -> bytes:
            nonlocal tries
            tries += 1
            try:
                return connection.exchange(request)
            except errors.NotFound:
                if removes and tries > 1:
                    return b""
                raise

        return self._repeated(attempt, self._config.retry_s if retry_s is None else retry_s)

    @contextmanager
    def stream(
        self, path: str, *, params: Params | None = None, headers: Mapping[str, str] | None = None, read_s: float
    ) -> Iterator[requests.Response]:
        """An answer whose body the caller reads inside the block, from `response.raw`: that one hands out bytes as they
        arrive, also the last ones before a cut. `read_s`: the longest silence.

        Raises, also inside the block: as `call`, and Transient for a body that breaks off.
        """
        request = _Request("GET", path, params, None, headers, read_s)
        connection, response = self._repeated(lambda found: (found, found.send(request)), self._config.retry_s)
        with response, _translated(connection.endpoint.url, read_s):
            yield response

    def _repeated(self, attempt: Callable[[_Connection], T], bound_s: float) -> T:
        def once() -> T:
            connection = self._connect()
            try:
                return attempt(connection)
            except Transient:
                self._forget(connection)  # a local server comes back at another port
                raise

        return retry.call(once, bound_s)

    def close(self) -> None:
        with self._lock:
            if self._connection:
                self._connection.session.close()
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
        """Make the next call locate the server again. Running calls of other threads keep the old connections."""
        with self._lock:
            if self._connection is connection:
                self._connection = None


class _Request(NamedTuple):
    method: str
    path: str
    params: Params | None
    body: Body | None
    headers: Mapping[str, str] | None
    read_s: float


class _Connection:
    """A session with one endpoint."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self.endpoint = endpoint
        self.pid = os.getpid()
        self.session = session = requests.Session()
        session.trust_env = False
        session.mount(endpoint.url, HTTPAdapter(pool_maxsize=_POOL))
        session.headers.update({"User-Agent": "client-lib", "Accept-Encoding": "identity"})
        if endpoint.token:
            session.headers["Authorization"] = f"Bearer {endpoint.token}"
        session.verify = config.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True
        if not is_loopback(urlsplit(endpoint.url).hostname or ""):
            session.proxies.update(get_environ_proxies(endpoint.url))

    def exchange(self, request: _Request) -> bytes:
        with self.send(request) as response, _translated(self.endpoint.url, request.read_s):
            return response.content

    def send(self, request: _Request) -> requests.Response:
        """Return a good answer with its body unread. Raises the error that any other answer means."""
        method, path, params, body, headers, read_s = request
        with _translated(self.endpoint.url, read_s):
            response = self.session.request(
                method,
                self.endpoint.url + path,
                params=params,
                data=body.data if body else None,
                headers={**(headers or {}), **({"Content-Type": body.content_type} if body else {})},
                timeout=(CONNECT_S, read_s),
                allow_redirects=False,
                stream=True,
            )
        if 200 <= response.status_code < 300:
            return response
        with response:
            raise _refusal(response)


# --- failures without an answer

_FAILURES = (  # the first row whose kind is the failure, or is among its causes
    FailureRow(failures.ProxyError, *NO_PROXY_WAY),
    FailureRow(failures.SSLError, *UNTRUSTED),
    FailureRow(failures.ConnectTimeout, f"{{url}} does not answer (no connection within {CONNECT_S:g} s)"),
    FailureRow(failures.ReadTimeout, "{url} took the request but sent nothing for {read_s:g} s"),
    FailureRow(ReadTimeoutError, "{url} sent nothing more for {read_s:g} s"),
    *SOCKET_FAILURES,
    FailureRow(failures.ChunkedEncodingError, CUT, ours=errors.BadResponse),
    FailureRow(
        failures.ContentDecodingError, "{url} sent an answer that can't be decoded", None, False, errors.BadResponse
    ),
    FailureRow(failures.ConnectionError, "{url} does not answer"),
    FailureRow(failures.RequestException, "{url}: the request can't be sent", None, False, errors.InvalidRequest),
    FailureRow(HTTPError, CUT, ours=errors.BadResponse),
)


@contextmanager
def _translated(url: str, read_s: float) -> Iterator[None]:
    """Translate exceptions of requests and urllib3 into ours (inside a Transient, if the next try may succeed)."""
    try:
        yield
    except (failures.RequestException, HTTPError) as error:
        raise error_of_failure(error, _FAILURES, url, read_s) from error


def _refusal(response: requests.Response) -> Exception:
    """The error that a bad answer means."""
    if response.request.method == "HEAD" and response.status_code == 404:
        return errors.NotFound(f"{response.request.path_url} does not exist")  # an answer to HEAD has no body
    found = response.headers
    location, retry_after = found.get("Location"), found.get("Retry-After")
    url = response.request.url or ""
    return error_of_answer(url, response.status_code, response.reason, _beginning(response), location, retry_after)


def _beginning(response: requests.Response) -> bytes:
    try:
        return next(response.iter_content(ERROR_BODY_MAX), b"")
    except failures.RequestException:
        return b""  # the status is enough
