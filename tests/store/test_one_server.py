"""One server decides about a database: the newest one. Others are refused,
before and in each transaction.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest
import sqlalchemy as sa
from hypothesis import given, settings, strategies as st
from sqlalchemy import Connection, text

from client_lib.errors import InvalidRequest, ServerError
from server_stub.files.request_log import RequestLog
from server_stub.store import Store, StoreError, StoreUnavailable, Superseded, engines
from server_stub.store.engines import _LOCK_KEY, Locked
from tests.kit.examples import examples
from tests.store.postgresql import Server
from tests.store.test_lost_database import new_job, on_postgresql, stored
from tests.store.test_store import added, opened, row

Action = tuple[Literal["open", "write", "lose", "write and lose"], int]
ACTIONS: st.SearchStrategy[list[Action]] = st.lists(
    st.tuples(st.sampled_from(["open", "write", "lose", "write and lose"]), st.integers(0, 2)),
    max_size=12,
)


END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid != pg_backend_pid()"
)
"""Ends the sessions of all other connections, which then begin anew."""


def let_go(connection: Connection) -> None:
    """Lose the lock and keep the session, as behind a pooler that gives
    each transaction another one.
    """
    connection.execute(text("SELECT pg_advisory_unlock_all()"))


class TestPostgresql:
    pytestmark = on_postgresql

    def test_the_lock_is_taken_again_after_a_restart(self, postgresql_may_stop: Server) -> None:
        async def run() -> None:
            url = postgresql_may_stop.new_database()
            async with opened(url) as store:
                postgresql_may_stop.restart()
                await store.check()
                with pytest.raises(ServerError, match="another server runs on the database"):
                    await Store(url).open()
                await store.write(added, row(1))

        asyncio.run(run())

    def test_a_server_that_has_just_ended_holds_the_lock_for_a_moment(
        self, postgresql_server: Server
    ) -> None:
        async def run() -> None:
            url = postgresql_server.new_database()
            async with opened(url):
                pass
            ended = sa.create_engine(url).connect()
            ended.execute(text(f"SELECT pg_advisory_lock({_LOCK_KEY})"))
            release = threading.Timer(0.3, ended.invalidate)
            release.start()
            async with opened(url) as store:
                await store.write(added, row(1))
            release.join()

        asyncio.run(run())

    def test_options_of_the_url_are_kept(self, postgresql_server: Server) -> None:
        async def run() -> None:
            def timeout(connection: Connection) -> object:
                return connection.execute(text("SHOW statement_timeout")).scalar()

            url = postgresql_server.new_database() + "&options=-c%20statement_timeout%3D7s"
            async with opened(url) as store:
                assert [await store.read(timeout), await store.write(timeout)] == ["7s", "7s"]
                with pytest.raises(StoreError):
                    await store.read(added, row(1))

        asyncio.run(run())

    def test_a_server_whose_lock_another_one_has_taken_writes_no_more(
        self, postgresql_may_stop: Server
    ) -> None:
        async def run() -> None:
            url = postgresql_may_stop.new_database()
            async with opened(url) as first:
                postgresql_may_stop.restart()
                async with opened(url) as second:
                    with pytest.raises(StoreUnavailable):
                        await first.write(added, row(1))
                    with pytest.raises(Superseded):
                        await first.check()
                    await second.write(added, row(2))
                with pytest.raises(Superseded):  # the lock is free again, and what it knows is old
                    await first.write(added, row(3))
                assert await stored(first) == [row(2).id]

        asyncio.run(run())

    def test_a_server_waits_for_its_lock_while_nobody_took_over(
        self, postgresql_server: Server
    ) -> None:
        """PostgreSQL may keep the session of a broken connection, and with
        it the lock, for a while.
        """
        held = (
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM "
            "pg_database "
        )
        held += "WHERE datname = current_database())"

        async def run() -> None:
            url = postgresql_server.new_database()
            engine = sa.create_engine(url, poolclass=sa.NullPool)
            async with opened(url) as store:
                with engine.connect() as other:
                    pid = other.exec_driver_sql(held).scalar_one()
                    other.exec_driver_sql(f"SELECT pg_terminate_backend({pid})")
                    other.exec_driver_sql(f"SELECT pg_advisory_lock({_LOCK_KEY})")
                    for _ in range(2):
                        with pytest.raises(Locked):
                            await store.check()
                await store.write(added, row(1))
                assert await stored(store) == [row(1).id]

        asyncio.run(run())

    def test_a_replica_is_no_place_to_write(self, postgresql_server: Server) -> None:
        url = postgresql_server.new_database()
        name = sa.make_url(url).database
        postgresql_server.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        with pytest.raises(ServerError, match="read-only"):
            asyncio.run(Store(url).open())

    def test_a_database_that_becomes_a_replica_is_away(self, postgresql_server: Server) -> None:
        url = postgresql_server.new_database()
        name = sa.make_url(url).database

        async def run() -> None:
            async with opened(url) as store:
                postgresql_server.run(
                    f"ALTER DATABASE {name} SET default_transaction_read_only = on"
                )
                await store.read(lambda connection: connection.execute(text(END_OTHERS)))
                for _ in range(3):  # the first one finds its session ended
                    with pytest.raises(StoreUnavailable):
                        await store.write(added, row(1))
                postgresql_server.run(
                    f"ALTER DATABASE {name} SET default_transaction_read_only = off"
                )
                await store.write(added, row(1))
                assert await stored(store) == [row(1).id]

        asyncio.run(run())

    def test_who_takes_over_waits_for_a_transaction_and_sees_it(
        self, postgresql_server: Server
    ) -> None:
        async def run() -> None:
            url = postgresql_server.new_database()
            async with opened(url) as first:
                begun, ends = threading.Event(), threading.Event()

                def slow(connection: Connection) -> None:
                    added(connection, row(1))
                    let_go(connection)
                    begun.set()
                    ends.wait(30)

                writing = asyncio.ensure_future(first.write(slow))
                await asyncio.to_thread(begun.wait, 30)
                second = Store(url)
                opening = asyncio.ensure_future(second.open())
                await asyncio.wait([opening], timeout=0.3)
                assert not opening.done()
                ends.set()
                await asyncio.gather(writing, opening)
                assert await stored(second) == [row(1).id]
                await second.close()

        asyncio.run(run())

    @settings(max_examples=examples(15), deadline=None)
    @given(actions=ACTIONS)
    def test_no_write_of_an_older_server_is_kept(
        self, postgresql_server: Server, actions: list[Action]
    ) -> None:
        asyncio.run(check_writes(actions, postgresql_server.new_database(), let_go))


@settings(max_examples=examples(30), deadline=None)
@given(actions=ACTIONS)
def test_no_write_of_an_older_server_is_kept_in_sqlite(actions: list[Action]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_writes(actions, f"sqlite:///{folder}/test.db", lambda _: None))


async def check_writes(actions: list[Action], url: str, lose: Callable[[Connection], None]) -> None:
    """Let servers open the database, write and lose the lock: only writes of the newest
    one are there at the end.
    """
    newest, servers, kept = -1, dict[int, Store](), list[str]()
    async with AsyncExitStack() as stack:
        for number, (action, name) in enumerate([("open", 0), *actions, ("write", newest)]):
            store = servers.get(name)
            if action == "open" and store is None:
                try:
                    servers[name] = await stack.enter_async_context(opened(url))
                    newest = name
                except ServerError:  # the newest one has the lock
                    pass
            elif store is not None:
                try:
                    if "write" in action:
                        await store.write(added, row(number))
                        kept.append(row(number).id)
                        assert name == newest
                    if "lose" in action:
                        await store.write(lose)
                except StoreUnavailable:
                    assert name != newest
        assert await stored(servers[newest]) == kept


# --- the files that the rows refer to


@pytest.fixture
def log_in(tmp_path: Path) -> Iterator[Callable[[str], RequestLog]]:
    """The request log of the data directory of that name."""
    made: list[RequestLog] = []

    def open_log(name: str) -> RequestLog:
        log = RequestLog(tmp_path / name / "submissions")
        (tmp_path / name).mkdir(exist_ok=True)
        log.open()
        made.append(log)
        return log

    yield open_log
    for log in made:
        log.close()


def test_a_database_is_refused_with_another_data_directory(
    url: str, log_in: Callable[[str], RequestLog], tmp_path: Path
) -> None:
    async def jobs(name: str) -> list[str]:
        async with opened(url, log_in(name)) as store:
            return await stored(store)

    async def run() -> str:
        async with opened(url, log_in("ours")) as store:
            await store.add_job(new_job())
        with pytest.raises(ServerError, match="belongs to another data directory") as caught:
            await jobs("other")
        return str(caught.value.hint)

    hint = asyncio.run(run())
    (tmp_path / "ours").rename(tmp_path / "moved")
    assert asyncio.run(jobs("moved")) == [row(1).id]
    data_id, file = hint.partition("write ")[2].split(" into ")
    Path(file).write_text(data_id)
    assert asyncio.run(jobs("other")) == [row(1).id]


def test_a_database_of_an_earlier_version_is_tied_to_the_folder_with_its_requests(
    url: str, log_in: Callable[[str], RequestLog], tmp_path: Path
) -> None:
    async def run() -> None:
        async with opened(url, log_in("ours")) as store:
            await store.add_job(new_job())
            await store.write(
                lambda c: c.execute(text("UPDATE server SET data_id = NULL")) and None
            )
        (tmp_path / "ours" / "submissions" / "id").unlink()
        with pytest.raises(ServerError, match="belongs to another data directory"):
            await Store(url, log_in("new")).open()
        for _ in range(2):
            async with opened(url, log_in("ours")) as store:
                assert await stored(store) == [row(1).id]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("no url with pa55word", "database_url: it is no SQLAlchemy URL"),
        ("mysql://ann:pa55word@db/jobs", "database_url: the server keeps no data in 'mysql'"),
        ("postgresql+no_such://ann:pa55word@db/jobs", "database_url: it is no SQLAlchemy URL"),
        (
            "postgresql+pg8000://ann:pa55word@db/jobs",
            "database_url: the driver of postgresql+pg8000 is not installed: No module named",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_a_sentence_without_the_password(
    url: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        engines.check_url(url)
    assert refused.value.message.startswith(said)
    assert "postgresql+psycopg://" in (refused.value.hint or "")
    assert "pa55word" not in str(refused.value)
