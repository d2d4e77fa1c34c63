"""The database, SQLite or PostgreSQL: `Store` runs the functions of `rows` and `group_rows` on a
connection.

Other packages see no SQLAlchemy.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from client_lib.errors import ServerError, StorageFull
from server_stub.files.request_log import DATA_ID, UNWRITTEN, RequestLog
from server_stub.store import engines, group_rows, rows
from server_stub.store.engines import (
    NO_ANSWER,
    WAY_OUT,
    Locked,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    Superseded,
)
from server_stub.store.group_rows import NewGroup
from server_stub.store.rows import Added, NewJob
from server_stub.store.writer import Writer

__all__ = ["Store", "StoreDamaged", "StoreError", "StoreUnavailable", "Superseded"]

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)
READ_S = 10.0  # for a read of PostgreSQL, with its wait for a free connection
READ_ALL_S = 300.0  # for one of all jobs, at the start and in the background


class Store:
    """One database. `open` before use; `close` writes what is queued."""

    def __init__(
        self,
        url: str,
        request_log: RequestLog | None = None,
        give_up_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`request_log`: the file of submit requests, each of which is durable before its row is
        committed. `give_up_room` frees some of a full disk for a write, and returns False if it
        can't."""
        self._url = url
        self._give_up_room = give_up_room
        self._request_log = request_log
        self._damage: StoreDamaged | None = None
        """The fault of its pages that SQLite has found while this server ran."""
        self._next_seq: int | None = None
        self._readers = ThreadPoolExecutor(engines.READERS, thread_name_prefix="store-reader")

    @property
    def shown(self) -> str:
        """The URL without its password."""
        return make_url(self._url).render_as_string(hide_password=True)

    async def open(
        self, has_jobs: Callable[[], bool] = lambda: False, *, recover: bool = False
    ) -> bool:
        """Connect, migrate, start the writer. Returns True if the database is new.

        `has_jobs`: asked if it is new; True if files of jobs lie beside it, which it should know.
        `recover`: it may be new all the same, and a damaged file is set aside.

        Raises:
            ServerError: it can't be opened or written, is damaged or lost, is newer than this
                version, or belongs to a running server.
        """
        try:
            return await asyncio.to_thread(self._open, has_jobs, recover)
        except Locked as error:
            raise ServerError(
                f"another server runs on the database {self.shown}",
                hint="exactly one server may use a database: stop the other one first",
            ) from error
        except SQLAlchemyError as error:
            cause = (
                str(error.orig).strip()
                if isinstance(error, DatabaseError) and error.orig
                else str(error)
            )
            raise ServerError(
                f"the database {self.shown} can't be opened: {cause}",
                hint="check that this user can write to its directory, or that its database server "
                "runs",
            ) from error

    async def read(
        self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of `function(connection, *args)` on one consistent state of the
        database. Raises StoreError.
        """
        return await self._read(READ_S, lambda connection: function(connection, *args, **kwargs))

    async def read_all(
        self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Read like `read`, with a longer limit: for a read that grows with the number of jobs, and
        for which no caller waits."""
        return await self._read(
            READ_ALL_S, lambda connection: function(connection, *args, **kwargs)
        )

    async def _read(self, limit_s: float, function: Callable[[Connection], T]) -> T:
        def run() -> T:
            with self._reading.begin() as connection:
                return function(connection)

        reading = asyncio.get_running_loop().run_in_executor(self._readers, run)
        try:
            return await asyncio.wait_for(
                reading, None if engines.is_sqlite(self._url) else limit_s
            )
        except asyncio.TimeoutError as error:
            raise StoreUnavailable(NO_ANSWER, hint="repeat the call later") from error
        except SQLAlchemyError as error:
            raise self._translated(error) from error

    async def write(
        self, function: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of `function(connection, *args)`, durable; it may run twice (see
        `Writer.write`). On a full disk room is given up for it.

        Raises:
            StorageFull, ServerError, StoreError: nothing was written.
        """
        while True:
            try:
                return await self._written(
                    self._writer.write(lambda connection: function(connection, *args, **kwargs))
                )
            except StorageFull:
                if not self._give_up_room():
                    raise

    async def check(self) -> None:
        """Take the lock again if it was lost. Raises Superseded, StoreDamaged,
        StoreError: it can't be written now.
        """
        self._refuse_older_than(await self.read(rows.generation))
        await self.write(lambda _: None)

    async def add_job(self, new: NewJob) -> Added:
        """Store a job and its submit request; `new.row.place` is set.

        Raises as `write`: there will be no such job, even if the database was lost in the middle of
        the commit.
        """
        undo = partial(rows.discard, job_id=new.row.id)
        return await self._written(self._writer.write_together(self._add_jobs, new, undo))

    async def add_group(self, new: NewGroup) -> Added:
        """Store a group, its members and their submit requests, all or
        none. Raises as `add_job`.
        """
        undo = partial(group_rows.discard, new=new)
        return await self._written(self._writer.write_together(self._add_groups, new, undo))

    async def drop_unused_segments(self) -> None:
        """Remove files of submit requests that belong to no job."""
        requests = self._request_log
        assert requests
        # in the writer's thread: no submit can be written to a segment between the query and its
        # removal
        await self.write(lambda connection: requests.drop_unused(rows.segments_in_use(connection)))

    async def close(self) -> None:
        await asyncio.to_thread(self._writer.stop)
        await asyncio.to_thread(self._readers.shutdown)
        for engine in (self._reading, self._writing):
            # SQLite's last connection writes its log into the file
            await asyncio.to_thread(engine.dispose)

    def _add_jobs(self, connection: Connection, new: Sequence[NewJob]) -> list[Added]:
        return rows.add_jobs(connection, new, partial(self._with_records, connection))

    def _add_groups(self, connection: Connection, new: Sequence[NewGroup]) -> list[Added]:
        return [
            group_rows.refusal(connection, group)
            or group_rows.add_group(
                connection, group, self._with_records(connection, group.members)
            )
            for group in new
        ]

    def _with_records(self, connection: Connection, new: Sequence[NewJob]) -> int:
        """Write the requests of the jobs and set their places; the `seq` of the first."""
        assert self._request_log
        # a repeated write has its record already
        unwritten = [job for job in new if job.row.place == UNWRITTEN]
        places = self._request_log.append(*[job.record for job in unwritten])
        for job, place in zip(unwritten, places, strict=True):
            job.row = job.row._replace(place=place)
        # only this thread of the newest server adds jobs
        first = self._next_seq or rows.next_seq(connection)
        self._next_seq = first + len(new)  # also if the transaction fails: a number may stay unused
        return first

    async def _written(self, writing: Coroutine[Any, Any, T]) -> T:
        try:
            return await writing
        except (SQLAlchemyError, OSError) as error:
            if engines.is_full(error):
                raise StorageFull("the disk of the server is full; nothing was stored") from error
            if isinstance(error, OSError):
                raise ServerError(
                    f"the disk of the server fails: {error.strerror}; nothing was stored"
                ) from error
            raise self._translated(error) from error

    def _translated(self, error: SQLAlchemyError) -> StoreError:
        problem = engines.translated(error)
        if isinstance(problem, StoreDamaged):
            if self._damage is None:
                log.critical("%s, in %s; %s", problem.message, self.shown, WAY_OUT)
            self._damage = problem
        return problem

    def _open(self, has_jobs: Callable[[], bool], recover: bool) -> bool:
        engines.check_url(self._url)
        if file := engines.sqlite_file(self._url):
            if damage := engines.damage_of(file):
                if not recover:
                    raise ServerError(
                        f"the database {self.shown} is damaged: {damage}", hint=WAY_OUT
                    )
                log.warning(
                    "the database %s is damaged and is now %s", self.shown, engines.set_aside(file)
                )
            engines.keep_private(file)
        self._writing = engines.writing_engine(self._url)
        self._reading = engines.reading_engine(self._url)
        try:
            with self._writing.begin() as connection:
                is_new = engines.migrate(connection)
                if is_new and not recover and has_jobs():
                    raise ServerError(
                        f"the database {self.shown} is missing, and the files of its jobs are "
                        "there",
                        hint=WAY_OUT,
                    )
                if self._request_log:
                    self._pair(connection, self._request_log)
                self._generation = rows.take_over(connection)
        except BaseException:
            self._writing.dispose()  # and with its session the lock
            raise
        for engine in (self._writing, self._reading):
            engines.limit_silence(engine)
        self._writer = Writer(self._writing, self._begin_write)
        return is_new

    def _begin_write(self, connection: Connection) -> None:
        if self._damage:  # more could be destroyed
            raise StoreDamaged(self._damage.message, hint=self._damage.hint)
        self._refuse_older_than(rows.generation(connection, keep=True))

    def _refuse_older_than(self, newest: int) -> None:
        if self._generation != newest:
            raise Superseded(
                "another server has taken over the database of this one",
                hint="repeat the call later",
            )

    def _pair(self, connection: Connection, log: RequestLog) -> None:
        """Store which data directory the rows refer to. Raises ServerError if it is another one."""
        expected = rows.data_id(connection)
        found = log.data_id
        if expected is None and (found or log.has_records or not rows.counts(connection)):
            expected = found or uuid.uuid4().hex
            log.set_data_id(expected)
            rows.set_data_id(connection, expected)
        elif expected is None or expected != found:
            raise ServerError(
                f"the database {self.shown} belongs to another data directory than "
                f"{log.folder.parent}",
                hint="start the server with the one that has the requests, logs and outputs of "
                f"its jobs; if that is lost, write {expected or 'lost'} into "
                f"{log.folder / DATA_ID}",
            )
