"""Tasks, timers and the clock of an event loop, for runtimes and the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import datetime, timezone
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock:
    """The machine's clock and the running event loop's timers; tests pass their own."""

    def now(self) -> datetime:
        """The time in UTC; it may jump."""
        return datetime.now(timezone.utc)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call on the event loop's thread after `delay_s` of monotonic time; at
        once if that is negative.
        """
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback)


class Tasks:
    """Tasks that are referenced until they end, and logged if they fail. Event loop only."""

    def __init__(self, log: logging.Logger, failed: str, level: int = logging.ERROR) -> None:
        """`failed`: the message that is logged with the exception of a failed task."""
        self._log = log
        self._failed = failed
        self._level = level
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their ends."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._log.log(self._level, self._failed, exc_info=error)


async def is_set_within(event: asyncio.Event, limit_s: float) -> bool:
    """Wait for the event; True if it is set within `limit_s`."""
    waiting = asyncio.ensure_future(event.wait())
    try:  # without `wait_for`: before Python 3.12 it loses a cancellation that comes with the event
        await asyncio.wait([waiting], timeout=max(limit_s, 0.0))
        return waiting.done() or event.is_set()
    finally:
        waiting.cancel()
