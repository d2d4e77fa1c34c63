"""Group commit: one thread runs all that is queued in one transaction, so that a durable commit is paid once for many.

Only `server_stub.store` imports this. What is written is decided by the functions it is given.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Engine

T = TypeVar("T")
Item = TypeVar("Item")
Write = Callable[[Connection], T]
WriteAll = Callable[[Connection, Sequence[Item]], Sequence[T]]
LARGEST_GROUP = 256


@dataclass
class _Order:
    function: WriteAll[Any, Any]
    item: Any
    done: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Files(Protocol):
    """Files that belong to rows."""

    @property
    def unsynced(self) -> bool: ...

    def sync(self) -> None: ...


class _Syncing:
    """A thread that makes files durable while the writer's commits. Two queues: a pool's future costs ten times as
    much, at each commit."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._wanted.put(False)
        if self._thread.ident is not None:
            self._thread.join()

    def begin(self) -> bool:
        """False: there is nothing to wait for."""
        if self._files.unsynced:
            self._wanted.put(True)
            return True
        return False

    def wait(self) -> BaseException | None:
        """What `sync` raised."""
        return self._done.get()

    def _run(self) -> None:
        while self._wanted.get():
            try:
                self._files.sync()
            except BaseException as error:  # noqa: BLE001  it belongs to the one who waits
                self._done.put(error)
            else:
                self._done.put(None)


class Writer:
    """The one thread that writes, in the order in which it was asked. It is asked on one event loop."""

    def __init__(self, engine: Engine, files: Files | None) -> None:
        """`files` are made durable beside each commit: nothing is answered before both are on disk."""
        self._engine = engine
        self._kept: Connection | None = None
        self._syncing = _Syncing(files) if files else None
        self._turn: list[_Order] = []
        """Ordered in this turn of the event loop, and not given to the thread yet."""
        self._queue: queue.SimpleQueue[list[_Order] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()
        if self._syncing:
            self._syncing.start()

    def stop(self) -> None:
        """Write what was handed over, then end."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()
        if self._syncing:
            self._syncing.stop()

    async def write(self, function: Write[T]) -> T:
        """The result of `function(connection)`, durable. It may run twice: if another one of its group raises, the
        transaction is rolled back and each runs again in its own, where only its own error can hit it."""
        return await self.write_along(_each, function)

    async def write_along(self, function: WriteAll[Item, T], item: Item) -> T:
        """The result for `item` of `function(connection, items)`, durable. The items of neighbours in a group that name
        the same function come together, so that it needs one statement for all of them. It may run twice, too."""
        loop = asyncio.get_running_loop()
        order = _Order(function, item, loop.create_future())
        if not self._turn:
            loop.call_soon(self.hand_over)
        self._turn.append(order)
        result: T = await order.done  # written, too, if the caller goes away
        return result

    def hand_over(self) -> None:
        """What was ordered in one turn of the loop goes together: the thread would wake up for the first of it and
        contend with the loop for the interpreter while the others are on their way."""
        if self._turn:
            orders, self._turn = self._turn, []
            self._queue.put(orders)

    def _run(self) -> None:
        while group := self._next_group():
            self._execute(group)
            _call(group[0].done.get_loop(), _deliver, group)
        if self._kept:
            self._kept.close()

    def _next_group(self) -> list[_Order]:
        """All that is queued, at least one; [] when it is time to end."""
        group = self._queue.get() or []
        while group and len(group) < LARGEST_GROUP:
            try:
                orders = self._queue.get_nowait()
            except queue.Empty:
                break
            if orders is None:
                self._queue.put(None)  # seen again by the next look, after this group
                break
            group += orders
        return group

    def _execute(self, group: list[_Order]) -> None:
        try:
            self._transact(group)
        except BaseException as error:  # noqa: BLE001  whatever it is, it belongs to the one who asked, not to this thread
            if len(group) == 1:
                group[0].error = error
                return
            for order in group:
                self._execute([order])

    def _transact(self, group: list[_Order]) -> None:
        syncs = False
        try:
            with self._transaction() as connection:
                for function, neighbours in groupby(group, key=attrgetter("function")):
                    _run_all(connection, function, list(neighbours))
                # at the same time as the commit: two waits for the disk one after the other would take twice as long
                syncs = self._syncing is not None and self._syncing.begin()
        finally:
            failure = self._syncing.wait() if self._syncing and syncs else None
        for order in group:
            order.error = failure  # not raised: what is committed must not run again, and find itself there

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """SQLite's connection stays with the thread, as to get one takes as long as a small group; that of a server is
        looked at each time, as it may have gone away meanwhile."""
        if self._engine.dialect.name != "sqlite":
            with self._engine.begin() as connection:
                yield connection
            return
        self._kept = self._kept or self._engine.connect()
        try:
            with self._kept.begin():
                yield self._kept
        except BaseException:
            self._kept.connection.rollback()  # what a commit that failed leaves open
            raise


def _each(connection: Connection, functions: Sequence[Write[T]]) -> list[T]:
    return [function(connection) for function in functions]


def _run_all(connection: Connection, function: WriteAll[Any, Any], orders: Sequence[_Order]) -> None:
    results = function(connection, [order.item for order in orders])
    for order, result in zip(orders, results, strict=True):
        order.result = result


def _deliver(group: list[_Order]) -> None:
    for order in group:
        if order.done.done():
            continue
        if order.error is not None:
            order.done.set_exception(order.error)
        else:
            order.done.set_result(order.result)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop is closed: nobody waits any more, and what was written stays written
        pass
