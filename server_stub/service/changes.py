"""Who waits for a change of which job. One future per waiting call: no thread, no timer, no polling."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial


class Changes:
    """Used on one event loop."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def __len__(self) -> int:
        """Jobs that somebody waits for."""
        return len(self._waiting)

    def publish(self, job_id: str) -> None:
        """Wake all that wait for this job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    def next(self, job_id: str) -> asyncio.Future[None]:
        """Done at the next `publish` of this job, also one in this very turn of the loop: look at the job and call this
        without an await between, and no change is missed. Who waits no longer cancels it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[job_id].add(future)
        future.add_done_callback(partial(self._forget, job_id))
        return future

    def _forget(self, job_id: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(job_id, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(job_id, None)
