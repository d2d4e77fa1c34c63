"""Polls with a deadline, for events that nothing reports."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 60.0  # more than anything takes on a busy machine


def until(true: Callable[[], T | None], what: str = "it", within_s: float = PATIENCE_S) -> T:
    """The first true answer. `what`: the words of the failure when none comes in time."""
    deadline = time.monotonic() + within_s
    while not (answer := true()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)
    return answer


async def eventually(true: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """`until`, while the event loop goes on."""
    deadline = time.monotonic() + within_s
    while not (answer := true()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        await asyncio.sleep(0.005)
    return answer
