"""HTTP to a server on another machine, with the standard library alone: for the agent and the launcher.

One object per thread: it holds one connection. Proxy variables are ignored (http.client never reads them): the server
runs in the cluster, or the operator has configured its address.
"""

import http.client
import json
import os
import ssl
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
    """One connection to the server, opened again when it is lost."""

    def __init__(self, url: str, ca_file: Optional[str], headers: Mapping[str, str]) -> None:
        """`headers` are sent with each request."""
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port)
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._base = parts.path.rstrip("/")
        self._headers = {**headers, "X-Worker-Protocol": PROTOCOL}
        self._connection: Optional[http.client.HTTPConnection] = None
        self._kept = False  # the connection has carried an answer

    def close(self) -> None:
        self._kept = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def exchange(self, method: str, path: str, body: Body, read: Callable[[Any], T], wait_s: float = 0.0) -> T:
        """Send the request; returns the result of `read` for the JSON of the answer, which may take `wait_s` longer
        than usual. Raises Unreachable, Rejected."""
        answer = self.call(method, path, body, wait_s)
        try:
            return read(json.loads(answer.read()))
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:
            self.close()
            raise Unreachable("what answered %s is not this server: %r" % (path.partition("?")[0], error)) from error

    def call(
        self, method: str, path: str, body: Optional[Body] = None, wait_s: float = 0.0
    ) -> http.client.HTTPResponse:
        """The answer, its body unread. Tried again on a new connection if a kept one was closed by the server."""
        try:
            try:
                answer = self._once(method, path, body, wait_s)
            except ConnectionError:
                if not self._kept:
                    raise
                self.close()
                if body is not None and not isinstance(body, bytes):
                    body.seek(0)
                answer = self._once(method, path, body, wait_s)
            self._kept = True
            return self._checked(answer)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable("%s: %s" % (type(error).__name__, error)) from error

    def _once(self, method: str, path: str, body: Optional[Body], wait_s: float) -> http.client.HTTPResponse:
        connection = self._connected()
        connection.sock.settimeout(_ANSWER_S + wait_s)
        headers = dict(self._headers)
        if body is not None:
            size = len(body) if isinstance(body, bytes) else os.fstat(body.fileno()).st_size
            headers["Content-Length"] = str(size)
        connection.request(method, self._base + path, body=body, headers=headers)
        return connection.getresponse()

    def _connected(self) -> http.client.HTTPConnection:
        """The open connection, or a new one: http.client closes it after an answer with `Connection: close`, which a
        server gives while it ends."""
        if self._connection is None or self._connection.sock is None:
            self._kept = False
            self._connection = self._new_connection()
            self._connection.connect()
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        host, port = self._address
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=_CONNECT_S, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=_CONNECT_S)

    def _checked(self, answer: http.client.HTTPResponse) -> http.client.HTTPResponse:
        if answer.status < 300:
            return answer
        text = answer.read(65536)
        self.close()
        if 400 <= answer.status < 500 and answer.status not in (408, 425, 429):
            raise Rejected(_message(text, answer.status), answer.status)
        raise Unreachable(_message(text, answer.status), answer.status)


def _message(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return "HTTP status %d" % status
