"""The clock and the timers of the service; tests pass their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock:
    """The machine's clock and the running event loop's timers."""

    def now(self) -> datetime:
        """The time in UTC; it may jump."""
        return datetime.now(timezone.utc)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call on the event loop's thread after `delay_s` of monotonic time; at once if that is negative."""
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback)
