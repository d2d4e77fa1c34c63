"""HTTP to a server on another machine, with the standard library alone: for the agent and the
launcher.

Proxy variables are ignored (http.client never reads them): the server runs in the cluster, or the
operator has configured its address.
"""

import contextlib
import http.client
import json
import os
import ssl
from http.client import HTTPConnection, HTTPSConnection
from typing import Any, BinaryIO, Callable, Mapping, Optional, TypeVar, Union
from urllib.parse import urlsplit

PROTOCOL = "1"
_CONNECT_S = 5.0
_ANSWER_S = 20.0

Body = Union[bytes, BinaryIO]
T = TypeVar("T")


class RequestFailed(Exception):
    """`status` is HTTP's; 0: there was no answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(RequestFailed):
    """No answer, or one that allows another try."""


class Rejected(RequestFailed):
    """An answer that another try does not change."""


class ServerConnection:
    """One connection to the server, for one thread; opened again when it is lost."""

    def __init__(self, url: str, ca_file: Optional[str], headers: Mapping[str, str]) -> None:
        """`headers` are sent with each request."""
        parts = urlsplit(url)
        self._connection: HTTPConnection
        if parts.scheme == "https":
            tls = ssl.create_default_context(cafile=ca_file)
            self._connection = HTTPSConnection(
                parts.hostname or "", parts.port, timeout=_CONNECT_S, context=tls
            )
        else:
            self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=_CONNECT_S)
        self._base = parts.path.rstrip("/")
        self._headers = {**headers, "X-Worker-Protocol": PROTOCOL}
        self._kept = False  # the connection has carried an answer

    def close(self) -> None:
        self._kept = False
        self._connection.close()

    def exchange(
        self, method: str, path: str, body: Body, read: Callable[[Any], T], wait_s: float = 0.0
    ) -> T:
        """Return what `read` makes of the JSON of the answer, which may take `wait_s` longer than
        usual. Raises Unreachable, Rejected."""
        answer = self.call(method, path, body, wait_s)
        try:
            return read(json.loads(answer.read()))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise Unreachable(
                "what answered %s is not this server: %r" % (path.partition("?")[0], error)
            ) from error

    def call(
        self, method: str, path: str, body: Optional[Body] = None, wait_s: float = 0.0
    ) -> http.client.HTTPResponse:
        """The answer, its body unread. Tried again on a new connection if a kept one was closed by
        the server. Raises Unreachable, Rejected."""
        try:
            try:
                answer = self._once(method, path, body, wait_s)
            except ConnectionError:
                if not self._kept:
                    raise
                self.close()
                answer = self._once(method, path, body, wait_s)
            self._kept = True
            if answer.status < 300:
                return answer
            text = answer.read(65536)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable("%s: %s" % (type(error).__name__, error)) from error
        self.close()
        message = "HTTP status %d" % answer.status
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = str(json.loads(text)["message"])
        is_final = 400 <= answer.status < 500 and answer.status not in (408, 425, 429)
        raise (Rejected if is_final else Unreachable)(message, answer.status)

    def _once(
        self, method: str, path: str, body: Optional[Body], wait_s: float
    ) -> http.client.HTTPResponse:
        # new, or closed after an answer: a server that ends asks for that
        if self._connection.sock is None:
            self._kept = False
            self._connection.connect()
        self._connection.sock.settimeout(_ANSWER_S + wait_s)
        headers = dict(self._headers)
        if body is not None and not isinstance(body, bytes):
            body.seek(0)
            headers["Content-Length"] = str(os.fstat(body.fileno()).st_size)
        self._connection.request(method, self._base + path, body=body, headers=headers)
        return self._connection.getresponse()
