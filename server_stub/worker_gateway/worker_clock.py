"""The clock of a remote worker against that of this server, by the times of its newest records when they arrive.

A record was stamped before it arrived, by up to the time between two requests of the agent. So the largest of some
differences is nearest to that of the clocks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from client_lib.worker.directory import read_json, write_json
from server_stub.files.owned import opener

FILE = "clock.json"
"""In the directory of the worker."""
_KEPT = 64  # differences
_CHANGE_S = 0.001  # a smaller change is not written
_DELAYS_S = 0.3  # three times the longest delay of a record in an agent


class ClockDifference(NamedTuple):
    ahead_s: float
    """Seconds by which the worker's clock is ahead of the server's, or less."""
    arrivals: int
    """Number of arrivals that it follows from."""

    def ahead_of(self, other: ClockDifference) -> float:
        """Seconds by which this clock is ahead of another; 0.0 if the arrivals are too few to tell."""
        ahead_s = self.ahead_s - other.ahead_s
        return ahead_s if abs(ahead_s) > _DELAYS_S / max(1, min(self.arrivals, other.arrivals)) else 0.0


class WorkerClock:
    """Writes the file of one worker. Each server process starts a new measurement."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._ahead: deque[float] = deque(maxlen=_KEPT)
        self._written = ClockDifference(0.0, 0)

    def note(self, stamp: str, now: float) -> None:
        """A record with this stamp is the newest of those that have arrived now."""
        with contextlib.suppress(ValueError):  # a job may write anything to its log
            self._ahead.append(datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp() - now)
            known = ClockDifference(max(self._ahead), len(self._ahead))
            more = known.arrivals >= 2 * self._written.arrivals
            if more or abs(known.ahead_s - self._written.ahead_s) > _CHANGE_S:
                self._written = known
                with contextlib.suppress(OSError):  # the disk is full: the log says so
                    write_json(str(self._file), known._asdict())


def read(folder: Path) -> ClockDifference | None:
    """The clock of the worker with this directory; None: it is not known, as of workers on this machine."""
    with contextlib.suppress(OSError, TypeError, ValueError, LookupError):
        found = read_json(str(folder / FILE), opener(folder)) or {}
        return ClockDifference(float(found["ahead_s"]), int(found["arrivals"]))
    return None
