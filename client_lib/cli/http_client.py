"""Transport of the command line, over http.client: what `transport.http` is for the SDK.

requests takes as long to load as all else that `list`, `status` and `logs` do (benchmarks/start_up.py), and a command
makes a few calls, one after another. Rules and messages are shared: `rest`, `failures`. A server behind a proxy
is called by requests, which knows proxies.
"""

from __future__ import annotations

import http.client
import os
import select
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from client_lib import __version__
from client_lib.errors import ServerUnreachable
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import (
    CONNECT_S,
    ERROR_BODY_MAX,
    HTTP_CLIENT_FAILURES,
    Transient,
    check_endpoint_rules,
    error_of_answer,
    translated,
)
from client_lib.transport.rest import Reply, Request, Transport

_BLOCK = 256 * 1024


def connect(endpoint: Endpoint, config: Config) -> Transport:
    server = urlsplit(endpoint.url)
    if not is_loopback(server.hostname or ""):
        from urllib.request import getproxies, proxy_bypass

        if not {server.scheme, "all"}.isdisjoint(getproxies()) and not proxy_bypass(server.netloc):
            from client_lib.transport.http import RequestsTransport

            return RequestsTransport(endpoint, config)
    return HttpClientTransport(endpoint, config)


class HttpClientTransport:
    """Connections to one endpoint, each used again after an answer that was read to its end; see `rest.Transport`."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self._url = endpoint.url
        self._ca_bundle = config.ca_bundle
        self._parts = urlsplit(endpoint.url)
        self._headers = {"Accept-Encoding": "identity", "User-Agent": f"client-lib/{__version__}"}
        if endpoint.token:
            self._headers["Authorization"] = f"Bearer {endpoint.token}"
        self._idle: list[http.client.HTTPConnection] = []

    @contextmanager
    def open(self, request: Request) -> Iterator[Reply]:
        with translated(HTTP_CLIENT_FAILURES, self._url, request.read_s):
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
        host, port = self._parts.hostname or "", self._parts.port  # without a port, http.client looks for one in `::1`
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                host, port or 443, timeout=CONNECT_S, context=_tls(self._ca_bundle)
            )
        else:
            connection = http.client.HTTPConnection(host, port or 80, timeout=CONNECT_S)
        try:
            connection.connect()
        except TimeoutError as error:
            raise Transient(
                ServerUnreachable(f"{self._url} does not answer (no connection within {CONNECT_S:g} s)")
            ) from error
        return connection

    def _answered(self, connection: http.client.HTTPConnection, request: Request) -> http.client.HTTPResponse:
        """A good answer with its body unread. Raises the error that any other answer means."""
        target = self._parts.path + request.path
        if request.params:
            target += "?" + urlencode(request.params, doseq=True)
        headers = {**self._headers, **request.headers}
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
        url, header, body = self._url + request.path, response.headers.get, response.read(ERROR_BODY_MAX)
        raise error_of_answer(request.method, url, response.status, response.reason, header, body)

    def _blocks(self, response: http.client.HTTPResponse, request: Request) -> Iterator[bytes]:
        with translated(HTTP_CLIENT_FAILURES, self._url, request.read_s):
            while block := response.read1(_BLOCK):
                yield block
            if response.length:  # bytes that were announced and did not come
                raise http.client.IncompleteRead(b"", response.length)
            response.close()


def _tls(ca_bundle: str | None) -> Any:
    """The authorities that the SDK trusts, too."""
    import certifi

    trusted = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
    folder = os.path.isdir(trusted)
    return ssl.create_default_context(cafile=None if folder else trusted, capath=trusted if folder else None)
