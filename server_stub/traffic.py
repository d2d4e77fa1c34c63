"""What this server has answered, counted: for `/metrics`, and for the question whether anybody uses it at all.

Plain numbers on the event loop's thread: counting costs a request a microsecond, and prometheus-client (90 ms to
import) is not needed to count (see `server_stub.metrics`).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; one more holds the rest (long polls, streams)."""


@dataclass
class Latency:
    """A histogram: `counts[i]` answers took at most BUCKETS[i] (and more than the one before)."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum_s += seconds


class Traffic:
    """Counts of one server since its start. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self.in_flight = 0
        self.requests: Counter[tuple[str, str, int]] = Counter()
        """By (method, route, status)."""
        self.latencies: dict[str, Latency] = {}
        """By route; streams and long polls too, as they are the same routes."""

    def begin(self) -> None:
        self.in_flight += 1

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        self.in_flight -= 1
        self._last = self._clock()
        self.requests[method, route, status] += 1
        self.latencies.setdefault(route, Latency()).add(seconds)

    def idle_s(self) -> float:
        """Seconds since the last answer ended; 0 while one is on its way."""
        return 0.0 if self.in_flight else self._clock() - self._last
