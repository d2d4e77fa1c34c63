"""Wakes calls that wait for a change of a job, or of the state of any: one future per call, without threads, timers or
polling."""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict, deque
from functools import partial
from itertools import islice

from client_lib.spec.wire import StateChange

_ANY = ""  # stands for all jobs among the waiting calls
_KEPT = 10_000  # changes of states


class Changes:
    """The waiting calls of one event loop, and the newest changes of states, which end with the process."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._states: deque[tuple[str, StateChange]] = deque(maxlen=_KEPT)
        self._sequence, self._count = secrets.token_hex(8), 0

    def __len__(self) -> int:
        """The number of jobs with a waiting call."""
        return len(self._waiting)

    def publish(self, job_id: str) -> None:
        """Wake all calls that wait for this job."""
        for future in self._waiting.pop(job_id, ()):
            if not future.done():
                future.set_result(None)

    def publish_state(self, owner: str, change: StateChange) -> None:
        """Keep the change, and wake all calls that wait for one of any job."""
        self._states.append((owner, change))
        self._count += 1
        self.publish(_ANY)

    def next(self, job_id: str = _ANY) -> asyncio.Future[None]:
        """A future that is done at the next `publish` of this job, or `publish_state` of any. Read what it is about and
        call this without an await between them, and no change is missed. To stop waiting, cancel it."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[job_id].add(future)
        future.add_done_callback(partial(self._forget, job_id))
        return future

    @property
    def cursor(self) -> str:
        """The place behind the newest change of a state."""
        return f"{self._sequence}-{self._count}"

    def since(self, cursor: str) -> list[tuple[str, StateChange]] | None:
        """The changes of states behind `cursor`, each with the owner of its job; None: not all are known."""
        sequence, _, count = cursor.rpartition("-")
        missed = self._count - int(count) if sequence == self._sequence and count.isdecimal() else -1
        if not 0 <= missed <= len(self._states):
            return None
        return list(islice(reversed(self._states), missed))[::-1]

    def _forget(self, job_id: str, future: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(job_id, set())
        waiting.discard(future)
        if not waiting:
            self._waiting.pop(job_id, None)
