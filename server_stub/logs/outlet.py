"""Writes to one reader from outside of its answer's task, for as long as its transport has room.

When a line comes, hundreds of followers get the same bytes one behind the other: a turn of the event loop and a walk
through the answer's generators for each would cost three times as much as the write itself. Event loop only.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from starlette.types import Send


class Outlet:
    """Closed until `open`, and while a write is unfinished."""

    def __init__(self) -> None:
        self._send: Send | None = None
        self._unfinished: _Rest | None = None

    def open(self, send: Send) -> None:
        """From now on body bytes go to `send`, whose answer has begun."""
        self._send = send

    @property
    def ready(self) -> bool:
        return self._send is not None and self._unfinished is None

    def write(self, data: bytes) -> bool:
        """Send now; only where it is `ready`. False: the reader is slow. The data is taken all the same, and `settle`
        has to be awaited."""
        assert self._send is not None
        steps = self._send({"type": "http.response.body", "body": data, "more_body": True}).__await__()
        try:
            self._unfinished = _Rest(steps, next(steps))
        except StopIteration:
            return True
        return False

    async def settle(self) -> None:
        """Finish an unfinished write."""
        if self._unfinished:
            await self._unfinished
            self._unfinished = None


class _Rest:
    """What is left of an awaitable that was begun without a task: `waits_for` is what it stopped at."""

    def __init__(self, steps: Generator[Any, Any, None], waits_for: object) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waits_for
        yield from self._steps
