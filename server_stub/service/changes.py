"""Wakes calls that wait for a change of a job: one future per call, without threads, timers or polling."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial


class Changes:
    """The waiting calls of one event loop."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def __len__(self) -> int:
        """The number of jobs with a waiting call."""
        return len(self._waiting)

    def publish(self, job_id: str) -> None:
        """Wake all calls that wait for this job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    def next(self, job_id: str) -> asyncio.Future[None]:
        """A future that is done at the next `publish` of this job. Read the job and call this without an await between
        them, and no change is missed. To stop waiting, cancel it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[job_id].add(future)
        future.add_done_callback(partial(self._forget, job_id))
        return future

    def _forget(self, job_id: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(job_id, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(job_id, None)
