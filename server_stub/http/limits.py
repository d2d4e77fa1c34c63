"""Bounds of connections and requests, so that a client which sends much, slowly or nothing takes
little from others.

`Connection` is uvicorn's HTTP protocol with bounds. A connection has HEAD_S for each head of a
request, from its start or from its last response on. While a request is handled no time-out applies
to its connection: logs are followed for days. Clients without a valid token that send nothing take
no connection from others: if there are too many, the oldest of these connections is closed.

`Guard` is the ASGI layer in front of all routes of one API. It checks header lines and NUL bytes,
lets the request be authenticated, and bounds the size and the time of its body. A body is counted
as it streams, so that one without a Content-Length is bounded too. A snapshot and a function's
result have larger bounds, which their handlers check while they stream; the bytes of a session are
passed on as they arrive; other bodies are kept in memory, and the server has a bound on all of them
together, and on the bodies of each sender. A body is read only when a handler asks for it, which
comes after the authentication; only a login reads a small body without a valid token.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from client_lib.errors import ClientLibError, InvalidRequest, TooLarge, Unavailable
from client_lib.launcher_protocol.json_entries import ENTRIES_MAX, entries
from client_lib.spec import paths
from server_stub.http.auth import sender

HEAD_MAX = 64 * 1024
"""Bytes of request line and headers; nginx and h11 allow as much."""
HEAD_S = 30.0
"""Longest time from the start of a connection, or from its last response, to the end of a head."""
UNREAD_S = 30.0
"""Longest time in which the client of a connection that the server closes reads nothing."""
STRANGERS_MAX = 1000
"""Connections of one address without a valid token; many followers come back after a restart."""
_FILES_KEPT = 256
"""Descriptors that connections leave to the server's own files; of a small number of descriptors a
quarter."""
_SAY_EVERY_S = 60.0
"""Shortest time between two warnings in the log about refused connections."""
MAX_HEADERS = 100
"""Header lines of a request; browsers send about 20."""
MAX_BODY_BYTES = 16 * 2**20
"""Bytes of one body; a submit carries the caller's environment, which Linux lets grow to 6 MB."""
STRANGERS_BODY_BYTES = 4096
"""Bytes of a body without a valid token, such as a login."""
BODIES_MAX_BYTES = 16 * MAX_BODY_BYTES
"""Bytes of all bodies in memory."""
SENDERS_BODIES_BYTES = 4 * MAX_BODY_BYTES
"""Bytes of the bodies of one sender in memory. Many submits have 20 kB, a piece of an output has
8 MiB."""
SMALL_BODY_BYTES = 64 * 1024
"""Bytes of a body that is taken without room in BODIES_MAX_BYTES, so that large bodies don't keep
small ones out."""
BODY_S = 30.0
"""Longest time that the server waits for all pieces of a small body."""
BODY_RATE = 10_000
"""Bytes per second: for each such number of bytes the server waits a second longer than BODY_S. A
slow uplink has ten times as much."""
_LINGER_BYTES = 32 * 2**20
"""Most bytes of a refused body that are read and dropped."""
_LINGER_S = 2.0
"""Longest time in which a refused body is read and dropped."""

_WORKER = f"{paths.JOBS}/[^/]+/attempts/[^/]+/workers/[^/]+"
# whole paths: the path of an output ends with a name that its job has chosen
_FILE = re.compile(f"{paths.SNAPSHOTS}/[^/]+|{_WORKER}/results/[^/]+")
_BYTES = re.compile(f"{_WORKER}/(?:log|outputs/(?s:.+))")
_SESSION = re.compile(f"(?:{paths.JOBS}/[^/]+|{_WORKER})/sessions/[^/]+")

log = logging.getLogger(__name__)


class Strangers:
    """The connections of one server that have sent no valid token, by address. For each address the
    connection whose last request is the oldest comes first."""

    def __init__(self) -> None:
        self._of: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._silent_until = 0.0

    def admit(self, connection: Connection) -> None:
        """Add a connection. If there are too many, the server closes the oldest one whose client
        has sent no whole request; the new one only if there is no such connection. The reason is
        logged once a minute at most."""
        of_address = self._of[connection.address]
        if len(of_address) >= STRANGERS_MAX:
            for other in [other for other in of_address if other.has_token()]:
                del of_address[other]
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        kept = min(_FILES_KEPT, limit // 4)
        # the lowest that is free
        descriptor: int = connection.transport.get_extra_info("socket").fileno()
        victim: Connection | None = None
        if limit != resource.RLIM_INFINITY and descriptor >= limit - kept:
            self._say("the server's limit of open files is too low for more connections")
            # a descriptor is free again only after this turn of the event loop
            is_urgent = descriptor >= limit - kept // 2
            most = max(self._of.values(), key=len)
            victim = connection if is_urgent else _oldest_silent(most) or connection
        elif len(of_address) >= STRANGERS_MAX:
            self._say(
                f"{connection.address} has {len(of_address)} connections that sent no valid token"
            )
            victim = _oldest_silent(of_address) or connection
        of_address[connection] = None
        if victim is not None:
            self.remove(victim)
            victim.end()

    def note_request(self, connection: Connection) -> None:
        """Note that a request of the connection has its answer."""
        of_address = self._of.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            of_address[connection] = None

    def remove(self, connection: Connection) -> None:
        of_address = self._of.get(connection.address, {})
        of_address.pop(connection, None)
        if not of_address:
            self._of.pop(connection.address, None)

    def _say(self, why: str) -> None:
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SAY_EVERY_S
            log.warning("connections are refused: %s", why)


def _oldest_silent(connections: Iterable[Connection]) -> Connection | None:
    silent = (each for each in connections if each.is_silent() and not each.has_token())
    return next(silent, None)


class Connection(HttpToolsProtocol):
    """A connection of a client."""

    def __init__(self, *, strangers: Strangers, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self.address = ""
        self._strangers = strangers
        self._head: int | None = 0
        """Bytes fed since the head began; None while a body is read."""
        self._body = 0
        """Bytes of bodies since the timer was set."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._set_timer()
        self._strangers.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._strangers.remove(self)
        super().connection_lost(exc)

    def has_token(self) -> bool:
        """The last request was of a user or of a worker."""
        return self.scope is not None and ("user" in self.scope or "attempt" in self.scope)

    def is_silent(self) -> bool:
        """The server waits for the rest of a request, or for the next one."""
        return self._head is None or self._timer is not None

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self._body += len(data)
        else:
            self._head += len(data)
        super().data_received(data)
        if self._head is not None and self._head > HEAD_MAX:
            self._answer(
                TooLarge(f"the headers of the request are larger than {HEAD_MAX} bytes"), 431
            )

    def on_headers_complete(self) -> None:
        self._head = None
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._head = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete:  # no other request came with this one
            self._strangers.note_request(self)
            self._set_timer()
        if self.transport.is_closing():
            self._drop_unread(self.transport.get_write_buffer_size())

    def end(self) -> None:
        """Close the connection when the client has read what was sent. If the client reads nothing
        for UNREAD_S, the rest is dropped."""
        self.transport.close()
        self._drop_unread(self.transport.get_write_buffer_size())

    def _drop_unread(self, left: int) -> None:
        """Look again after UNREAD_S. `left`: bytes that the client has not read yet."""
        if left:
            self.loop.call_later(UNREAD_S, self._look_at_unread, left)

    def _look_at_unread(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        else:
            self._drop_unread(left)

    def _set_timer(self) -> None:
        self._stop_timer()
        self._body = 0
        self._timer = self.loop.call_later(HEAD_S, self._time_is_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_is_over(self) -> None:
        if self._head is None and self._body >= BODY_RATE * HEAD_S:  # the rest of a refused body
            self._set_timer()
        elif self._head:
            self._answer(
                InvalidRequest(f"the headers of the request did not arrive within {HEAD_S:g} s"),
                408,
            )
        else:
            self.end()

    def _answer(self, problem: ClientLibError, status: int) -> None:
        if self.transport and not self.transport.is_closing():
            body = json.dumps(problem.body()).encode()
            self.transport.write(
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
                "content-type: application/json\r\n"
                "connection: close\r\n"
                f"content-length: {len(body)}\r\n\r\n".encode()
                + body
            )
            self.end()


class Bodies:
    """The room for bodies in the memory of one server, and the share of each sender: what one user
    sends, or the jobs of a user, leaves room for others."""

    def __init__(self, max_upload_bytes: int) -> None:
        # of a snapshot or a result, which is not kept in memory
        self.max_upload_bytes = max_upload_bytes
        self.taken: Counter[str] = Counter()
        """Bytes, by sender."""


class _Room:
    """The room that one body has taken."""

    def __init__(self, bodies: Bodies, scope: Scope) -> None:
        self._taken = bodies.taken
        self._scope = scope
        self._of = ""
        """The sender, who is known when the body is read: pages find their user themselves."""
        self._size = 0

    def grow_to(self, size: int) -> None:
        """Take room for `size` bytes in all. Raises Unavailable: there is none."""
        more = size - self._size
        if size <= SMALL_BODY_BYTES or more <= 0:
            return
        self._of = self._of or sender(self._scope)
        if self._taken[self._of] + more > SENDERS_BODIES_BYTES:
            raise Unavailable(
                f"the server is receiving too many large requests of {self._of}",
                hint="send the next request when one of these has its answer",
            )
        if self._taken.total() + more > BODIES_MAX_BYTES:
            raise Unavailable(
                "the server is receiving too many large requests", hint="try again in a moment"
            )
        self._taken[self._of] += more
        self._size = size

    def give_back(self) -> None:
        self._taken[self._of] -= self._size
        if not self._taken[self._of]:
            del self._taken[self._of]


@dataclass
class Guard:
    """The ASGI layer."""

    app: ASGIApp
    bodies: Bodies
    error: Callable[[ClientLibError], Response]
    """Makes the response to a request that is refused."""
    authenticate: Callable[[Scope], Awaitable[None]] | None = None
    """Adds the user or the attempt to the scope of a request within the bounds,
    or raises a ClientLibError.
    """
    max_body_bytes: int | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_head(scope)
            if self.authenticate is not None:
                await self.authenticate(scope)
            body = await self._checked(scope, receive)
        except ClientLibError as problem:
            await self.error(problem)(scope, receive, send)
            return
        try:
            sending = send if self.authenticate is None else partial(_send_uncached, send)
            await self.app(scope, body.receive, sending)
        finally:
            if body.room:
                body.room.give_back()

    async def _checked(self, scope: Scope, receive: Receive) -> _Body:
        """The body with its bounds. Raises TooLarge."""
        headers = scope["headers"]
        is_file = _FILE.fullmatch(scope["path"]) is not None
        is_passed_on = scope["method"] == "PUT" and _SESSION.fullmatch(scope["path"]) is not None
        if self.authenticate is not None and not ("user" in scope or "attempt" in scope):
            bound = STRANGERS_BODY_BYTES
        elif is_file:
            bound = self.bodies.max_upload_bytes
        else:
            bound = self.max_body_bytes or MAX_BODY_BYTES
        # the HTTP parser has refused a Content-Length that is no number
        declared = next(
            (
                int(value)
                for name, value in headers
                if name == b"content-length" and value.isdigit()
            ),
            0,
        )
        if declared > bound:
            # curl waits for a 100 before it sends the body
            if not any(name == b"expect" for name, _ in headers):
                await _discard(receive)
            raise _too_large(bound)
        has_body = declared or any(name == b"transfer-encoding" for name, _ in headers)
        return _Body(
            receive,
            declared,
            bound,
            None if is_file or is_passed_on else _Room(self.bodies, scope),
            complete=not has_body,
            is_json=not (is_file or is_passed_on or _BYTES.fullmatch(scope["path"])),
        )


async def _send_uncached(send: Send, message: Message) -> None:
    """Send a part of an answer that no browser may keep: the answer needed the cookie of a login,
    and must not be shown after the logout."""
    if message["type"] == "http.response.start":
        MutableHeaders(scope=message).setdefault("Cache-Control", "no-store")
    await send(message)


def _check_head(scope: Scope) -> None:
    """Raises InvalidRequest: the head of the request has too many lines, or a NUL byte."""
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise InvalidRequest(
            f"the request has {len(headers)} header lines; at most {MAX_HEADERS} are read"
        )
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:  # PostgreSQL's texts hold none
        raise InvalidRequest("the path or the query has a NUL byte, which no name has")


def _too_large(bound: int) -> TooLarge:
    return TooLarge(f"the request body is larger than the {bound} bytes that this server takes")


class _Body:
    """A body as it is received. With `room` it is kept in memory, and has at most `bound` bytes."""

    def __init__(
        self,
        receive: Receive,
        declared: int,
        bound: int,
        room: _Room | None,
        *,
        complete: bool,
        is_json: bool,
    ) -> None:
        """`is_json`: ENTRIES_MAX holds for it."""
        self._receive = receive
        self._declared = declared
        self._bound = bound
        self.room = room
        self._complete = complete
        self._is_json = is_json
        self._size = 0
        self._entries = 0
        """Commas and opening brackets of the body so far."""
        self._waited_s = 0.0

    async def receive(self) -> Message:
        """The next piece. Raises TooLarge, and Unavailable: there is no room, or it does not arrive
        in time. The rest of a body that is too large is read for a while, and dropped."""
        if self._complete:
            return await self._receive()  # waits for the disconnect
        message = await self._in_time()
        try:
            self._count(message)
        except ClientLibError:
            if not self._complete:
                await _discard(self._receive)
            raise
        return message

    async def _in_time(self) -> Message:
        began = time.monotonic()
        limit_s = BODY_S + self._size / BODY_RATE
        try:
            message = await asyncio.wait_for(self._receive(), limit_s - self._waited_s)
        except asyncio.TimeoutError:
            raise Unavailable(
                f"the body of the request is too slow: {self._size} bytes in {limit_s:.0f} s",
                hint="send it again",
            ) from None
        self._waited_s += time.monotonic() - began
        return message

    def _count(self, message: Message) -> None:
        piece = message.get("body", b"")
        self._size += len(piece)
        self._complete = not message.get("more_body", False)
        self._entries += entries(piece)
        if self._is_json and self._entries > ENTRIES_MAX:
            raise TooLarge(
                f"the request body has more than {ENTRIES_MAX} commas and brackets, between "
                "entries or in texts",
                hint="send a large text in a file, and a large group in parts",
            )
        if self.room and self._size > self._bound:
            raise _too_large(self._bound)
        if self.room:
            self.room.grow_to(max(self._size, self._declared))


async def _discard(receive: Receive) -> None:
    """Read and drop the body for a while: a client that still sends when the connection
    closes misses the response.
    """
    size = 0
    more = True
    until = time.monotonic() + _LINGER_S
    with suppress(asyncio.TimeoutError):
        while more and size < _LINGER_BYTES:
            message = await asyncio.wait_for(receive(), until - time.monotonic())
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
