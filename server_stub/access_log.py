"""The outermost layer: each request gets an id, a time, one JSON line in the log, and an answer whatever happens.

A line holds time, id, method, path, route, status, milliseconds, bytes sent, client and user. Never a header, a
query or a body: tokens and secrets travel in those.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import sys
import time
from datetime import datetime, timezone
from http import HTTPStatus
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.errors import ClientLibError
from client_lib.spec import paths
from server_stub.api import answers
from server_stub.traffic import Traffic

REQUEST_ID = b"x-request-id"
UNKNOWN_ROUTE = "(none)"  # one label for every path that is none: scanners would make thousands
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_QUIET = frozenset({paths.HEALTHZ, paths.READYZ, paths.METRICS})

_quoted = json.JSONEncoder().encode

log = logging.getLogger(__name__)


class AccessLog:
    """The ASGI layer. `out` None: no lines."""

    def __init__(self, app: ASGIApp, traffic: Traffic, out: TextIO | None = sys.stderr) -> None:
        self._app = app
        self._traffic = traffic
        self._out = out
        self._ended: list[_Request] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, send)
        counts = scope["path"] not in _QUIET  # who only looks whether we live doesn't keep us alive
        if counts:
            self._traffic.begin()
        try:
            await self._app(scope, receive, request.send)
        except ClientLibError as problem:
            await request.answer(problem, receive)
        except Exception as bug:  # the outermost layer: whatever it is, the client gets an answer
            log.exception("request %s: %s %s", request.id, scope["method"], scope["path"], exc_info=bug)
            await request.answer(None, receive)
        finally:
            if counts:
                self._traffic.end(scope["method"], request.route(), request.status, request.end())
                if not request.is_routine():
                    self._write(request)

    def _write(self, request: _Request) -> None:
        """The lines of one turn of the event loop go out together: one commit answers many submits at once."""
        if self._out is None:
            return
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._flush, self._out)
        self._ended.append(request)

    def _flush(self, out: TextIO) -> None:
        ended, self._ended = self._ended, []
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        try:
            out.write("".join([request.line(now) for request in ended]))
            out.flush()
        except (OSError, ValueError):  # a full disk or a closed pipe must not fail requests
            pass


class _Request:
    """One request on its way: watches what is sent."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._began = time.perf_counter()
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        self.id = given.decode() if _GIVEN_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"  # no secret
        scope["request_id"] = self.id
        self.status = 0
        self._sent = 0
        self._took = 0.0
        self._complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (REQUEST_ID, self.id.encode())]
        else:
            self._sent += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
        await self._send(message)

    async def answer(self, problem: ClientLibError | None, receive: Receive) -> None:
        """Say what went wrong, unless the answer has begun: then it can only be cut, which its reader notices."""
        if self._complete:
            return
        if self.status:
            raise ConnectionAbortedError(f"the answer of request {self.id} was cut")
        response = answers.error(problem) if problem else answers.internal_error(self.id)
        await response(self._scope, receive, self.send)

    def is_routine(self) -> bool:
        """A worker told how far it is or sent its log, several times a second."""
        return "attempt" in self._scope and self.status < HTTPStatus.BAD_REQUEST

    def route(self) -> str:
        """The path as it was declared, so that names of jobs don't become labels."""
        route = self._scope.get("route")
        return getattr(route, "path", UNKNOWN_ROUTE)

    def end(self) -> float:
        """The seconds that it took."""
        self._took = time.perf_counter() - self._began
        return self._took

    def line(self, now: str) -> str:
        """JSON, written out: a dump of a dict takes three times as long, and every request has a line."""
        scope = self._scope
        user, client = scope.get("user"), scope.get("client")
        method, path, route = _quoted(scope["method"]), _quoted(scope["path"]), _quoted(self.route())
        address, name = _quoted(client[0]) if client else "null", _quoted(user.name) if user else "null"
        return (
            f'{{"time": "{now}", "level": "info", "event": "request", "id": "{self.id}", "method": {method}, '
            f'"path": {path}, "route": {route}, "status": {self.status}, "ms": {self._took * 1000:.2f}, '
            f'"bytes": {self._sent}, "client": {address}, "user": {name}}}\n'
        )
