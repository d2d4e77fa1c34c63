"""Group commit: one thread runs all queued writes in one transaction, so that many share one durable commit."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
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
    """The only thread that writes; it keeps the order of the calls. All calls come from one event loop."""

    def __init__(self, engine: Engine, begin: Write[None]) -> None:
        """`begin` runs first in each transaction; its error fails the whole group."""
        self._engine = engine
        self._begin = begin
        self._connection: Connection | None = None
        """Kept from one transaction to the next in SQLite; PostgreSQL's is checked by its pool each time."""
        self._in_doubt: list[Write[None]] = []
        """Functions that undo writes whose commit got no answer, so that it is unknown whether they are stored."""
        self._turn: list[_Task] = []
        """Tasks of this turn of the event loop that the thread does not have yet."""
        self._queue: queue.SimpleQueue[list[_Task] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what was handed over, then end."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    async def write(self, function: Write[T]) -> T:
        """The result of `function(connection)`, durable. It may run twice: if another one of its group raises, the
        transaction is rolled back and each runs again in its own, so that an error reaches only its own caller. A lost
        database fails the whole group."""
        return await self.write_together(_each, function)

    async def write_together(self, function: WriteAll[Item, T], item: Item, undo: Write[None] | None = None) -> T:
        """The result for `item` of `function(connection, items)`, durable. `items` are those of neighbouring calls with
        the same function, so that it needs one statement for all of them. It may run twice, as in `write`.

        `undo`: runs before the next write, if it is not known whether the commit succeeded. This call has raised then.
        """
        loop = asyncio.get_running_loop()
        task = _Task(function, item, undo, loop.create_future())
        if not self._turn:
            loop.call_soon(self.hand_over)
        self._turn.append(task)
        result: T = await task.done  # the task is written even if the caller is cancelled here
        return result

    def hand_over(self) -> None:
        """Give the tasks of this turn of the loop to the thread in one piece. If it woke up at the first one, it would
        compete with the loop for the interpreter's lock while the others are still being made."""
        if self._turn:
            tasks, self._turn = self._turn, []
            self._queue.put(tasks)

    def _run(self) -> None:
        while group := self._next_group():
            self._execute(group)
            try:
                group[0].done.get_loop().call_soon_threadsafe(_deliver, group)
            except RuntimeError:  # the loop is closed, and with it the waiting calls
                pass
        self._give_back()

    def _next_group(self) -> list[_Task]:
        """Everything that is queued, at least one task; [] when the writer was stopped."""
        group = self._queue.get() or []
        while group and len(group) < LARGEST_GROUP:
            try:
                tasks = self._queue.get_nowait()
            except queue.Empty:
                break
            if tasks is None:
                self._queue.put(None)  # read again by the next call, after this group
                break
            group += tasks
        return group

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
        if task.done.done():
            continue
        if task.error is not None:
            task.done.set_exception(task.error)
        else:
            task.done.set_result(task.result)
