"""Who waits for a change of which job. One future per waiting call: no thread, no timer, no polling."""

from __future__ import annotations

import asyncio
from collections import defaultdict


class Changes:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def publish(self, job_id: str) -> None:
        """Wake all that wait for this job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    async def next(self, job_id: str) -> None:
        """Return at the next `publish` of this job. Look at the job and call this without an await between: then no
        change is missed."""
        future = asyncio.get_running_loop().create_future()
        waiting = self._waiting[job_id]
        waiting.add(future)
        try:
            await future
        finally:
            waiting.discard(future)
            if not waiting and self._waiting.get(job_id) is waiting:
                del self._waiting[job_id]
