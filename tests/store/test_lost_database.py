"""The database goes away under a store: every call says so, and what was
refused is not there later.
"""

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DatabaseError, InterfaceError

from server_stub.files.request_log import UNWRITTEN, RequestLog
from server_stub.store import Store, StoreError, StoreUnavailable, rows
from server_stub.store.engines import READERS, damage
from server_stub.store.rows import Key, NewJob
from tests.kit.bounds import Bounds
from tests.kit.small_disk import no_file_grows_over
from tests.store.postgresql import Proxy, Server
from tests.store.test_store import added, opened, row

on_postgresql = [pytest.mark.process, pytest.mark.xdist_group("postgresql")]
KEY = Key("ann", "k", "f" * 64)


def new_job(number: int = 1, key: Key | None = KEY) -> NewJob:
    return NewJob(row(number, place=UNWRITTEN), {"team": "a"}, key, b"what was submitted\n")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RequestLog]:
    log = RequestLog(tmp_path / "submissions")
    log.open()
    yield log
    log.close()


async def stored(store: Store) -> list[str]:
    return [job.id for job in await store.read(rows.unfinished)]


@pytest.mark.usefixtures("postgresql_server")
class TestPostgresql:
    pytestmark = on_postgresql

    def test_calls_are_refused_while_it_is_away_and_work_when_it_is_back(
        self, postgresql_may_stop: Server
    ) -> None:
        async def run() -> None:
            async with opened(postgresql_may_stop.new_database()) as store:
                await store.write(added, row(1))
                postgresql_may_stop.stop()
                for _ in range(2):
                    with pytest.raises(StoreUnavailable):
                        await store.read(rows.unfinished)
                    with pytest.raises(StoreUnavailable):
                        await store.write(added, row(2))
                postgresql_may_stop.start()
                await store.write(added, row(3))
                assert await stored(store) == [row(1).id, row(3).id]

        asyncio.run(run())

    def test_calls_are_refused_while_it_is_frozen_and_work_when_it_goes_on(
        self, postgresql_server: Server
    ) -> None:
        async def run() -> None:
            async with opened(postgresql_server.new_database()) as store:
                await store.write(added, row(1))
                with postgresql_server.frozen():
                    reads = [store.read(rows.unfinished) for _ in range(2 * READERS)]
                    calls = asyncio.gather(
                        *reads, store.write(added, row(2)), return_exceptions=True
                    )
                    # without a bound it waits until the server goes on
                    answers = await asyncio.wait_for(calls, 60)
                    assert {type(answer) for answer in answers} == {StoreUnavailable}
                await store.write(added, row(3))
                assert await stored(store) == [row(1).id, row(3).id]

        asyncio.run(run())

    def test_a_read_of_all_jobs_may_take_longer_than_one_for_a_call(
        self, postgresql_server: Server, bounds: Bounds
    ) -> None:
        def slow(connection: Connection) -> int:
            return int(connection.execute(text("SELECT 7 FROM pg_sleep(1)")).scalar_one())

        async def run() -> None:
            async with opened(postgresql_server.new_database()) as store:
                bounds("server_stub.store", READ_S=0.2)
                with pytest.raises(StoreUnavailable):
                    await store.read(slow)
                assert await store.read_all(slow) == 7

        asyncio.run(run())

    def test_a_lost_database_fails_a_group_at_once(self, postgresql_may_stop: Server) -> None:
        runs: list[int] = []

        def write(connection: Connection, number: int) -> None:
            connection.execute(text("SELECT 1"))
            runs.append(number)
            if number == 19:
                postgresql_may_stop.stop()

        async def run() -> None:
            async with opened(postgresql_may_stop.new_database()) as store:
                writes = [store.write(write, number) for number in range(20)]
                results = await asyncio.gather(*writes, return_exceptions=True)
                assert {type(result) for result in results} == {StoreUnavailable}
            assert runs == list(range(20)), "each ran once: none was tried alone"

        asyncio.run(run())

    def test_a_row_that_it_can_not_store_is_refused_alone(self, postgresql_server: Server) -> None:
        too_long_for_an_index = row(1, script_path=secrets.token_hex(6000))

        async def run() -> None:
            async with opened(postgresql_server.new_database()) as store:
                writes = [store.write(added, new) for new in (too_long_for_an_index, row(2))]
                refused, _ = await asyncio.gather(*writes, return_exceptions=True)
                assert type(refused) is StoreError
                assert await stored(store) == [row(2).id]

        asyncio.run(run())

    def test_a_job_whose_commit_got_no_answer_is_not_accepted(
        self, postgresql_server: Server, proxy: Proxy, log: RequestLog
    ) -> None:
        async def run() -> None:
            async with opened(postgresql_server.new_database(proxy.folder), log) as store:
                proxy.loses_commits = True
                with pytest.raises(StoreUnavailable):
                    await store.add_job(new_job())
                proxy.loses_commits = False
                for _ in range(1000):
                    if await stored(store):  # PostgreSQL commits although nobody hears its answer
                        break
                    await asyncio.sleep(0.01)
                assert await stored(store) == [row(1).id]
                again = new_job(2)
                assert (await store.add_job(again)).seq is not None, "its key is free"
                assert await stored(store) == [again.row.id]

        asyncio.run(run())


def test_a_job_whose_commit_failed_in_sqlite_is_not_accepted(
    tmp_path: Path, log: RequestLog
) -> None:
    async def run() -> None:
        async with opened(f"sqlite:///{tmp_path}/test.db", log) as store:
            await store.add_job(new_job(1, None))
            with no_file_grows_over((tmp_path / "test.db-wal").stat().st_size):
                for number in (2, 3):
                    with pytest.raises(StoreUnavailable):
                        await store.add_job(new_job(number))
                    assert await stored(store) == [row(1).id]
            assert (await store.add_job(new_job(4))).seq is not None
            assert await stored(store) == [row(1).id, row(4).id]

    asyncio.run(run())


def test_what_a_job_has_printed_is_no_damage_of_the_database() -> None:
    printed = {"message": "sqlite3.DatabaseError: file is not a database"}
    lost = InterfaceError("INSERT INTO events", printed, Exception("the connection is closed"))
    assert printed["message"] in str(lost)
    assert damage(lost) is None
    assert (
        damage(DatabaseError("SELECT 1", None, Exception("file is not a database")))
        == "file is not a database"
    )
