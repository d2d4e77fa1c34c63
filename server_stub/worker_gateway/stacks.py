"""Orders for the stacks of one remote worker. An order has a mark, which the worker sends with its answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

Processes = list[dict[str, Any]]
"""The processes as a launcher has written them (client_lib.worker.stacks), not checked."""


class StackDump(NamedTuple):
    """The answer of one worker that was asked for the stacks of its ranks."""

    worker: int
    processes: Processes
    problem: str = ""
    """The reason why there are none, as a sentence."""


class StackOrders:
    """Event loop only. One order at a time; it is lost with this server process."""

    def __init__(self) -> None:
        self.mark: str | None = None
        """Mark of the order that waits for an answer; None: no order does."""
        self.supported: bool | None = None
        """The worker's version can take stacks; None: it has not said so yet."""
        self._answer: asyncio.Future[Processes] | None = None

    async def take(self, wake: Callable[[], None], limit_s: float) -> Processes | None:
        """Order the stacks and wait for them; None: the worker did not answer in time. `wake` sends the order."""
        self.mark, self._answer = secrets.token_hex(8), asyncio.get_running_loop().create_future()
        wake()
        try:
            return await asyncio.wait_for(self._answer, limit_s)
        except asyncio.TimeoutError:
            return None
        finally:
            self.mark = None

    def is_new(self, known: str | None) -> bool:
        """True if there is an order that this worker, which knows the one with the mark `known`, must get."""
        return self.mark is not None and known is not None and known != self.mark

    def answer(self, mark: str, processes: Processes) -> None:
        """Take an answer; one that came too late is dropped."""
        if self._answer is not None and mark == self.mark and not self._answer.done():
            self._answer.set_result(processes)
