"""Reads of the command line: GET requests over http.client to plain dicts.

The SDK's transport and models (requests, pydantic) take 200 ms to load, more than everything else that `list`, `status`
and `logs` do (benchmarks/command_line.py). So every read of the command line goes through this module, and everything
that changes something through the SDK. Rules and messages are shared with it: `config`, `failures`, `retry`.
"""

from __future__ import annotations

import http.client
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from client_lib.errors import ClientLibError, ServerUnreachable
from client_lib.transport import retry
from client_lib.transport.config import Config, Endpoint, is_loopback
from client_lib.transport.failures import (
    CONNECT_S,
    ERROR_BODY_MAX,
    HTTP_CLIENT_FAILURES,
    NO_PROXY_WAY,
    READ_S,
    UNTRUSTED,
    FailureRow,
    bad_content,
    check_endpoint_rules,
    error_of_answer,
    error_of_failure,
)
from client_lib.transport.retry import Transient

Params = Mapping[str, "str | Sequence[str]"]

_BLOCK = 64 * 1024


class Reader:
    """One server. Each request opens a connection."""

    def __init__(self, config: Config, locate: Callable[[], Endpoint]) -> None:
        """`locate` returns the server's address. Each try calls it: a local server comes back at another port."""
        self._config = config
        self._locate = locate

    def get(
        self, path: str, key: str, params: Params | None = None, *, read_s: float = READ_S, retry_s: float | None = None
    ) -> dict[str, Any]:
        """Return the JSON object of a good answer, which holds `key`. The call is repeated while no answer comes.

        Raises the error that the server sent, or one that explains why there is no answer.
        """

        def once() -> tuple[str, bytes]:
            exchange = _Exchange(self._locate(), self._config, read_s)
            with exchange.translated(), exchange.answer(path, params, "application/json") as response:
                return exchange.url, response.read()

        url, body = retry.call(once, self._config.retry_s if retry_s is None else retry_s)
        try:
            found = json.loads(body)
        except ValueError as error:
            raise bad_content(url, "JSON", body) from error
        if not isinstance(found, dict) or key not in found:
            raise bad_content(url, f"JSON with {key!r}", body)
        return found

    def stream(self, path: str, params: Params, *, accept: str, read_s: float) -> Iterator[bytes]:
        """The bytes of a good answer as they arrive. `read_s`: the longest silence.

        Raises as `get`, and Transient for a body that breaks off.
        """

        def once() -> tuple[_Exchange, http.client.HTTPResponse]:
            exchange = _Exchange(self._locate(), self._config, read_s)
            with exchange.translated():
                return exchange, exchange.answer(path, params, accept)

        exchange, response = retry.call(once, self._config.retry_s)
        with exchange.translated(), response:
            while block := response.read1(_BLOCK):
                yield block


class _Exchange:
    """One request to one endpoint."""

    def __init__(self, endpoint: Endpoint, config: Config, read_s: float) -> None:
        check_endpoint_rules(endpoint, config)
        self.url = endpoint.url
        self._token = endpoint.token
        self._ca_bundle = config.ca_bundle
        self._read_s = read_s
        self._parts = urlsplit(endpoint.url)
        self._proxy = _proxy_for(self._parts)

    def answer(self, path: str, params: Params | None, accept: str) -> http.client.HTTPResponse:
        """Return a good answer with its body unread. Raises the error that any other answer means."""
        target = self._parts.path + path + ("?" + urlencode(params, doseq=True) if params else "")
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "client-lib", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if self._proxy and self._parts.scheme == "http":
            target = f"http://{self._parts.netloc}{target}"
            headers |= _proxy_headers(self._proxy)
        connection = self._connected()
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()  # it owns the socket: the answer ends the connection
        if 200 <= response.status < 300:
            return response
        with response:
            body = response.read(ERROR_BODY_MAX)
        found = response.headers
        location, retry_after = found.get("Location"), found.get("Retry-After")
        raise error_of_answer(self.url + path, response.status, response.reason, body, location, retry_after)

    def _connected(self) -> http.client.HTTPConnection:
        to = self._proxy or self._parts
        host, port = to.hostname or "", to.port
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=_tls(self._ca_bundle))
            if self._proxy:
                connection.set_tunnel(self._parts.hostname or "", self._parts.port, _proxy_headers(self._proxy))
        else:
            connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        try:
            connection.connect()
        except TimeoutError as error:
            raise Transient(
                ServerUnreachable(f"{self.url} does not answer (no connection within {CONNECT_S:g} s)")
            ) from error
        connection.sock.settimeout(self._read_s)
        return connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate exceptions of sockets and http.client into ours."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, ClientLibError):
                raise
            raise error_of_failure(error, self._table(), self.url, self._read_s) from error

    def _table(self) -> tuple[FailureRow, ...]:
        import ssl

        rows = (FailureRow(ssl.SSLError, *UNTRUSTED), *HTTP_CLIENT_FAILURES)
        return (FailureRow(OSError, *NO_PROXY_WAY), *rows) if self._proxy else rows


def _tls(ca_bundle: str | None) -> Any:
    """The authorities that the SDK trusts, too."""
    import ssl

    import certifi

    trusted = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or certifi.where()
    folder = os.path.isdir(trusted)
    return ssl.create_default_context(cafile=None if folder else trusted, capath=trusted if folder else None)


def _proxy_for(server: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for this server; None: no proxy."""
    host = server.hostname or ""
    if is_loopback(host):
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies()
    proxy = found.get(server.scheme) or found.get("all")
    if not proxy or proxy_bypass(server.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if not proxy.username:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}
