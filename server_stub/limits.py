"""Bounds of a request before anybody reads it: how many header lines, how many bytes of body, no NUL. An ASGI layer.

The body is counted as it streams, so that one without a Content-Length is bounded too. A snapshot has a larger bound,
which `server_stub.snapshots` counts by itself, and so has a function's result, counted in `server_stub.workers`.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.errors import InvalidRequest, TooLarge
from client_lib.spec import paths
from server_stub.settings import Settings

_LINGER_BYTES = 32 * 2**20
_LINGER_S = 2.0


class Limits:
    """The ASGI layer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        if len(headers) > self._settings.max_header_count:
            raise InvalidRequest(
                f"the request has {len(headers)} header lines; at most {self._settings.max_header_count} are read"
            )
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # PostgreSQL's texts hold none
            raise InvalidRequest("the address holds a NUL byte; no name does")
        is_snapshot = scope["path"].startswith(paths.SNAPSHOTS)
        is_result = paths.is_of_workers(scope["path"]) and "/results/" in scope["path"]
        bound = self._bound(is_snapshot, is_result)
        declared = _declared(headers)
        if declared > bound:
            if not any(name == b"expect" for name, _ in headers):  # curl: nothing comes before we say so
                await _linger(receive)
            raise _too_large(bound)
        # the parser takes no more than was declared
        counted_there = declared or is_snapshot or is_result
        await self._app(scope, receive if counted_there else _bounded(receive, bound), send)

    def _bound(self, is_snapshot: bool, is_result: bool) -> int:
        if is_snapshot:
            return self._settings.max_snapshot_bytes
        return self._settings.max_result_bytes if is_result else self._settings.max_body_bytes


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    """The Content-Length; 0 without one. The HTTP parser has refused what is no number."""
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
            await _linger(receive)
            raise _too_large(bound)
        return message

    return bounded_receive


async def _linger(receive: Receive) -> None:
    """Read on for a while and drop it: a client that is still sending when we close never sees the answer."""
    try:
        await asyncio.wait_for(_drop(receive), _LINGER_S)
    except asyncio.TimeoutError:
        return


async def _drop(receive: Receive) -> None:
    size, more = 0, True
    while more and size < _LINGER_BYTES:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
