"""Carries the log to the server, by offset: a thread that outlives every outage and repeats nothing.

Standard library only, Python >= 3.8.
"""

import threading
from typing import Callable, Optional

from client_lib.worker.pod.pauses import Pauses
from client_lib.worker.pod.server import Refused, Server, Unreachable
from client_lib.worker.pod.spool import Spool

READER = "server"
LOOK_S = 0.1  # how old a line may get before it is sent, and how many requests a chatty worker makes
_LARGE = 256 * 1024  # a piece behind which more is waiting, most probably


class Shipper(threading.Thread):
    """`finish`, then `join`: everything is with the server, or the server wants nothing more of it."""

    def __init__(self, server: Server, spool: Spool, warn: Callable[[str], None]) -> None:
        super().__init__(name="shipper", daemon=True)
        self._server, self._spool, self._warn = server, spool, warn
        self._finishing = threading.Event()
        self._pauses = Pauses()
        self._away: Optional[str] = None
        self.refused: Optional[int] = None
        """Status of the answer, while the server says that it doesn't want this worker's log."""

    def finish(self) -> None:
        """Nothing more will be written."""
        self._finishing.set()

    def run(self) -> None:
        while True:
            last_round = self._finishing.is_set()
            sent = self._send()
            if sent is None and last_round and not self._away:
                return
            if sent is None or sent < _LARGE:
                self._finishing.wait(LOOK_S)

    def _send(self) -> Optional[int]:
        """Bytes that were sent; None: there was nothing, or it could not be sent."""
        piece = self._spool.read(READER)
        if piece is None:
            return None
        try:
            length, durable = self._server.put_log(piece.offset, piece.data, piece.gap)
        except Unreachable as error:
            self._wait(str(error))
            return None
        except Refused as refused:
            self.refused = refused.status
            self._wait("the server refuses the log: %s" % refused)
            return None
        if self._away:
            self._warn("the server takes the log again")
            self._away = None
        self.refused = None
        self._pauses.reset()
        self._spool.move(READER, length, durable)
        return len(piece.data)

    def _wait(self, why: str) -> None:
        if self._away is None:
            self._warn("the log waits for the server: %s" % why)
        self._away = why
        self._pauses.sleep()
