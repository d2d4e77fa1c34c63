"""Shares out long work among users, so that no user keeps the others waiting."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TypeVar

from client_lib.errors import Unavailable

T = TypeVar("T")


class Turns:
    """Bounds how much of one kind of work runs at once, in all and of each user. Users whose work
    waits take turns: the next one is the user who was not served for the longest time. Used by one
    event loop."""

    def __init__(self, what: str, *, at_once: int, of_user: int, waiting_of_user: int) -> None:
        """`what`: the work, in the plural, for messages: "searches". The others are largest numbers
        of pieces of work: that run at once, those of one user that run at once, and those of one
        user that wait."""
        self._what = what
        self._at_once = at_once
        self._of_user = of_user
        self._waiting_of_user = waiting_of_user
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait until it is the user's turn, and hold it while the body runs.

        Raises Unavailable: too much work of this user waits already.
        """
        await self._begin(user)
        try:
            yield
        finally:
            self._end(user)

    async def _begin(self, user: str) -> None:
        if user not in self._waiting and self._may_run(user):
            self._running[user] += 1
            return
        waiting = self._waiting.setdefault(user, deque())
        if len(waiting) >= self._waiting_of_user:
            raise Unavailable(
                f"{len(waiting)} {self._what} of {user} wait already",
                hint="send the next request when one of these has its answer",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came before the caller was cancelled
                self._end(user)
            raise
        finally:
            self._forget(user, turn)

    def _may_run(self, user: str) -> bool:
        return self._running.total() < self._at_once and self._running[user] < self._of_user

    def _end(self, user: str) -> None:
        self._running[user] -= 1
        if not self._running[user]:
            del self._running[user]
        while (chosen := next(filter(self._may_run, self._waiting), None)) is not None:
            turn = self._waiting[chosen][0]
            self._forget(chosen, turn)
            if turn.cancelled():
                continue
            if chosen in self._waiting:
                self._waiting.move_to_end(chosen)
            self._running[chosen] += 1
            turn.set_result(None)

    def _forget(self, user: str, turn: asyncio.Future[None]) -> None:
        """Take a turn out of the queue, if it is there."""
        waiting = self._waiting.get(user, deque())
        if turn in waiting:
            waiting.remove(turn)
            if not waiting:
                del self._waiting[user]


async def finished(work: Future[T]) -> T:
    """The result of work in a thread. A caller that is cancelled waits for the end of work that has
    begun: a thread can't be stopped, and the turn lasts as long as the work."""
    waiting = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not work.cancel():
            await asyncio.wait({waiting})
        raise
