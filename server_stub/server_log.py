"""The log of the server: one JSON object per line on stderr, for each record of `logging` and for
each request.

The line of a request holds id, method, path, route, status, milliseconds, bytes sent, client and
user. Never a header, a query or a body: these can hold tokens and secrets.
"""

import errno
import json
import logging
import os
import random
import re
import time
from contextlib import suppress
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import TextIO

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_lib.spec import paths
from server_stub.http.metrics import Traffic

REQUEST_ID = b"x-request-id"
# one label for all unknown paths: a scanner would make thousands of labels
UNKNOWN_ROUTE = "(none)"
OUT_OF_FILES = os.strerror(errno.EMFILE)
_OUT_OF_FILES_S = 60.0
_GIVEN_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBES = frozenset({paths.HEALTHZ, paths.PING, paths.READYZ, paths.METRICS})
_FORMATTER = logging.Formatter()

log = logging.getLogger(__name__)


def _line(level: str, event: str, **facts: object) -> str:
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "event": event, **facts})


class OutOfFiles(logging.Filter):
    """Thins out the records which say that this process can open no more files: passes one a
    minute, without its traceback. Every part of the server meets that error, and some parts meet it
    again at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if OUT_OF_FILES not in message:
            if not record.exc_info or OUT_OF_FILES not in _FORMATTER.formatException(
                record.exc_info
            ):
                return True
            message += f": {OUT_OF_FILES}"
        if time.monotonic() < self._silent_until:
            return False
        self._silent_until = time.monotonic() + _OUT_OF_FILES_S
        record.msg, record.args, record.exc_info = (
            f"{message} (written once a minute at most)",
            (),
            None,
        )
        return True


class JsonLines(logging.Formatter):
    """Formats a record as time, level, event `log`, logger, message, and the
    traceback of an exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        traceback = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return _line(
            record.levelname.lower(),
            "log",
            logger=record.name,
            message=record.getMessage(),
            **traceback,
        )


def log_to_stderr(level: str) -> None:
    """Set up logging for this process."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(OutOfFiles())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the server logs its start itself


def rotate(path: Path, max_bytes: int) -> bool:
    """Begin a new log file if stdout and stderr go to the file at `path` and it is larger than
    `max_bytes`.

    The old file becomes `<path>.1` and replaces the previous one. A terminal, a pipe or another
    file stays as it is. Returns True if a new file was begun.
    """
    new = path.with_name(f"{path.name}.new")
    try:
        ours, there = os.fstat(2), path.stat()
        if not os.path.samestat(ours, there) or there.st_size <= max_bytes:
            return False
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            path.replace(path.with_name(f"{path.name}.1"))
            new.replace(path)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    except OSError:  # the next call tries again
        return False
    return True


class AccessLog:
    """The outermost ASGI layer: gives each request an id, counts it, and writes its
    line. `out` None: no lines.
    """

    def __init__(self, app: ASGIApp, traffic: Traffic, out: TextIO | None) -> None:
        self._app, self._traffic, self._out = app, traffic, out

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, status, sent, complete = time.perf_counter(), 0, 0, False
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

        method, path = scope["method"], scope["path"]
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
                user, client = scope.get("user"), scope.get("client")
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
                        _line("info", "request", **facts, user=user.name if user else None) + "\n"
                    )
                    self._out.flush()
