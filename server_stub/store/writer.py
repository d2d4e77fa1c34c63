"""Group commit: one thread runs all queued writes in one transaction, so that many
share one durable commit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from server_stub.store.engines import is_away

T = TypeVar("T")
Item = TypeVar("Item")
Write = Callable[[Connection], T]
WriteAll = Callable[[Connection, Sequence[Item]], Sequence[T]]
LARGEST_GROUP = 256


@dataclass
class _Task:
    function: WriteAll[Any, Any]
    item: Any
    undo: Write[None] | None
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Writer:
    """The only thread that writes; it keeps the order of the calls. All calls
    come from one event loop.
    """

    def __init__(self, engine: Engine, begin: Write[None]) -> None:
        """`begin` runs first in each transaction; its error fails the whole group."""
        self._engine = engine
        self._begin = begin
        self._connection: Connection | None = None
        """Kept from one transaction to the next in SQLite; PostgreSQL's is
        checked by its pool each time.
        """
        self._in_doubt: list[Write[None]] = []
        """Functions that undo writes whose commit got no answer, so that it is
        unknown whether they are stored.
        """
        self._queue: deque[_Task] = deque()
        self._is_called = False
        """True if the thread will be called at the end of this turn of the event loop."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-writer")

    def stop(self) -> None:
        """Write what is queued, then end."""
        self._thread.submit(self._run)
        self._thread.submit(self._give_back)
        self._thread.shutdown()

    async def write(self, function: Write[T]) -> T:
        """The result of `function(connection)`, durable. It may run twice: if another function of
        its group raises, the transaction is rolled back, and each function runs again in a
        transaction of its own, so that an error reaches only its own caller. A lost database fails
        the whole group."""
        return await self.write_together(_each, function)

    async def write_together(
        self, function: WriteAll[Item, T], item: Item, undo: Write[None] | None = None
    ) -> T:
        """The result for `item` of `function(connection, items)`, durable. `items` are the items of
        neighbouring calls with the same function, so that one statement does for all. The function
        may run twice, as in `write`.

        `undo`: runs before the next write, if it is not known whether the commit succeeded. This
        call has raised then.
        """
        loop = asyncio.get_running_loop()
        task = _Task(function, item, undo, loop.create_future())
        self._queue.append(task)
        if not self._is_called:
            self._is_called = True
            loop.call_soon(self._call)
        result: T = await task.done  # the task is written even if the caller is cancelled here
        return result

    def _call(self) -> None:
        """Wake the thread for all tasks of this turn of the loop. If it woke up at the first one,
        it would compete with the loop for the interpreter's lock while the others are still being
        made."""
        self._is_called = False
        with suppress(RuntimeError):  # stopped meanwhile, which has written them
            self._thread.submit(self._run)

    def _run(self) -> None:
        """Write everything that is queued."""
        while self._queue:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), LARGEST_GROUP))]
            self._execute(group)
            with suppress(RuntimeError):  # the loop is closed, and with it the waiting calls
                group[0].done.get_loop().call_soon_threadsafe(_deliver, group)

    def _execute(self, group: list[_Task]) -> None:
        committing = False
        try:
            self._connection = connection = self._connection or self._engine.connect()
            with connection.begin():
                self._begin(connection)
                for undo in self._in_doubt:
                    undo(connection)
                for function, neighbours in groupby(group, key=attrgetter("function")):
                    tasks = list(neighbours)
                    results = function(connection, [task.item for task in tasks])
                    for task, result in zip(tasks, results, strict=True):
                        task.result = result
                committing = True
        except BaseException as error:  # noqa: BLE001  # every error belongs to the caller, not to this thread
            self._give_back()
            if len(group) > 1 and not is_away(error):
                for task in group:
                    self._execute([task])
                return
            for task in group:
                task.error = error
            if committing:
                self._in_doubt += [task.undo for task in group if task.undo]
        else:
            self._in_doubt.clear()
            if self._engine.dialect.name != "sqlite":
                self._give_back()

    def _give_back(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _each(connection: Connection, functions: Sequence[Write[T]]) -> list[T]:
    return [function(connection) for function in functions]


def _deliver(group: list[_Task]) -> None:
    for task in group:
        if task.done.done():  # its caller was cancelled
            continue
        if task.error is not None:
            task.done.set_exception(task.error)
        else:
            task.done.set_result(task.result)
