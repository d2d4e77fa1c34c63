"""The database behind one small door: `write` and `read` take a function of a connection; `rows` has the functions."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError

from client_lib.errors import ServerError, StorageFull
from server_stub.store import engines
from server_stub.store.migrate import migrate
from server_stub.store.writer import Files, Writer

T = TypeVar("T")
Item = TypeVar("Item")


class Store:
    """One database. `open` before use; `close` writes what is queued."""

    def __init__(self, url: str, files: Files | None = None) -> None:
        """`files` are made durable beside each commit (see `Writer`)."""
        self._url = url
        self._files = files
        self._readers = ThreadPoolExecutor(engines.READERS, thread_name_prefix="store-reader")

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return make_url(self._url).render_as_string(hide_password=True)

    async def open(self) -> None:
        """Connect, migrate, start the writer.

        Raises:
            ServerError: it can't be opened or written, is newer than this version, or belongs to a running server.
        """
        try:
            await asyncio.to_thread(self._open)
        except SQLAlchemyError as error:
            raise ServerError(
                f"the database {self.shown} can't be opened: {_said(error)}",
                hint="is its directory writable for this user, and its server up?",
            ) from error

    async def write(self, function: Callable[[Connection], T]) -> T:
        """The result of `function(connection)`, durable; it may run twice (see `Writer.write`).

        Raises:
            StorageFull: nothing was written.
        """
        return await self._written(self._writer.write(function))

    async def write_along(self, function: Callable[[Connection, Sequence[Item]], Sequence[T]], item: Item) -> T:
        """The result for `item` of `function(connection, items)`, durable (see `Writer.write_along`).

        Raises:
            StorageFull: nothing was written.
        """
        return await self._written(self._writer.write_along(function, item))

    async def _written(self, writing: Coroutine[Any, Any, T]) -> T:
        try:
            return await writing
        except (DatabaseError, OSError) as error:
            if is_full(error):
                raise StorageFull("the disk of the server is full; nothing was stored") from error
            raise

    async def read(self, function: Callable[[Connection], T]) -> T:
        """The result of `function(connection)` on one consistent state of the database."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._read, function)

    async def close(self) -> None:
        self._writer.hand_over()
        await asyncio.to_thread(self._close)

    def _open(self) -> None:
        self._writing = engines.writing_engine(self._url)
        self._reading = engines.reading_engine(self._url)
        self._lock: Connection | None = None
        if not engines.is_sqlite(self._url):
            self._lock = self._take_lock(self._writing)
        with self._writing.begin() as connection:
            migrate(connection)
        self._writer = Writer(self._writing, self._files)
        self._writer.start()

    def _take_lock(self, engine: Engine) -> Connection:
        # a connection of its own, which lives as long as the server does
        connection = engine.execution_options(isolation_level="AUTOCOMMIT").connect()
        connection.detach()
        if not engines.try_lock(connection):
            connection.close()
            raise ServerError(
                f"another server runs on the database {self.shown}",
                hint="exactly one server may use a database: stop the other one first",
            )
        return connection

    def _read(self, function: Callable[[Connection], T]) -> T:
        with self._reading.begin() as connection:
            return function(connection)

    def _close(self) -> None:
        self._writer.stop()
        self._readers.shutdown()
        if self._lock:
            self._lock.close()
        self._reading.dispose()
        self._writing.dispose()


def is_full(error: BaseException) -> bool:
    """The disk, the quota or the database's own bound is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not isinstance(error, OperationalError):
        return False
    postgresql_says = getattr(error.orig, "sqlstate", None) == "53100"
    return postgresql_says or "database or disk is full" in str(error.orig)


def _said(error: SQLAlchemyError) -> str:
    return str(error.orig).strip() if isinstance(error, DatabaseError) and error.orig else str(error)
