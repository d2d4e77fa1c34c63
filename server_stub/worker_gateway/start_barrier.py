"""The start barrier of an attempt: its ranks may run once it is open. Stored in `gate.json` of the attempt's folder."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from client_lib.worker.directory import read_json, write_json

FILE = "gate.json"
"""{open: every worker was ready once, closed: the attempt is over and its token has expired}."""


class StartBarrier:
    """Callable from any thread. Writes follow each other in the order of the calls."""

    def __init__(self, folder: Path) -> None:
        """Restores the state from the file; without a file the barrier is shut."""
        self._path = str(folder / FILE)
        self._writing = threading.Lock()
        self.is_open = bool((read_json(self._path) or {}).get("open"))

    def write(self) -> None:
        """Write the file, which makes the attempt's token valid."""
        with self._writing:
            self._put(is_open=self.is_open)

    def open_if(self, condition: Callable[[], bool]) -> None:
        """Open durably, unless it is open already or `condition`, checked under the lock, is false."""
        with self._writing:
            if not self.is_open and condition():
                self._put(is_open=True)

    def shut(self) -> None:
        """Return to the state before it was opened."""
        with self._writing:
            self._put(is_open=False)

    def close(self) -> None:
        """End the attempt: its token has expired, also for servers that are started later."""
        with self._writing:
            self._put(is_open=self.is_open, closed=True)

    def _put(self, *, is_open: bool, closed: bool = False) -> None:
        write_json(self._path, {"open": is_open, "closed": closed}, durable=True)
        self.is_open = is_open


def is_attempt_open(folder: Path) -> bool:
    """True if an attempt in this folder was opened, perhaps by an earlier server process, and not closed."""
    found = read_json(str(folder / FILE))
    return found is not None and not found["closed"]
