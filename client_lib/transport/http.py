"""HTTP to one endpoint over http.client: connections that are used again, a time-out on every call.

requests takes as long to load as all else that a submit or `client-lib list` does. Of the environment only the proxies
and REQUESTS_CA_BUNDLE are read: a .netrc would replace the token. Redirects are not followed: the token stays with its
server.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import selectors
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from client_lib import __version__
from client_lib.errors import ClientLibError, NotSupported, ServerUnreachable
from client_lib.transport.config import Config, Endpoint, is_loopback
from client_lib.transport.failures import (
    CONNECT_S,
    ERROR_BODY_MAX,
    check_endpoint_rules,
    error_of_answer,
    error_of_failure,
    root_cause,
)
from client_lib.transport.retry import Transient

Params = Mapping[str, "str | int | float | Sequence[str]"]
_BLOCK = 256 * 1024


class Upload(Protocol):
    """A body that is read in blocks, by each try from its beginning. Its length is sent first, so that a server can
    refuse it unread."""

    def __iter__(self) -> Iterator[bytes]: ...
    def __len__(self) -> int: ...


class Request(NamedTuple):
    method: str
    path: str
    params: Params | None
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
    """Connections to one endpoint, for any number of threads."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self._url = endpoint.url
        self._ca_bundle = config.ca_bundle
        self._parts = urlsplit(endpoint.url)
        self._proxy = _proxy_for(self._parts)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"client-lib/{__version__}"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._idle: list[http.client.HTTPConnection] = []

    @contextmanager
    def open(self, request: Request) -> Iterator[Reply]:
        """Raises the error that any other answer means, or Transient if the next try may succeed."""
        with self._translated(request):
            connection = self._free() or self._connected()
            try:
                response = self._answered(connection, request)
            except BaseException:
                connection.close()
                raise
        try:
            yield Reply(response.status, self._blocks(response, request))
        finally:
            if response.isclosed():  # read to its end
                self._idle.append(connection)
            else:
                response.close()
                connection.close()

    def close(self) -> None:
        while idle := self._pop():
            idle.close()

    def _pop(self) -> http.client.HTTPConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _free(self) -> http.client.HTTPConnection | None:
        """An idle connection that the server has not closed."""
        while connection := self._pop():
            if connection.sock and not _is_readable(connection.sock):
                return connection
            connection.close()
        return None

    def _connected(self) -> http.client.HTTPConnection:
        to = self._proxy or self._parts
        host, port = to.hostname or "", to.port or (80 if self._proxy else None)
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=_tls(self._ca_bundle))
            if self._proxy:
                connection.set_tunnel(self._parts.hostname or "", self._parts.port, _credentials(self._proxy))
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        try:
            connection.connect()
        except TimeoutError as error:
            raise Transient(
                ServerUnreachable(f"{self._url} does not answer (no connection within {CONNECT_S:g} s)")
            ) from error
        except OSError as error:
            if self._proxy and not isinstance(error, ssl.SSLError):
                raise Transient(
                    ServerUnreachable(
                        f"{self._url} can't be reached through the proxy", hint="see HTTPS_PROXY and NO_PROXY"
                    )
                ) from error
            raise
        return connection

    def _answered(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        """A good answer with its body unread. Raises the error that any other answer means."""
        target = self._parts.path + request.path
        if request.params:
            target += "?" + urlencode(request.params, doseq=True)
        headers = {**self._headers, **request.headers}
        if self._proxy and self._parts.scheme == "http":
            target = f"http://{self._parts.netloc}{target}"
            headers |= _credentials(self._proxy)
        data: Any = request.body
        if data is not None:
            headers["Content-Length"] = str(len(data))
        connection.sock.settimeout(request.read_s)
        try:
            connection.request(request.method, target, data, headers)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server refuses an upload before it has read it: its answer has the reason
        response = connection.getresponse()
        if 200 <= response.status < 300:
            return response
        found, body = response.headers, response.read(ERROR_BODY_MAX)
        location, retry_after = found.get("Location"), found.get("Retry-After")
        raise error_of_answer(
            request.method, self._url + request.path, response.status, response.reason, body, location, retry_after
        )

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


def _is_readable(sock: socket.socket) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _tls(ca_bundle: str | None) -> ssl.SSLContext:
    import certifi

    trusted = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
    folder = os.path.isdir(trusted)
    return ssl.create_default_context(cafile=None if folder else trusted, capath=trusted if folder else None)


# --- proxies


def _proxy_for(server: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for this server. Raises NotSupported: it is none of HTTP."""
    host = server.hostname or ""
    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    named = proxies.get(server.scheme) or proxies.get("all")
    without = proxies.get("no", "").split(",")
    if not named or proxy_bypass(server.netloc) or any(_is_within(host, network.strip()) for network in without):
        return None
    proxy = urlsplit(named if "://" in named else f"http://{named}")
    if proxy.scheme != "http":
        raise NotSupported(
            f"{server.netloc} can't be called through the proxy {proxy.scheme}://{proxy.hostname}",
            hint="write http://HOST:PORT into HTTPS_PROXY, or the server's name into NO_PROXY",
        )
    return proxy


def _is_within(host: str, network: str) -> bool:
    """`10.1.2.3` is within `10.0.0.0/8`."""
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network)
    except ValueError:
        return False


def _credentials(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {b64encode(words).decode()}"}
