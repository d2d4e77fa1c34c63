"""Bounds of a request: an ASGI layer for header lines, NUL bytes and bodies, and an HTTP parser that bounds the head.

The body is counted as it streams, so that one without a Content-Length is bounded too. A snapshot and a function's
result have larger bounds, which their handlers check while they stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.errors import ClientLibError, InvalidRequest, TooLarge
from client_lib.spec import paths
from server_stub.settings import Settings

MAX_HEADERS = 100  # header lines of a request; browsers send about 20
MAX_BODY_BYTES = 16 * 2**20  # a submit carries the caller's environment, which Linux lets grow to 6 MB
HEAD_MAX = 64 * 1024  # bytes of request line and headers; nginx and h11 allow as much
_LINGER_BYTES = 32 * 2**20
_LINGER_S = 2.0
_HEAD_TOO_LARGE = b'{"code": "too_large", "message": "the headers of the request are larger than 65536 bytes"}'


class Limits:
    """The ASGI layer. `error` makes the response to a request that is over a bound."""

    def __init__(self, app: ASGIApp, settings: Settings, error: Callable[[ClientLibError], Response]) -> None:
        self._app = app
        self._settings = settings
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive = await self._checked(scope, receive)
        except ClientLibError as problem:
            await self._error(problem)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """`receive`, bounded where the length of the body is unknown. Raises InvalidRequest, TooLarge."""
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise InvalidRequest(f"the request has {len(headers)} header lines; at most {MAX_HEADERS} are read")
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # PostgreSQL's texts hold none
            raise InvalidRequest("the address holds a NUL byte; no name does")
        is_result = paths.is_of_workers(scope["path"]) and "/results/" in scope["path"]
        is_file = is_result or scope["path"].startswith(paths.SNAPSHOTS)
        bound = self._settings.max_snapshot_bytes if is_file else MAX_BODY_BYTES
        declared = _declared(headers)
        if declared > bound:
            if not any(name == b"expect" for name, _ in headers):  # curl waits for a 100 before it sends the body
                await _discard(receive)
            raise _too_large(bound)
        # the HTTP parser reads no more than the declared length
        return receive if declared or is_file else _bounded(receive, bound)


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    """The Content-Length; 0 without one. The HTTP parser has refused one that is no number."""
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)


def _too_large(bound: int) -> TooLarge:
    return TooLarge(f"the request body is larger than the {bound} bytes that this server takes")


def _bounded(receive: Receive, bound: int) -> Receive:
    size = 0

    async def bounded_receive() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > bound:
            await _discard(receive)
            raise _too_large(bound)
        return message

    return bounded_receive


async def _discard(receive: Receive) -> None:
    """Read and drop the body for a while: a client that still sends when the connection closes misses the response."""

    async def drop() -> None:
        size, more = 0, True
        while more and size < _LINGER_BYTES:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)

    try:
        await asyncio.wait_for(drop(), _LINGER_S)
    except asyncio.TimeoutError:
        return


def http_protocol() -> Any:
    """The `http` option of uvicorn.Config: httptools with a bound on the head of a request, or else h11.

    h11 has such a bound itself. Without one a client that never ends a header fills the memory before any handler is
    called.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # Windows, PyPy: no wheel of httptools
        return "h11"

    class BoundedHttpTools(HttpToolsProtocol):
        """httptools with a bound on the bytes before the body."""

        _head: int | None = 0
        """Bytes fed since the head began; None while a body is read."""

        def data_received(self, data: bytes) -> None:
            if self._head is not None:
                self._head += len(data)
            super().data_received(data)
            if self._head is not None and self._head > HEAD_MAX and self.transport and not self.transport.is_closing():
                _refuse_head(self.transport)

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._head = 0
            super().on_message_complete()

    return BoundedHttpTools


def _refuse_head(transport: asyncio.Transport) -> None:
    transport.write(
        b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(_HEAD_TOO_LARGE), _HEAD_TOO_LARGE)
    )
    transport.close()
