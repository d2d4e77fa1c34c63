"""Work that runs beside its caller on the event loop: kept from being collected, and heard when it fails.

The service and the runtimes each have a `Tasks` of their own. Work in threads is not here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Event loop only."""

    def __init__(self, log: logging.Logger, failed: str, level: int = logging.ERROR) -> None:
        """`failed`: what `log` says, with the exception, when one of them failed."""
        self._log, self._failed, self._level = log, failed, level
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Order all to end, and wait for none."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Returns when all have ended, which are cancelled for it."""
        self.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._log.log(self._level, self._failed, exc_info=error)
