"""The gate of an attempt: once it has opened, its ranks may run. In `gate.json` of the attempt's directory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from client_lib.worker.directory import read_json, write_json

FILE = "gate.json"
"""{open: every worker was ready once, closed: the attempt's token is dead}."""


class Gate:
    """Callable from any thread: one write at a time, and the last of them stays."""

    def __init__(self, folder: Path) -> None:
        """As the file says; where there is none it is shut."""
        self._path = str(folder / FILE)
        self._writing = threading.Lock()
        self.is_open = bool((read_json(self._path) or {}).get("open"))

    def write(self) -> None:
        """Let the workers' token live."""
        with self._writing:
            self._put(is_open=self.is_open)

    def open_if(self, may: Callable[[], bool]) -> None:
        """Open, when that is on disk; unless it is open already, or may not any more when its turn has come."""
        with self._writing:
            if not self.is_open and may():
                self._put(is_open=True)

    def shut(self) -> None:
        """As if it had never been open."""
        with self._writing:
            self._put(is_open=False)

    def close(self) -> None:
        """The attempt is over: its token is dead, also for a server that starts anew."""
        with self._writing:
            self._put(is_open=self.is_open, closed=True)

    def _put(self, *, is_open: bool, closed: bool = False) -> None:
        write_json(self._path, {"open": is_open, "closed": closed}, durable=True)
        self.is_open = is_open


def is_open_on_disk(folder: Path) -> bool:
    """An attempt of this folder was opened, perhaps by a server process before this one, and not closed."""
    found = read_json(str(folder / FILE))
    return found is not None and not found["closed"]
