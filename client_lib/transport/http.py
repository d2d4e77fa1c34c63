"""Transport of the SDK: one `requests.Session` per server, a time-out on every call.

The session reads nothing of the environment (a .netrc would replace the token) but proxies, once,
when it is made. Redirects are not followed: the token stays with its server.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from requests import exceptions
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.exceptions import DecodeError, HTTPError, ReadTimeoutError

from client_lib import errors
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import CONNECT_S, CUT, SOCKET_FAILURES, UNTRUSTED, FailureRow
from client_lib.transport.rest import BLOCK, Request, Transport

_POOL = 32  # keep-alive connections; more threads than that open connections of their own


class RequestsTransport(Transport):
    failures = (  # the first row whose kind is the failure, or is among its causes
        FailureRow(
            exceptions.ProxyError,
            "{url} can't be reached through the proxy",
            "see HTTPS_PROXY and NO_PROXY",
        ),
        FailureRow(exceptions.SSLError, *UNTRUSTED),
        FailureRow(
            exceptions.ConnectTimeout,
            f"{{url}} does not answer (no connection within {CONNECT_S:g} s)",
        ),
        FailureRow(
            exceptions.ReadTimeout, "{url} took the request but sent nothing for {read_s:g} s"
        ),
        FailureRow(ReadTimeoutError, "{url} sent nothing more for {read_s:g} s"),
        *SOCKET_FAILURES,
        FailureRow(
            DecodeError,
            "{url} sent an answer that can't be decoded",
            None,
            False,
            errors.BadResponse,
        ),
        FailureRow(exceptions.ConnectionError, "{url} does not answer"),
        FailureRow(
            exceptions.RequestException,
            "{url}: the request can't be sent",
            None,
            False,
            errors.InvalidRequest,
        ),
        FailureRow(HTTPError, CUT, ours=errors.BadResponse),
    )

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        super().__init__(endpoint, config)
        self._session = session = requests.Session()
        session.trust_env = False
        session.mount(endpoint.url, HTTPAdapter(pool_maxsize=_POOL))
        session.headers.update(self.headers)
        session.verify = self.trusted or True
        if not is_loopback(urlsplit(endpoint.url).hostname or ""):
            session.proxies.update(get_environ_proxies(endpoint.url))

    @contextmanager
    def send(self, request: Request) -> Iterator[Any]:
        with self._session.request(
            request.method,
            self.url + request.path,
            params=request.params,
            data=request.body,
            headers=request.headers,
            timeout=(CONNECT_S, request.read_s),
            allow_redirects=False,
            stream=True,
        ) as response:
            yield response.raw

    def body(self, answer: Any) -> Iterator[bytes]:
        # decoded only if necessary: after a broken connection the decoder would withhold the last
        # bytes
        yield from answer.stream(BLOCK, decode_content="Content-Encoding" in answer.headers)

    def close(self) -> None:
        self._session.close()
