"""Transport of the SDK: one `requests.Session` per server, a time-out on every call.

The session reads nothing of the environment by itself (`trust_env` is off: a .netrc would replace the token); proxies
and REQUESTS_CA_BUNDLE are taken from the environment once, when the session is made. Redirects are not followed: the
token stays with its server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import requests
from requests import exceptions as failures
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.exceptions import DecodeError, HTTPError, ReadTimeoutError

from client_lib import __version__, errors
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.failures import (
    CONNECT_S,
    CUT,
    ERROR_BODY_MAX,
    SOCKET_FAILURES,
    UNTRUSTED,
    FailureRow,
    check_endpoint_rules,
    error_of_answer,
    translated,
)
from client_lib.transport.rest import Reply, Request

_POOL = 32  # keep-alive connections; more threads than that open connections of their own
_BLOCK = 256 * 1024


class RequestsTransport:
    """A session with one endpoint; see `rest.Transport`."""

    def __init__(self, endpoint: Endpoint, config: Config) -> None:
        check_endpoint_rules(endpoint, config)
        self._url = endpoint.url
        self._session = session = requests.Session()
        session.trust_env = False
        session.mount(endpoint.url, HTTPAdapter(pool_maxsize=_POOL))
        session.headers.update({"User-Agent": f"client-lib/{__version__}", "Accept-Encoding": "identity"})
        if endpoint.token:
            session.headers["Authorization"] = f"Bearer {endpoint.token}"
        session.verify = config.ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or True
        if not is_loopback(urlsplit(endpoint.url).hostname or ""):
            session.proxies.update(get_environ_proxies(endpoint.url))

    @contextmanager
    def open(self, request: Request) -> Iterator[Reply]:
        with translated(_FAILURES, self._url, request.read_s):
            response = self._session.request(
                request.method,
                self._url + request.path,
                params=request.params,
                data=request.body,
                headers=request.headers,
                timeout=(CONNECT_S, request.read_s),
                allow_redirects=False,
                stream=True,
            )
        with response:
            if not 200 <= response.status_code < 300:
                raise _refusal(response)
            yield Reply(response.status_code, self._blocks(response, request))

    def close(self) -> None:
        self._session.close()

    def _blocks(self, response: requests.Response, request: Request) -> Iterator[bytes]:
        with translated(_FAILURES, self._url, request.read_s):
            # decoded only if necessary: after a broken connection the decoder would withhold the last bytes
            yield from response.raw.stream(_BLOCK, decode_content="Content-Encoding" in response.headers)


_FAILURES = (  # the first row whose kind is the failure, or is among its causes
    FailureRow(failures.ProxyError, "{url} can't be reached through the proxy", "see HTTPS_PROXY and NO_PROXY"),
    FailureRow(failures.SSLError, *UNTRUSTED),
    FailureRow(failures.ConnectTimeout, f"{{url}} does not answer (no connection within {CONNECT_S:g} s)"),
    FailureRow(failures.ReadTimeout, "{url} took the request but sent nothing for {read_s:g} s"),
    FailureRow(ReadTimeoutError, "{url} sent nothing more for {read_s:g} s"),
    *SOCKET_FAILURES,
    FailureRow(DecodeError, "{url} sent an answer that can't be decoded", None, False, errors.BadResponse),
    FailureRow(failures.ConnectionError, "{url} does not answer"),
    FailureRow(failures.RequestException, "{url}: the request can't be sent", None, False, errors.InvalidRequest),
    FailureRow(HTTPError, CUT, ours=errors.BadResponse),
)


def _refusal(response: requests.Response) -> Exception:
    try:
        body = next(response.iter_content(ERROR_BODY_MAX), b"")
    except failures.RequestException:
        body = b""  # the status is enough
    sent, header = response.request, response.headers.get
    return error_of_answer(sent.method or "", sent.url or "", response.status_code, response.reason, header, body)
