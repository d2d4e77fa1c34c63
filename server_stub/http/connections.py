"""Bounds of a connection: uvicorn's HTTP protocol with a largest head, a time for it, and a number of connections.

A connection has HEAD_S for each head of a request, from its start or from its last response on. While a request is
handled no time-out applies here: `server_stub.http.limits` limits the time of its body, and logs are followed for days.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import time
from collections import defaultdict
from http import HTTPStatus
from typing import Any

from client_lib.errors import ClientLibError, InvalidRequest, TooLarge
from server_stub.http.limits import BODY_RATE

HEAD_MAX = 64 * 1024  # bytes of request line and headers; nginx and h11 allow as much
HEAD_S = 30.0
STRANGERS_MAX = (
    1000  # connections of one address without a valid token; followers that come back after a restart are many
)
_FILES_KEPT = 256  # descriptors that connections leave to the server's own files; a quarter of them if there are few
_SAY_EVERY_S = 60.0

log = logging.getLogger(__name__)


def http_protocol() -> Any:
    """The `http` option of uvicorn.Config: httptools with these bounds, or h11 with a bound on the head alone."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # PyPy: no wheel of httptools
        return "h11"

    strangers: defaultdict[str, set[Connection]] = defaultdict(set)
    refuse = _Refusals()

    class Connection(HttpToolsProtocol):
        _head: int | None = 0
        """Bytes fed since the head began; None while a body is read."""
        _body = 0
        """Bytes of bodies since the timer was set."""
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            others = strangers[self._address]
            if len(others) >= STRANGERS_MAX:
                others.difference_update([other for other in others if other.has_token()])
            if _is_short_of_files(transport):
                refuse(transport, "the server's limit of open files is too low for more connections")
            elif len(others) >= STRANGERS_MAX:
                refuse(transport, f"{self._address} has {len(others)} connections that sent no valid token")
            else:
                others.add(self)
                self._set_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            strangers[self._address].discard(self)
            if not strangers[self._address]:
                del strangers[self._address]
            super().connection_lost(exc)

        def has_token(self) -> bool:
            """The last request was of a user or of a worker."""
            return self.scope is not None and ("user" in self.scope or "attempt" in self.scope)

        def data_received(self, data: bytes) -> None:
            if self._head is None:
                self._body += len(data)
            else:
                self._head += len(data)
            super().data_received(data)
            if self._head is not None and self._head > HEAD_MAX:
                self._answer(TooLarge(f"the headers of the request are larger than {HEAD_MAX} bytes"), 431)

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
                self._set_timer()

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
                self._answer(InvalidRequest(f"the headers of the request did not arrive within {HEAD_S:g} s"), 408)
            else:
                self.transport.close()

        def _answer(self, problem: ClientLibError, status: int) -> None:
            if self.transport and not self.transport.is_closing():
                self.transport.write(_response(problem, HTTPStatus(status)))
                self.transport.close()

    return Connection


class _Refusals:
    """Closes connections, and logs the reason once a minute at most."""

    def __init__(self) -> None:
        self._silent_until = 0.0

    def __call__(self, transport: asyncio.Transport, why: str) -> None:
        transport.close()
        if time.monotonic() >= self._silent_until:
            self._silent_until = time.monotonic() + _SAY_EVERY_S
            log.warning("connections are refused: %s", why)


def _is_short_of_files(transport: asyncio.Transport) -> bool:
    """True if few descriptors are left. The kernel gives the lowest free one, so a high one shows it."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return False
    descriptor: int = transport.get_extra_info("socket").fileno()
    return descriptor >= limit - min(_FILES_KEPT, limit // 4)


def _response(problem: ClientLibError, status: HTTPStatus) -> bytes:
    body = json.dumps(problem.body()).encode()
    return b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (
        status,
        status.phrase.encode(),
        len(body),
        body,
    )
