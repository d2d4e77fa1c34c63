"""Transport of the command line, over http.client: what `transport.http` is for the SDK.

requests takes as long to load as all else that `list`, `status` and `logs` do
(benchmarks/start_up.py), and a command makes a few calls, one after another. A server behind a
proxy is called by requests, which knows proxies.
"""

import http.client
import os
import select
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlencode, urlsplit

from client_lib.errors import BadResponse, ServerUnreachable
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import (
    CONNECT_S,
    CUT,
    SOCKET_FAILURES,
    UNTRUSTED,
    FailureRow,
    Transient,
)
from client_lib.transport.rest import BLOCK, Request, Transport


def connect(endpoint: Endpoint, config: Config) -> Transport:
    server = urlsplit(endpoint.url)
    if not is_loopback(server.hostname or ""):
        from urllib.request import getproxies, proxy_bypass

        if not {server.scheme, "all"}.isdisjoint(getproxies()) and not proxy_bypass(server.netloc):
            from client_lib.transport.http import RequestsTransport

            return RequestsTransport(endpoint, config)
    return HttpClientTransport(endpoint, config)


class HttpClientTransport(Transport):
    """A connection is used again after an answer that was read to its end."""

    failures = (
        FailureRow(ssl.SSLError, *UNTRUSTED),
        *SOCKET_FAILURES,
        FailureRow(http.client.HTTPException, CUT, ours=BadResponse),
        FailureRow(TimeoutError, "{url} sent nothing for {read_s:g} s"),
        FailureRow(OSError, "{url} does not answer"),
    )

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        super().__init__(endpoint, config)
        self._parts = urlsplit(endpoint.url)
        self._idle: list[http.client.HTTPConnection] = []

    @contextmanager
    def send(self, request: Request) -> Iterator[http.client.HTTPResponse]:
        target = self._parts.path + request.path
        if request.params:
            target += "?" + urlencode(request.params, doseq=True, errors="surrogateescape")
        headers = {**self.headers, **request.headers}
        data = request.body
        if data is not None:
            headers["Content-Length"] = str(len(data))
        with ExitStack() as used:
            connection = self._free() or self._connected()
            used.callback(connection.close)
            connection.sock.settimeout(request.read_s)
            # a server may refuse an upload before it has read it: its answer has the reason
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(request.method, target, data, headers)
            response = connection.getresponse()
            used.callback(response.close)
            yield response
            if response.isclosed():  # read to its end
                used.pop_all()
                self._idle.append(connection)

    def body(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        while block := answer.read1(BLOCK):
            yield block
        if answer.length:  # bytes that were announced and did not come
            raise http.client.IncompleteRead(b"", answer.length)
        answer.close()

    def close(self) -> None:
        while connection := self._free():
            connection.close()

    def _free(self) -> http.client.HTTPConnection | None:
        """An idle connection that the server has not closed."""
        with suppress(IndexError):  # there is none
            while connection := self._idle.pop():
                if connection.sock and not select.select([connection.sock], [], [], 0)[0]:
                    return connection
                connection.close()
        return None

    def _connected(self) -> http.client.HTTPConnection:
        # without a port, http.client looks for one in `::1`
        host = self._parts.hostname or ""
        port = self._parts.port
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            import certifi  # the authorities that the SDK trusts, too

            trusted = self.trusted or certifi.where()
            folder = os.path.isdir(trusted)
            tls = ssl.create_default_context(
                cafile=None if folder else trusted, capath=trusted if folder else None
            )
            connection = http.client.HTTPSConnection(
                host, port or 443, timeout=CONNECT_S, context=tls
            )
        else:
            connection = http.client.HTTPConnection(host, port or 80, timeout=CONNECT_S)
        try:
            connection.connect()
        except TimeoutError as error:
            raise Transient(
                ServerUnreachable(
                    f"{self.url} does not answer (no connection within {CONNECT_S:g} s)"
                )
            ) from error
        return connection
