"""A server that waits until another one on the same data ends, as on a cluster where a new pod
starts before the old one is gone.

Its socket answers meanwhile, so that the kubelet does not restart it and no client is sent to it:
`/healthz` that the process lives, everything else that it is not ready, and why.
"""

import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import NoReturn, TypeVar

from client_lib.errors import Conflict, Unavailable
from client_lib.spec import paths

LOOK_S = 1.0
"""Pause between two tries to take the locks."""
_READ_S = 5.0
"""Time for the request of one connection."""
_STARTING = "the server is starting"

T = TypeVar("T")
log = logging.getLogger(__name__)


class StandIn:
    """Answers on a bound socket in place of the server, from `begin` to `end`."""

    def __init__(self, bound: socket.socket) -> None:
        """`bound` stays open after `end`, and connections wait there."""
        self.why = _STARTING
        self._bound = bound
        self._server: ThreadingHTTPServer | None = None

    def begin(self) -> None:
        """Begin to answer, unless it does so already."""
        if self._server is not None:
            return
        stand_in = self

        class Answers(BaseHTTPRequestHandler):
            timeout = _READ_S

            def do_GET(self) -> None:
                if self.path == paths.HEALTHZ:
                    self._send(200, "text/plain", b"ok\n")
                else:
                    self._refuse()

            def _refuse(self) -> None:
                refusal = Unavailable(stand_in.why)
                body = json.dumps(refusal.body()).encode()
                self._send(refusal.http_status, "application/json", body)

            do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _refuse

            def _send(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                if status != 200:
                    self.send_header("Retry-After", "1")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """The access log is that of the server."""

        address = self._bound.getsockname()[:2]
        server = ThreadingHTTPServer(address, Answers, bind_and_activate=False)
        server.socket.close()
        server.socket = self._bound.dup()
        server.daemon_threads = True
        server.block_on_close = False
        server.server_activate()
        self._server = server
        run = {"poll_interval": 0.05}
        threading.Thread(target=server.serve_forever, kwargs=run, daemon=True).start()

    def end(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def wait(take: Callable[[], T], stand_in: StandIn) -> T:
    """The value of `take`, which is called again while it raises Conflict. A SIGTERM ends the
    process meanwhile."""
    with _ends_at_sigterm():
        while True:
            try:
                taken = take()
            except Conflict as other:
                stand_in.begin()
                if stand_in.why != other.message:
                    stand_in.why = other.message
                    log.warning("%s: this one waits until that one ends", other.message)
            else:
                stand_in.why = _STARTING
                return taken
            time.sleep(LOOK_S)


@contextmanager
def _ends_at_sigterm() -> Iterator[None]:
    """Process 1 of a container ignores a SIGTERM without a handler."""

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
