"""Prints the log on stdout as it is, for `kubectl logs`, and for a server that can't be reached from the pod.

A thread: a container runtime that reads slowly holds up nothing else. Standard library only, Python >= 3.8.
"""

import os
import threading

from client_lib.worker.pod.spool import Spool

READER = "stdout"
_LOOK_S = 0.1


class Printer(threading.Thread):
    """`finish`, then `join`: everything is printed, or nobody reads."""

    def __init__(self, spool: Spool, fd: int = 1) -> None:
        super().__init__(name="printer", daemon=True)
        self._spool, self._fd = spool, fd
        self._finishing = threading.Event()

    def finish(self) -> None:
        """Nothing more will be written."""
        self._finishing.set()

    def run(self) -> None:
        try:
            while self._print():
                pass
        except OSError:  # nobody reads it
            pass
        self._spool.leave(READER)

    def _print(self) -> bool:
        """False: that was all."""
        last_round = self._finishing.is_set()
        piece = self._spool.read(READER)
        if piece is not None:
            _write_all(self._fd, piece.data)
            self._spool.move(READER, piece.end)
        elif last_round:
            return False
        else:
            self._finishing.wait(_LOOK_S)
        return True


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
