"""The log of requests: one JSON object per line, with id, method, path, route, status,
milliseconds, bytes sent, client and user.

Never a header, a query or a body: these can hold tokens and secrets.
"""

import logging
import random
import re
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.spec import paths
from server_stub.http.metrics import Traffic
from server_stub.server_log import line

REQUEST_ID = b"x-request-id"
# one label for all unknown paths: a scanner would make thousands of labels
UNKNOWN_ROUTE = "(none)"
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ, paths.METRICS})


log = logging.getLogger(__name__)


class AccessLog:
    """The outermost ASGI layer: gives each request an id, counts it, and writes its
    line. `out` None: no lines.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic, out: TextIO | None) -> None:
        self._app = app
        self._traffic = traffic
        self._out = out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        status = 0
        sent = 0
        complete = False
        given = next((value for name, value in scope["headers"] if name == REQUEST_ID), b"")
        # no secret
        request_id = (
            given.decode() if _GIVEN_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        )
        scope["request_id"] = request_id

        async def note_and_send(message: Message) -> None:
            nonlocal status, sent, complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (REQUEST_ID, request_id.encode()),
                ]
            else:
                sent += len(message.get("body", b""))
                complete = not message.get("more_body", False)
            await send(message)

        method = scope["method"]
        path = scope["path"]
        if path in _PROBES:  # a probe must not keep an idle server alive
            await self._app(scope, receive, note_and_send)
            return
        self._traffic.begin()
        try:
            await self._app(scope, receive, note_and_send)
        except Exception as bug:
            log.exception("request %s: %s %s", request_id, method, path, exc_info=bug)
            if not complete:
                status = status or HTTPStatus.INTERNAL_SERVER_ERROR
                raise  # uvicorn answers 500, or cuts a response that has begun
        finally:
            seconds = time.perf_counter() - began
            # as it was declared, so that names of jobs do not become labels
            route = getattr(scope.get("route"), "path", UNKNOWN_ROUTE)
            self._traffic.end(method, route, status, seconds)
            # Requests of workers, and keys typed in a session, come many times a second: only
            # failures are logged.
            routine = ("attempt" in scope or "routine" in scope) and status < HTTPStatus.BAD_REQUEST
            if self._out is not None and not routine:
                user = scope.get("user")
                client = scope.get("client")
                facts = {
                    "id": request_id,
                    "method": method,
                    "path": path,
                    "route": route,
                    "status": status,
                }
                facts |= {
                    "ms": round(seconds * 1000, 2),
                    "bytes": sent,
                    "client": client[0] if client else None,
                }
                # a full disk or a closed pipe must not fail requests
                with suppress(OSError, ValueError):
                    self._out.write(
                        line("info", "request", **facts, user=user.name if user else None) + "\n"
                    )
                    self._out.flush()
