"""Groups in the service: what a client that goes away leaves, and how long their
submits hold the event loop.
"""

import asyncio
import json
import sqlite3
from itertools import pairwise

from client_lib.spec.request import GroupMember, GroupRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import GroupInfo
from server_stub.service.gate import Gate
from server_stub.service.stored import from_row
from server_stub.store import group_rows
from server_stub.store.group_rows import NewGroup
from server_stub.store.rows import JobFilters, NewJob
from tests.service.bench import ANN, Bench
from tests.store.test_store import T0, row


def order(bench: Bench, name: str, size: int, most: int | None = None) -> GroupRequest:
    members = [GroupMember(args=[str(number)]) for number in range(size)]
    return GroupRequest(name=name, request=bench.request(), members=members, max_parallel=most)


def test_a_client_that_goes_away_leaves_no_member_that_is_stored_and_never_started(
    bench: Bench,
) -> None:
    async def main() -> None:
        async with bench.server() as service:
            for turn in range(30):
                submit = asyncio.ensure_future(
                    service.submits.submit_group(ANN, order(bench, f"g{turn}", 10), None)
                )
                await asyncio.sleep(turn / 1000)
                submit.cancel()
                await asyncio.gather(submit, return_exceptions=True)
            await asyncio.sleep(0.3)
            names = {bench.runtime.attempts[job_id].job_name for job_id, _ in bench.runtime.started}
            stored = (await service.page(ANN, JobFilters(), 1000, None)).decode()
            found = {job["name"] for job in json.loads(stored)["jobs"]}
            assert names == found
            assert len(found) % 10 == 0
            assert found, "one was stored"

    asyncio.run(main())


def test_other_requests_get_their_turn_between_the_starts_of_members(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            submit = asyncio.ensure_future(
                service.submits.submit_group(ANN, order(bench, "large", 300), None)
            )
            started = [0]
            while not submit.done() or started[-1] < 300:
                await asyncio.sleep(0)
                started.append(len(bench.runtime.started))
            assert max(after - before for before, after in pairwise(started)) <= 100

    asyncio.run(main())


def test_a_server_that_was_killed_after_a_failure_was_stored_stops_the_others(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            await service.submits.submit_group(ANN, order(bench, "scan", 4, most=1), None)
            first = (await bench.info("scan-0")).id
            bench.runtime.end(first, Reason.EXIT_CODE, "exit code 1")
            await bench.until("scan-0", State.FAILED)
            bench.runtime.runs((await bench.info("scan-1")).id)
            await bench.until("scan-1", State.RUNNING)
        with sqlite3.connect(
            bench.settings().data_dir / "client_lib.db"
        ) as database:  # as if it had been asked for
            database.execute(
                "UPDATE groups SET info = json_set(info, '$.stop_on_failure', json('true'))"
            )
        async with bench.server():
            for number in (1, 2, 3):
                info = await bench.until(f"scan-{number}", State.CANCELLED)
                assert (
                    info.message
                    == "scan-0 failed, and the group scan stops on a failure (stop_on_failure)"
                )
            assert len(bench.runtime.started) == 2, "those that waited for their turn never started"

    asyncio.run(main())


def test_a_resubmit_that_was_never_accepted_leaves_the_group_as_it_was(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            await service.submits.submit_group(ANN, order(bench, "scan", 2), None)
            for name in ("scan-0", "scan-1"):
                bench.runtime.end((await bench.info(name)).id)
                await bench.until(name, State.SUCCEEDED)
            store = service._store
            group = await service.lookup.group(ANN, "scan", None)
            before = await store.read_all(group_rows.members, group.id)
            new = NewGroup(group, [NewJob(row(7, group_id=group.id), {}, None, b"x")], before)
            await store.add_group(new)
            assert [job.id for job in await store.read_all(group_rows.members, group.id)] == [
                new.members[0].row.id
            ]
            await store.write(group_rows.discard, new)
            after = await store.read_all(group_rows.members, group.id)
            assert [job.id for job in after] == [job.id for job in before]
            assert (await service.lookup.group(ANN, "scan", None)).counts == {"SUCCEEDED": 2}

    asyncio.run(main())


def test_the_gate_forgets_a_group_whose_stopped_members_leave_after_the_running_one() -> None:
    gate = Gate({})
    gate.open(
        [
            GroupInfo(
                name="g", id="1", owner="ann", script="x", size=3, max_parallel=1, created_at=T0
            )
        ]
    )
    # it stops those that it can't read
    jobs = [from_row(row(number, group_id="1")) for number in range(3)]
    for job in jobs:
        gate.holds(job)
    assert [gate.leave(job) for job in jobs] == [None, None, None]
    assert gate._groups == {}
