"""The store's promises, on SQLite and on PostgreSQL."""

import asyncio
import errno
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event as sqlalchemy_event, text
from sqlalchemy.exc import OperationalError

from client_lib.errors import ServerError, StorageFull
from client_lib.spec.states import IllegalTransition, Reason, State
from client_lib.spec.wire import Event
from server_stub.files import request_log
from server_stub.files.request_log import UNWRITTEN, Place, RequestLog
from server_stub.store import Store, StoreError, group_rows, rows
from server_stub.store.rows import Added, JobFilters, JobRow, Key, NewJob
from tests.store.postgresql import Server

T0 = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=timezone.utc)


@asynccontextmanager
async def opened(url: str, log: RequestLog | None = None) -> AsyncIterator[Store]:
    store = Store(url, log)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def row(number: int = 1, owner: str = "ann", **fields: object) -> JobRow:
    values = {
        "id": f"{number:032x}",
        "owner": owner,
        "name": f"job-{number}",
        "state": State.PENDING,
        "version": 1,
        "attempt": 1,
        "created_at": T0,
        "info": f'{{"n":{number}}}',
        "place": Place(1, 10 * number, 10),
    }
    return JobRow(**{**values, **fields})  # type: ignore[arg-type]


def event(state: State, reason: Reason = Reason.QUEUED) -> Event:
    return Event(time=T0, attempt=1, state=state, reason=reason, message="")


def add(
    connection: Connection,
    new: JobRow,
    labels: dict[str, str] | None = None,
    key: Key | None = None,
) -> Added:
    return rows.add_jobs(connection, [NewJob(new, labels or {}, key)])[0]


def added(
    connection: Connection,
    new: JobRow,
    labels: dict[str, str] | None = None,
    key: Key | None = None,
) -> int:
    done = add(connection, new, labels, key)
    assert done.seq is not None
    return done.seq


def test_a_stored_job_comes_back_as_it_was(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            new = row(
                stop='{"a": 1}', resume_at=T0 + timedelta(microseconds=1), script_path="/x.py"
            )
            seq = await store.write(added, new)
            assert await store.read(rows.unfinished) == [new._replace(seq=seq)]
            found = await store.read(rows.find, "ann", "job-1")
            assert found is not None
            assert (found.seq, found.id, found.state, found.info) == (
                seq,
                new.id,
                State.PENDING,
                new.info,
            )
            assert await store.read(rows.find, "ben", "job-1") is None

    asyncio.run(run())


@pytest.mark.smoke
def test_a_reopened_store_has_what_was_written(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            await store.write(added, row())
        async with opened(url) as store:
            assert [job.name for job in await store.read(rows.unfinished)] == ["job-1"]

    asyncio.run(run())


def test_a_name_is_taken_once_per_owner_and_a_refused_job_leaves_its_key_free(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            await store.write(added, row(1))
            await store.write(added, row(2, owner="ben", name="job-1"))
            key = Key("ann", "k", "f" * 64)
            again = await store.write(add, row(3, name="job-1"), key=key)
            assert again.seq is None
            assert again.same_name
            assert await store.read(rows.key_used, key) is None

    asyncio.run(run())


@pytest.mark.smoke
def test_a_key_stores_one_job(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            key = Key("ann", "k", "f" * 64)
            await store.write(added, row(1), key=key)
            again = await store.write(add, row(2), key=key)
            assert again.same_key == ("f" * 64, row(1).id)
            assert len(await store.read(rows.unfinished)) == 1
            await store.write(added, row(3, owner="ben"), key=Key("ben", "k", "e" * 64))

    asyncio.run(run())


def test_of_jobs_stored_together_those_with_a_taken_name_or_key_are_refused_alone(url: str) -> None:
    async def run() -> None:
        def new(number: int, key: str, **fields: object) -> NewJob:
            return NewJob(row(number, **fields), {"n": str(number)}, Key("ann", key, "f" * 64))  # type: ignore[arg-type]

        async with opened(url) as store:
            orders = [new(1, "a"), new(2, "b", name="job-1"), new(3, "a"), new(4, "d")]
            many = await store.write(rows.add_jobs, orders)
            stored = await store.read(rows.unfinished)
            assert [job.name for job in stored] == ["job-1", "job-4"]
            assert [done.seq for done in many] == [stored[0].seq, None, None, stored[1].seq]
            assert [bool(done.same_name) for done in many] == [False, True, False, False]
            assert many[2].same_key == ("f" * 64, row(1).id)
            assert await store.read(rows.key_used, Key("ann", "b", "f" * 64)) is None
            page = await store.read(rows.page, JobFilters(("ann",), labels={"n": "4"}), 10)
            assert [job.seq for job in page] == [stored[1].seq]
            assert len(await store.read(rows.list_events, stored[1].seq)) == 1

    asyncio.run(run())


def test_items_of_one_group_come_to_their_function_together(url: str) -> None:
    def numbered(connection: Connection, items: Sequence[str]) -> list[str]:
        return [f"{item} of {len(items)}" for item in items]

    async def run() -> None:
        async with opened(url) as store:
            holding = threading.Event()
            blocked = asyncio.ensure_future(store.write(lambda c: holding.wait(10)))
            await asyncio.sleep(0.05)  # the rest queues up behind it: one group
            others = [
                asyncio.ensure_future(store._writer.write_together(numbered, item))
                for item in ("a", "b", "c")
            ]
            await asyncio.sleep(0)
            holding.set()
            await blocked
            assert await asyncio.gather(*others) == ["a of 3", "b of 3", "c of 3"]

    asyncio.run(run())


def plan_of_find_anywhere(connection: Connection) -> list[Any]:
    ran: list[Any] = []
    sqlalchemy_event.listen(
        connection, "before_cursor_execute", lambda _c, _cursor, *call: ran.append(call)
    )
    rows.find_anywhere(connection, "job")
    statement, values, *_ = ran[0]
    return list(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values))


def test_who_has_a_job_of_a_name_is_found_by_index(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            for number, owner in enumerate(("ann", "ben", "cyd", "dan")):
                name = "job" if owner in ("ben", "dan") else "other"
                await store.write(added, row(number, owner=owner, name=name))
            for name, owners in (("job", ["ben", "dan"]), ("none", [])):
                found = await store.read(rows.find_anywhere, name)
                assert sorted(found) == owners
            if url.startswith("sqlite"):
                plan = await store.read(plan_of_find_anywhere)
                assert not [step for *_, step in plan if step.startswith("SCAN jobs")]

    asyncio.run(run())


def test_more_rows_than_one_statement_takes_are_stored(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            labels = {f"key-{number}": "x" for number in range(193)}
            seq = await store.write(added, row(), labels)
            counted = await store.read(
                lambda c: c.exec_driver_sql("SELECT count(*) FROM labels").scalar()
            )
            assert counted == len(labels)
            found = await store.read(rows.page, JobFilters(("ann",), labels={"key-150": "x"}), 10)
            assert [(job.seq, job.info) for job in found] == [(seq, row().info)]

    asyncio.run(run())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sqlite3 can't set limits")
def test_more_lost_jobs_than_one_statement_takes_are_stored(tmp_path: Path) -> None:
    def add_lost(connection: Connection) -> int:
        sqlite: Any = connection.connection.driver_connection
        # SQLITE_LIMIT_VARIABLE_NUMBER, which is 32766 unless a distribution changes it
        sqlite.setlimit(9, 5000)
        return group_rows.add_lost(
            connection, [NewJob(row(number), {}, None) for number in range(1, 4001)], []
        )

    async def run() -> None:
        async with opened(f"sqlite:///{tmp_path}/test.db") as store:
            assert await store.write(add_lost) == 4000

    asyncio.run(run())


def test_an_illegal_transition_is_not_stored(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            new = row()
            stored = new._replace(seq=await store.write(added, new))
            at_once = stored._replace(state=State.SUCCEEDED, version=2)
            for events in ([], [event(State.SUCCEEDED)]):
                with pytest.raises(IllegalTransition):
                    await store.write(rows.save_job, at_once, events)
            steps = [event(State.RUNNING), event(State.SUCCEEDED)]
            await store.write(rows.save_job, at_once, steps)
            revived = at_once._replace(state=State.RUNNING, version=3)
            with pytest.raises(IllegalTransition):
                await store.write(rows.save_job, revived, [event(State.RUNNING)])
            told = await store.read(rows.list_events, stored.seq)
            assert [e.state for e in told] == [State.PENDING, State.RUNNING, State.SUCCEEDED]

    asyncio.run(run())


def test_the_same_version_is_stored_once(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            stored = row()._replace(seq=await store.write(added, row()))
            running = stored._replace(state=State.RUNNING, version=2)
            for _ in range(2):
                await store.write(rows.save_job, running, [event(State.RUNNING)])
            assert len(await store.read(rows.list_events, stored.seq)) == 2

    asyncio.run(run())


def test_pages_seek_by_filters_newest_first(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            for number in range(1, 8):
                owner = "ben" if number == 4 else "ann"
                labels = {"team": "a_b%"} if number in (2, 4, 6) else {}
                new = row(number, owner=owner, name="other" if number == 7 else f"job-{number}")
                await store.write(added, new, labels)

            async def page(
                owner: str | None = "ann",
                state: State | None = None,
                labels: dict[str, str] | None = None,
                prefix: str | None = None,
                before: int | None = None,
            ) -> list[str]:
                owners = None if owner is None else (owner,)
                states = None if state is None else (state,)
                found = await store.read(
                    rows.page, JobFilters(owners, states, labels or {}, prefix), 2, before
                )
                seqs.extend(job.seq for job in found)
                return [job.info[5:-1] for job in found]

            seqs: list[int] = []
            assert await page() == ["7", "6"]
            assert await page(before=seqs[-1]) == ["5", "3"]
            assert await page(before=seqs[-1]) == ["2", "1"]
            assert await page(labels={"team": "a_b%"}) == ["6", "2"]
            assert await page(labels={"team": "a_b%", "no": ""}) == []
            assert await page(None, labels={"team": "a_b%"}) == ["6", "4"]
            assert await page(prefix="job-") == ["6", "5"]
            assert await page(prefix="job_") == []
            assert await page(state=State.FAILED) == []

    asyncio.run(run())


def test_a_removed_job_takes_its_events_and_leaves_its_files_to_remove(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            stored = row()._replace(seq=await store.write(added, row(), {"a": "b"}))
            with pytest.raises(IllegalTransition):
                await store.write(rows.remove, [stored.seq])
            failed = stored._replace(state=State.FAILED, version=2, finished_at=T0)
            await store.write(rows.save_job, failed, [event(State.FAILED)])
            await store.write(rows.remove, [stored.seq])
            for table in ("jobs", "events", "labels"):
                count = text(f"SELECT count(*) FROM {table}")
                assert await store.read(lambda c, count=count: c.execute(count).scalar()) == 0
            assert await store.read(rows.pending_removals) == {stored.id: Place(1, 10, 10)}
            await store.write(rows.forget_removals, [stored.id])
            assert await store.read(rows.pending_removals) == {}

    asyncio.run(run())


def test_one_failing_write_of_a_group_fails_alone(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            holding = threading.Event()
            blocked = asyncio.ensure_future(store.write(lambda c: holding.wait(10)))
            await asyncio.sleep(0.05)  # the rest queues up behind it: one group

            def fails(connection: Connection) -> int:
                raise ValueError("mine")

            others = [asyncio.ensure_future(store.write(added, row(n))) for n in (1, 2)]
            failing = asyncio.ensure_future(store.write(fails))
            others.append(asyncio.ensure_future(store.write(added, row(3))))
            await asyncio.sleep(0)
            holding.set()
            with pytest.raises(ValueError, match="mine"):
                await failing
            await asyncio.gather(blocked, *others)
            assert len(await store.read(rows.unfinished)) == 3

    asyncio.run(run())


def test_a_write_whose_caller_went_away_is_written(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            writing = asyncio.ensure_future(store.write(added, row()))
            await asyncio.sleep(0)
            writing.cancel()
            await store.write(lambda c: None)
            assert len(await store.read(rows.unfinished)) == 1

    asyncio.run(run())


def test_readers_can_not_write(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            with pytest.raises(StoreError):
                await store.read(added, row())

    asyncio.run(run())


def test_counts_and_names(url: str) -> None:
    async def run() -> None:
        async with opened(url) as store:
            for number in (1, 2):
                await store.write(added, row(number))
            assert await store.read(rows.counts) == {State.PENDING: 2}
            assert await store.read(rows.names, "ann", 1) == ["job-2"]
            assert await store.read(rows.find_anywhere, "job-1") == ["ann"]

    asyncio.run(run())


def test_a_full_database_says_so_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(f"sqlite:///{tmp_path}/test.db") as store:
            await store.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 40") and None)
            with pytest.raises(StorageFull):
                await store.write(added, row(1, info="x" * 400_000))
            await store.write(
                lambda c: c.exec_driver_sql("PRAGMA max_page_count = 100000") and None
            )
            await store.write(added, row(1, info="x" * 400_000))

    asyncio.run(run())


def test_a_read_that_finds_no_room_raises_what_reads_raise(tmp_path: Path) -> None:
    def read(connection: Connection) -> None:
        raise OperationalError("SELECT", None, Exception("database or disk is full"))

    async def run() -> None:
        async with opened(f"sqlite:///{tmp_path}/test.db") as store:
            with pytest.raises(StoreError):
                await store.read(read)

    asyncio.run(run())


def test_a_second_server_on_one_postgresql_database_is_refused(postgresql_server: Server) -> None:
    async def run() -> None:
        url = postgresql_server.new_database()
        async with opened(url):
            with pytest.raises(ServerError, match="another server runs"):
                await Store(url).open()
        async with opened(url):
            pass

    asyncio.run(run())


def test_a_database_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    async def run(url: str, says: str) -> None:
        with pytest.raises(ServerError, match=says):
            await Store(url).open()

    asyncio.run(run(f"sqlite:///{tmp_path}/missing/test.db", "unable to open"))
    (tmp_path / "text.db").write_text(
        "this is no database, it is a text that is long enough to be looked at" * 20
    )
    asyncio.run(run(f"sqlite:///{tmp_path}/text.db", "not a database"))
    asyncio.run(run("postgresql+psycopg://nobody:hidden@127.0.0.1:1/x", "can't be opened"))
    with pytest.raises(ServerError) as caught:
        asyncio.run(Store("postgresql+psycopg://nobody:hidden@127.0.0.1:1/x").open())
    assert "hidden" not in str(caught.value)


def test_sqlite_is_durable_at_each_commit(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(f"sqlite:///{tmp_path}/test.db") as store:
            pragmas = ("journal_mode", "synchronous", "foreign_keys")

            def settings(connection: Connection) -> list[object]:
                return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas]

            assert await store.write(settings) == ["wal", 2, 1]
        assert sqlite3.connect(tmp_path / "test.db").execute(
            "PRAGMA integrity_check"
        ).fetchone() == ("ok",)

    asyncio.run(run())


@contextmanager
def failing_disk() -> Iterator[None]:
    """Let fdatasync fail as on a broken disk."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.MonkeyPatch.context() as patch:
        # no test can have a broken disk
        patch.setattr(request_log, "_flush", fail)
        yield


def test_a_job_whose_request_could_not_be_synced_is_not_accepted(url: str, tmp_path: Path) -> None:
    async def run() -> None:
        log = RequestLog(tmp_path / "submissions")
        log.open()
        async with opened(url, log) as store:
            key = Key("ann", "k", "f" * 64)
            with failing_disk():
                refused, beside = await asyncio.gather(
                    store.add_job(NewJob(row(1, place=UNWRITTEN), {}, key, b"one\n")),
                    store.write(added, row(2)),
                    return_exceptions=True,
                )
            assert "Input/output error" in str(refused)
            assert [job.id for job in await store.read(rows.unfinished)] == [row(2).id], beside
            again = NewJob(row(1, place=UNWRITTEN), {}, key, b"one\n")
            assert (await store.add_job(again)).seq is not None
            assert log.read(again.row.place) == b"one\n"
        log.close()

    asyncio.run(run())
