"""The outermost ASGI layer: gives each request an id, counts it, and writes one JSON line about it.

A line holds time, id, method, path, route, status, milliseconds, bytes sent, client and user. Never a header, a
query or a body: these can hold tokens and secrets.
"""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http import HTTPStatus
from typing import Any, TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.spec import paths

REQUEST_ID = b"x-request-id"
UNKNOWN_ROUTE = "(none)"  # one label for all unknown paths: a scanner would make thousands of labels
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ, paths.METRICS})

log = logging.getLogger(__name__)

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; one more bucket holds longer times (long polls, streams)."""


@dataclass
class Latency:
    """A histogram: `counts[i]` responses took at most BUCKETS[i] (and more than the bound before)."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum_s += seconds


class Traffic:
    """Counts of one server since its start, for `/metrics` and for its end when idle."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.in_flight = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """Number of responses, by (method, route, status)."""
        self.latencies: dict[str, Latency] = {}
        """Times of responses by route, streams and long polls included."""

    def begin(self) -> None:
        self.in_flight += 1

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        self.in_flight -= 1
        self._last = time.monotonic()
        self.requests[method, route, status] += 1
        self.latencies.setdefault(route, Latency()).add(seconds)

    def idle_s(self) -> float:
        """Seconds since the last response ended; 0 while a request is in progress."""
        return 0.0 if self.in_flight else time.monotonic() - self._last


class AccessLog:
    """The ASGI layer. `out` None: no lines are written."""

    def __init__(self, app: ASGIApp, traffic: Traffic, out: TextIO | None = sys.stderr) -> None:
        self._app = app
        self._traffic = traffic
        self._out = out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, send)
        if scope["path"] in _PROBES:  # a probe must not keep an idle server alive
            await self._app(scope, receive, request.send)
            return
        self._traffic.begin()
        try:
            await self._app(scope, receive, request.send)
        except Exception as bug:
            log.exception("request %s: %s %s", request.id, scope["method"], scope["path"], exc_info=bug)
            if not request.complete:
                request.status = request.status or HTTPStatus.INTERNAL_SERVER_ERROR
                raise  # uvicorn answers 500, or cuts a response that has begun
        finally:
            seconds = request.seconds()
            self._traffic.end(scope["method"], request.route(), request.status, seconds)
            if self._out is not None and not request.is_routine():
                _write(self._out, request.facts(seconds))


def _write(out: TextIO, facts: dict[str, Any]) -> None:
    try:
        out.write(json.dumps(facts) + "\n")
        out.flush()
    except (OSError, ValueError):  # a full disk or a closed pipe must not fail requests
        pass


class _Request:
    """One request in progress: its id, its start, and what has been sent in response."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._began = time.perf_counter()
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        self.id = given.decode() if _GIVEN_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"  # no secret
        scope["request_id"] = self.id
        self.status = 0
        self.complete = False
        self._sent = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, self.id.encode())]
        else:
            self._sent += len(message.get("body", b""))
            self.complete = not message.get("more_body", False)
        await self._send(message)

    def seconds(self) -> float:
        return time.perf_counter() - self._began

    def is_routine(self) -> bool:
        """True for requests that come many times a second: those of workers, and keys typed in a session."""
        return ("attempt" in self._scope or "routine" in self._scope) and self.status < HTTPStatus.BAD_REQUEST

    def route(self) -> str:
        """The path as it was declared, so that names of jobs do not become labels."""
        return getattr(self._scope.get("route"), "path", UNKNOWN_ROUTE)

    def facts(self, seconds: float) -> dict[str, Any]:
        scope = self._scope
        user, client = scope.get("user"), scope.get("client")
        return {
            "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "level": "info",
            "event": "request",
            "id": self.id,
            "method": scope["method"],
            "path": scope["path"],
            "route": self.route(),
            "status": self.status,
            "ms": round(seconds * 1000, 2),
            "bytes": self._sent,
            "client": client[0] if client else None,
            "user": user.name if user else None,
        }
