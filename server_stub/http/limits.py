"""Bounds of a request, as an ASGI layer: its header lines, NUL bytes, and the size and the time of its body.

The body is counted as it streams, so that one without a Content-Length is bounded too. A snapshot and a function's
result have larger bounds, which their handlers check while they stream; other bodies are kept in memory, and the server
has a bound on all of them together. Nothing of a body is read before the handler wants it, and so without a token.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.errors import ClientLibError, InvalidRequest, TooLarge, Unavailable
from client_lib.spec import paths
from server_stub.settings import Settings

MAX_HEADERS = 100  # header lines of a request; browsers send about 20
MAX_BODY_BYTES = 16 * 2**20  # a submit carries the caller's environment, which Linux lets grow to 6 MB
BODIES_MAX_BYTES = 16 * MAX_BODY_BYTES  # of all bodies in memory; many submits have 20 kB, a piece of an output 8 MiB
SMALL_BODY_BYTES = 64 * 1024  # taken without room in BODIES_MAX_BYTES, so that large bodies don't keep small ones out
BODY_S = 30.0  # time that all pauses of a body may last, and more by its size:
BODY_RATE = 10_000  # bytes per second; a slow uplink has ten times as much
_LINGER_BYTES = 32 * 2**20
_LINGER_S = 2.0


class Bodies:
    """The room for bodies in the memory of one server."""

    def __init__(self) -> None:
        self.free = BODIES_MAX_BYTES


class Limits:
    """The ASGI layer. `error` makes the response to a request that is over a bound."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        bodies: Bodies,
        error: Callable[[ClientLibError], Response],
        max_body_bytes: int | None = None,
    ) -> None:
        self._app, self._max_body_bytes = app, max_body_bytes
        self._settings = settings
        self._bodies = bodies
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._checked(scope, receive)
        except ClientLibError as problem:
            await self._error(problem)(scope, receive, send)
            return
        if body is None:
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.give_back()

    async def _checked(self, scope: Scope, receive: Receive) -> _Body | None:
        """The body with its bounds; None: there is none. Raises InvalidRequest, TooLarge."""
        headers = scope["headers"]
        if len(headers) > MAX_HEADERS:
            raise InvalidRequest(f"the request has {len(headers)} header lines; at most {MAX_HEADERS} are read")
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # PostgreSQL's texts hold none
            raise InvalidRequest("the address holds a NUL byte; no name does")
        is_result = paths.is_of_workers(scope["path"]) and "/results/" in scope["path"]
        is_file = is_result or scope["path"].startswith(paths.SNAPSHOTS)
        bound = self._settings.max_snapshot_bytes if is_file else self._max_body_bytes or MAX_BODY_BYTES
        declared = _declared(headers)
        if declared > bound:
            if not any(name == b"expect" for name, _ in headers):  # curl waits for a 100 before it sends the body
                await _discard(receive)
            raise _too_large(bound)
        if not declared and not any(name == b"transfer-encoding" for name, _ in headers):
            return None
        if is_file:
            return _Body(receive, declared)
        return _Body(receive, declared, bound, self._bodies)


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    """The Content-Length; 0 without one. The HTTP parser has refused one that is no number."""
    return next((int(value) for name, value in headers if name == b"content-length" and value.isdigit()), 0)


def _too_large(bound: int) -> TooLarge:
    return TooLarge(f"the request body is larger than the {bound} bytes that this server takes")


class _Body:
    """A body as it is received. With `bodies` it is kept in memory: at most `bound` bytes, for which there is room."""

    def __init__(self, receive: Receive, declared: int, bound: int = 0, bodies: Bodies | None = None) -> None:
        self._receive, self._declared, self._bound, self._bodies = receive, declared, bound, bodies
        self._size = self._claimed = 0
        self._waited_s = 0.0
        self._complete = False

    async def receive(self) -> Message:
        """The next piece. Raises TooLarge, and Unavailable: there is no room, or it does not arrive in time."""
        if self._complete:
            return await self._receive()  # waits for the disconnect
        if not self._size:
            self._claim(self._declared)
        message = await self._next_piece()
        self._size += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._bodies and self._size > self._bound:
            await _discard(self._receive)
            raise _too_large(self._bound)
        self._claim(self._size)
        return message

    async def _next_piece(self) -> Message:
        began, limit_s = time.monotonic(), BODY_S + self._size / BODY_RATE
        try:
            return await asyncio.wait_for(self._receive(), limit_s - self._waited_s)
        except asyncio.TimeoutError:
            raise Unavailable(
                f"the body of the request is too slow: {self._size} bytes in {limit_s:.0f} s", hint="send it again"
            ) from None
        finally:
            self._waited_s += time.monotonic() - began

    def _claim(self, size: int) -> None:
        """Claim room for `size` bytes of this body in all."""
        more = size - self._claimed
        if not self._bodies or size <= SMALL_BODY_BYTES or more <= 0:
            return
        if more > self._bodies.free:
            raise Unavailable("the server is receiving too many large requests", hint="try again in a moment")
        self._bodies.free -= more
        self._claimed = size

    def give_back(self) -> None:
        """Free the room."""
        if self._bodies:
            self._bodies.free += self._claimed


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
