"""Connections to one server over http.client, which loads in a fifth of the time of requests and takes a third of the
time for a call.

Of the environment only its proxies and REQUESTS_CA_BUNDLE count: a .netrc would replace the token. Redirects are not
followed: the token stays with its server. `failures` translates what goes wrong.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit

from client_lib import __version__
from client_lib.errors import ClientLibError, InvalidRequest, ServerUnreachable
from client_lib.transport.config import Config, Endpoint, is_loopback
from client_lib.transport.failures import (
    CONNECT_S,
    ERROR_BODY_MAX,
    Transient,
    check_endpoint_rules,
    error_of_answer,
    error_of_failure,
    root_cause,
)

Params = Mapping[str, "str | int | float | Sequence[str] | None"]
"""Parameters of a query; those that are None are not sent."""
_BLOCK = 256 * 1024
_IDLE_MAX = 32  # connections that are kept; more threads than that open connections of their own


class Upload(Protocol):
    """A body that is read in blocks, by each try from its beginning. Its length is sent first, so that a server can
    refuse it unread."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...


class Request(NamedTuple):
    method: str
    path: str
    params: Params
    body: bytes | Upload | None
    headers: Mapping[str, str]
    read_s: float
    """Longest silence, in seconds."""


class Reply(NamedTuple):
    """A good answer, its body unread."""

    status: int
    blocks: Iterator[bytes]
    """The body as it arrives, also the last bytes before a cut. Raises Transient for a body that breaks off."""


class Transport:
    """Connections to one endpoint, for any number of threads; each is used again after an answer that was read to its
    end."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self._url, self._ca_bundle = endpoint.url, config.ca_bundle
        self._server = urlsplit(endpoint.url)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"client-lib/{__version__}"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._proxy = _proxy_of(endpoint.url)
        self._idle: list[http.client.HTTPConnection] = []

    @contextmanager
    def open(self, request: Request) -> Iterator[Reply]:
        """Raises the error that another than a good answer means, or Transient if the next try may succeed."""
        with self._translated(request):
            connection = self._free() or self._connected()
            try:
                response = self._answered(connection, request)
            except BaseException:
                connection.close()
                raise
        try:
            if not 200 <= response.status < 300:
                raise self._refusal(response, request)
            yield Reply(response.status, self._blocks(response, request))
        finally:
            if response.isclosed() and len(self._idle) < _IDLE_MAX:  # read to its end
                self._idle.append(connection)
            else:
                response.close()
                connection.close()

    def close(self) -> None:
        while connection := self._free():
            connection.close()

    def _free(self) -> http.client.HTTPConnection | None:
        """An idle connection that the server has not closed."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.sock and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _connected(self) -> http.client.HTTPConnection:
        server, via = self._server, self._proxy or self._server
        connection: http.client.HTTPConnection
        if server.scheme == "https":
            connection = http.client.HTTPSConnection(
                via.hostname or "", via.port, timeout=CONNECT_S, context=self._trusted
            )
            if self._proxy:
                connection.set_tunnel(server.hostname or "", server.port or 443, _login(self._proxy))
        else:
            connection = http.client.HTTPConnection(via.hostname or "", via.port, timeout=CONNECT_S)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            if isinstance(error, TimeoutError):
                reason, hint = f"does not answer (no connection within {CONNECT_S:g} s)", None
            elif self._proxy and not isinstance(error, ssl.SSLError):
                reason, hint = "can't be reached through the proxy", "see HTTPS_PROXY and NO_PROXY"
            else:
                raise
            raise Transient(ServerUnreachable(f"{self._url} {reason}", hint=hint)) from error
        return connection

    @cached_property
    def _trusted(self) -> ssl.SSLContext:
        import certifi

        given = self._ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
        folder = os.path.isdir(given)
        return ssl.create_default_context(cafile=None if folder else given, capath=given if folder else None)

    def _answered(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        """Any answer, its body unread."""
        target = quote(self._server.path, safe="/%") + request.path
        headers = {**self._headers, **request.headers}
        if request.params:
            target += "?" + urlencode(request.params, doseq=True)
        if self._proxy and self._server.scheme == "http":
            target = f"http://{self._server.netloc}{target}"
            headers |= _login(self._proxy)
        data: Any = request.body
        if data is not None:
            headers["Content-Length"] = str(len(data))
        connection.sock.settimeout(request.read_s)
        try:
            connection.request(request.method, target, data, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server refuses an upload before it has read it: its answer has the reason
        return connection.getresponse()

    def _refusal(self, response: http.client.HTTPResponse, request: Request) -> Exception:
        with self._translated(request):
            body = response.read(ERROR_BODY_MAX)
        url, found = self._url + request.path, response.headers
        location, retry_after = found.get("Location"), found.get("Retry-After")
        return error_of_answer(request.method, url, response.status, response.reason, body, location, retry_after)

    def _blocks(self, response: http.client.HTTPResponse, request: Request) -> Iterator[bytes]:
        with self._translated(request):
            while block := response.read1(_BLOCK):
                yield block
            if response.length:  # bytes that were announced and did not come
                raise http.client.IncompleteRead(b"", response.length)
            response.close()

    @contextmanager
    def _translated(self, request: Request) -> Iterator[None]:
        """Translate exceptions of sockets and http.client into ours (inside a Transient, if the next try may
        succeed)."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ClientLibError):
                raise
            raise error_of_failure(error, self._url, request.read_s) from root_cause(error)


def _proxy_of(url: str) -> SplitResult | None:
    """The proxy that the environment names for this server; None: there is none."""
    server = urlsplit(url)
    if is_loopback(server.hostname or ""):
        return None
    from urllib.request import getproxies  # here: most servers are those of this machine

    if {server.scheme, "all"}.isdisjoint(getproxies()):
        return None
    from requests.utils import get_environ_proxies, select_proxy  # they know networks in NO_PROXY

    named = select_proxy(url, get_environ_proxies(url))
    proxy = urlsplit(named if "://" in named else f"http://{named}") if named else None
    if proxy and proxy.scheme != "http":
        raise InvalidRequest(f"the proxy for {url} is one of {proxy.scheme}", hint="HTTPS_PROXY takes http://host:port")
    return proxy


def _login(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}
