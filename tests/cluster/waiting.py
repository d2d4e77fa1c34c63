"""Polling with a deadline: the one way to wait here."""

import time
from collections.abc import Iterator


def until(limit_s: float, pause_s: float = 0.05) -> Iterator[None]:
    """Yields at once and then after each pause, until `limit_s` of monotonic time have passed."""
    deadline = time.monotonic() + limit_s
    while True:
        yield
        if time.monotonic() + pause_s > deadline:
            return
        time.sleep(pause_s)
