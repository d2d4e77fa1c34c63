"""A row that can't be read is the failure of its own job: the server starts,
and the other jobs go on.
"""

import asyncio
import json
import sqlite3
import tempfile
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from client_lib.errors import NotFound
from client_lib.spec.request import GroupMember, GroupRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobPage
from server_stub.service import JobFilters
from server_stub.store import rows
from server_stub.store.tables import events, jobs
from tests.kit.examples import examples
from tests.service.bench import ANN, Bench

STATES = (State.PENDING, State.RUNNING, State.SUCCEEDED)
COLUMNS = [column.name for column in jobs.columns if column.name != "seq"]
BOUNDED = settings(
    max_examples=examples(12),  # of six or more damages each
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
damages = st.sampled_from(
    [
        "",
        "SUSPENDED",
        "{",
        "null",
        '{"name": 1}',
        "a/../b",
        "x" * 5000,
        b"\xff\xfe",
        b"{\xff}",
        -1,
        0,
        7,
        2**62,
        1e300,
    ]
)
DAMAGES = st.tuples(st.sampled_from(STATES), st.sampled_from(COLUMNS), damages)


def damage(folder: Path, table: str, column: str, value: object, name: str) -> None:
    """Write what no server writes; a column keeps its NOT NULL."""
    if isinstance(value, bytes):
        value = sqlite3.Binary(value) if column != "info" else value
    owner = "job_seq = (SELECT seq FROM jobs WHERE name = ?)" if table == "events" else "name = ?"
    with closing(sqlite3.connect(folder / "state" / "data" / "client_lib.db")) as connection:
        cast = "CAST(? AS TEXT)" if isinstance(value, bytes) else "?"
        connection.execute(f'UPDATE {table} SET "{column}" = {cast} WHERE {owner}', (value, name))
        connection.commit()


async def listed(bench: Bench) -> dict[str, Any]:
    page = JobPage.model_validate_json(await bench.service.page(ANN, JobFilters(), 100, None))
    return {job.name: job for job in page.jobs}


async def in_state(bench: Bench, name: str, state: State) -> None:
    job = await bench.submit(name=name)
    if state is not State.PENDING:
        bench.runtime.runs(job.id)
        await bench.until(name, State.RUNNING)
    if state.final:
        bench.runtime.end(job.id)
        await bench.until(name, state)


@BOUNDED
@given(
    st.lists(
        st.tuples(st.sampled_from(STATES), st.sampled_from(COLUMNS), damages),
        min_size=6,
        unique_by=itemgetter(1),
    )
)
@example(
    [
        (State.RUNNING, "info", "{"),
        (State.RUNNING, "stop", "{"),
        (State.SUCCEEDED, "finished_at", 2**62),
    ]
)
@example(
    [
        (State.SUCCEEDED, "info", "{"),
        (State.RUNNING, "state", "SUSPENDED"),
        (State.RUNNING, "length", 2**62),
    ]
)
@example([(State.SUCCEEDED, "info", b"{\xff}"), (State.PENDING, "created_at", 2**62)])
@example(
    [
        (State.PENDING, "id", b"{\xff}"),
        (State.PENDING, "owner", b"\xff"),
        (State.PENDING, "name", b"\xff"),
    ]
)
def test_damaged_rows_harm_no_other_job(damaged: list[tuple[State, str, object]]) -> None:
    async def run() -> None:
        async with bench.server():
            for number, (state, _, _) in enumerate(damaged):
                await in_state(bench, f"damaged-{number}", state)
            await in_state(bench, "whole", State.RUNNING)
        for number, (_, column, value) in enumerate(damaged):
            damage(bench.folder, "jobs", column, value, f"damaged-{number}")
        async with bench.server() as service:
            whole = await bench.info("whole")
            assert whole.state is State.RUNNING
            assert (await listed(bench))["whole"] == whole
            assert len(await service.lookup.counts()) >= 1
            await service._cleanup.sweep()
            await bench.submit(name="later")
            bench.runtime.end(whole.id)
            await bench.until("whole", State.SUCCEEDED)
            # a size that is damaged may exceed the room for jobs that have ended
            any_end = any(column == "size_bytes" for _, column, _ in damaged)
            for number, (state, column, _) in enumerate(damaged):
                try:
                    await bench.info(f"damaged-{number}")
                except NotFound:
                    assert column in ("owner", "name") or state.final or any_end, (
                        "retention may remove what ended long ago"
                    )

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        asyncio.run(run())


@pytest.mark.parametrize(
    ("column", "value"),
    [("info", "{"), ("state", "SUSPENDED"), ("stop", '{"reason": "Later"}'), ("created_at", 2**62)],
)
def test_a_job_whose_row_can_not_be_read_is_stopped_and_failed(
    bench: Bench, column: str, value: object
) -> None:
    async def run() -> None:
        async with bench.server():
            await in_state(bench, "damaged", State.RUNNING)
        damage(bench.folder, "jobs", column, value, "damaged")
        async with bench.server():
            failed = await bench.until("damaged", State.FAILED)
            assert failed.reason is Reason.SERVER_ERROR
            assert "its record in the database can't be read" in failed.message
            assert [stopped[0] for stopped in bench.runtime.stopped] == [failed.id], (
                "its processes are ended"
            )
        async with bench.server():
            assert (await bench.info("damaged")).state is State.FAILED

    asyncio.run(run())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("length", -1),
        ("length", 10**5),
        ("length", 2**62),
        ("offset", -1),
        ("offset", 2**63 - 1),
        ("offset", "x"),
    ],
)
def test_a_job_whose_place_in_the_requests_is_wrong_is_deleted_alone(
    bench: Bench, column: str, value: object
) -> None:
    async def run() -> None:
        async with bench.server():
            await in_state(bench, "damaged", State.SUCCEEDED)
            await in_state(bench, "whole", State.SUCCEEDED)
        damage(bench.folder, "jobs", column, value, "damaged")
        async with bench.server() as service:
            before = await service.request(ANN, "whole")
            await service.delete(ANN, "damaged")
            assert await service.request(ANN, "whole") == before
        async with bench.server() as service:
            assert set(await listed(bench)) == {"whole"}
            assert await service._store.read(rows.pending_removals) == {}

    asyncio.run(run())


def test_a_search_and_the_outputs_need_nothing_that_is_damaged(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            for name in ("info", "length", "whole"):
                await in_state(bench, name, State.SUCCEEDED)
        damage(bench.folder, "jobs", "info", "{", "info")
        damage(bench.folder, "jobs", "length", 3, "length")
        async with bench.server() as service:
            count, _ = await service.lookup.search(
                ANN, JobFilters(fields=[("region", "x", True)]), 10, 0
            )
            assert count == 3
            assert (await service.outputs(ANN, "length")).files == []

    asyncio.run(run())


@pytest.mark.parametrize("value", ["{", "null", b"\xff", 7])
def test_a_group_whose_row_can_not_be_read_goes_on_and_harms_no_other(
    bench: Bench, value: object
) -> None:
    async def run() -> None:
        members = [GroupMember(args=[])] * 2
        async with bench.server() as service:
            for name in ("damaged", "whole"):
                order = GroupRequest(name=name, request=bench.request(), members=members)
                await service.submits.submit_group(ANN, order, None)
        damage(bench.folder, "groups", "info", value, "damaged")
        async with bench.server() as service:
            page = JobPage.model_validate_json(
                await service.page(ANN, JobFilters(group=""), 100, None)
            )
            assert {group.name: group.script == "unreadable" for group in page.groups} == {
                "damaged": True,
                "whole": False,
            }
            for name in ("damaged", "whole"):
                await service.cancel_group(ANN, name)
                await bench.until(f"{name}-1", State.CANCELLED)

    asyncio.run(run())


def test_a_job_that_had_ended_is_shown_without_what_is_damaged(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            await in_state(bench, "damaged", State.SUCCEEDED)
        damage(bench.folder, "jobs", "info", json.dumps({"name": "damaged", "state": 5}), "damaged")
        async with bench.server():
            shown = await bench.info("damaged")
            assert (shown.state, shown.reason) == (State.SUCCEEDED, Reason.SERVER_ERROR)
            assert "can't be read" in shown.message
            assert (await listed(bench))["damaged"] == shown

    asyncio.run(run())


@pytest.mark.parametrize(
    "column", [column.name for column in events.columns if column.name not in ("id", "job_seq")]
)
@pytest.mark.parametrize("value", ["Later", -1, 2**62])
def test_a_damaged_event_hides_no_other(bench: Bench, column: str, value: object) -> None:
    async def run() -> None:
        async with bench.server():
            await in_state(bench, "damaged", State.RUNNING)
        damage(bench.folder, "events", column, value, "damaged")
        async with bench.server():
            assert (await bench.events("damaged"))[0] == ("PENDING", "Queued", 1)

    asyncio.run(run())
