"""Jobs that wait for others (`after`)."""

import asyncio
import time
from typing import Any

import pytest
from pydantic import ValidationError

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec.job import JobSpec, split_dependency
from client_lib.spec.request import Dependency, GroupMember, GroupRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, JobInfo
from server_stub.service import Service, lifecycle
from server_stub.service.lifecycle import DELETED
from server_stub.store import rows
from server_stub.users import User
from tests.service.bench import ANN, Bench, status
from tests.store.test_store import T0

BOB = User("bob", admin=True)


async def ended(bench: Bench, name: str, state: State, **spec: Any) -> JobInfo:
    job = await bench.submit(name=name, **spec)
    reason = {State.SUCCEEDED: Reason.COMPLETED, State.FAILED: Reason.EXIT_CODE}
    if state is State.CANCELLED:
        await bench.service.cancel(ANN, name)
    else:
        bench.runtime.end(job.id, reason[state])
    return await bench.until(name, state)


async def group(bench: Bench, name: str, size: int, **spec: Any) -> None:
    members = [GroupMember(args=[]) for _ in range(size)]
    order = GroupRequest(name=name, request=bench.request(**spec), members=members)
    await bench.service.submits.submit_group(ANN, order, None)


def has_started(bench: Bench, job: JobInfo) -> bool:
    return (job.id, 1) in bench.runtime.started


# --- the pure part


@pytest.mark.parametrize(
    ("entry", "starts_after"),
    [
        ("a", {State.SUCCEEDED}),
        ("ok:a", {State.SUCCEEDED}),
        ("failed:a", {State.FAILED}),
        ("any:a", {State.SUCCEEDED, State.FAILED, State.CANCELLED, DELETED}),
    ],
)
def test_an_end_meets_the_condition_or_fails_the_job(entry: str, starts_after: set[State]) -> None:
    condition, name = split_dependency(entry)
    waiting = status(dependencies=[Dependency(name=name, id="1", condition=condition)])
    for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED, DELETED):
        decision = lifecycle.note_dependency(waiting, "1", state, T0)
        assert decision is not None
        assert decision.status.info.dependencies[0].ended == state
        assert decision.status.info.state is (
            State.PENDING if state in starts_after else State.FAILED
        )
        if state not in starts_after:
            assert decision.status.info.reason is Reason.DEPENDENCY_FAILED
            assert decision.status.info.message.startswith(f"a is {state}, and ")


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (["okay:x"], "'okay' is no condition; write NAME, ok:NAME, failed:NAME or any:NAME"),
        ([":x"], "'' is no condition"),
        ([""], "'' is not a DNS label"),
        (["ok:"], "'' is not a DNS label"),
        (["Train.py"], "'Train.py' is not a DNS label"),
        (["a", "failed:a"], "names a more than once"),
        ([f"a{number}" for number in range(1001)], "at most 1000"),
        ("a", "list"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_way_out(after: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        JobSpec(script="train.py", after=after)


# --- in the service


def test_a_job_waits_without_the_runtime_and_starts_when_the_other_has_succeeded(
    bench: Bench,
) -> None:
    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            second = await bench.submit(name="second", after=["first"])
            await bench.submit(name="rescue", after=["failed:first", "any:second"])
            await bench.until_info(
                "second", lambda info: info.message == "waits for first (PENDING) to succeed"
            )
            both = "waits for first (PENDING) to fail, second (PENDING) to end"
            await bench.until_info("rescue", lambda info: info.message == both)
            bench.runtime.runs(first.id)
            await bench.until_info(
                "second", lambda info: info.message == "waits for first (RUNNING) to succeed"
            )
            assert not has_started(bench, second)
            bench.runtime.end(first.id)
            await bench.until_info(
                "second", lambda info: info.message == "" and has_started(bench, second)
            )
            bench.runtime.runs(second.id)
            done = await bench.until("second", State.RUNNING)
            assert [(each.name, each.id, each.ended) for each in done.dependencies] == [
                ("first", first.id, State.SUCCEEDED)
            ]

    asyncio.run(main())


def test_of_a_chain_each_job_fails_at_once_and_names_the_one_before_it(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            for name, after in {
                "b": "first",
                "c": "b",
                "rescue": "failed:b",
                "report": "any:c",
            }.items():
                await bench.submit(name=name, after=[after])
            bench.runtime.end(first.id, Reason.EXIT_CODE)
            for name, before in {"b": "first", "c": "b"}.items():
                info = await bench.until(name, State.FAILED)
                assert info.reason is Reason.DEPENDENCY_FAILED
                assert (
                    info.message
                    == f"{before} is FAILED, and this job starts only after that has succeeded"
                )
            started = {job.job_name for job in bench.runtime.attempts.values()}
            while not {"rescue", "report"} <= started:
                await asyncio.sleep(0.002)
                started = {job.job_name for job in bench.runtime.attempts.values()}
            assert started == {"first", "rescue", "report"}

    asyncio.run(main())


def test_what_has_ended_before_the_submit_decides_at_once(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            for name, state in {
                "good": State.SUCCEEDED,
                "bad": State.FAILED,
                "gone": State.CANCELLED,
            }.items():
                await ended(bench, name, state)
            for name, after in {"b": "bad", "c": "failed:gone", "d": "failed:good"}.items():
                await bench.submit(name=name, after=["any:bad", after] if name != "b" else [after])
                assert (await bench.until(name, State.FAILED)).reason is Reason.DEPENDENCY_FAILED
            last = await bench.submit(name="last", after=["good", "any:gone", "failed:bad"])
            await bench.until_info("last", lambda _: has_started(bench, last))

    asyncio.run(main())


def test_a_waiting_job_can_be_cancelled_and_its_place_is_forgotten(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            first = await bench.submit(name="first")
            second = await bench.submit(name="second", after=["first"])
            await service.cancel(ANN, "second")
            assert (await bench.until("second", State.CANCELLED)).message == "cancelled by ann"
            assert service._reconciler.gate._waiting == {}
            bench.runtime.end(first.id)
            await bench.until("first", State.SUCCEEDED)
            assert not has_started(bench, second)

    asyncio.run(main())


def test_names_that_can_not_be_waited_for_are_refused_and_nothing_is_stored(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            await bench.submit(name="train")
            with pytest.raises(InvalidRequest, match="after: self would wait for itself"):
                await bench.submit(name="self", after=["any:self"])
            with pytest.raises(InvalidRequest, match="after: scan would wait for itself"):
                await group(bench, "scan", 2, after=["scan"])
            with pytest.raises(NotFound, match="no job named trane") as refused:
                await bench.submit(name="b", after=["trane"])
            assert refused.value.hint == "did you mean train?"
            for user in (User("carl"), BOB):
                with pytest.raises(NotFound, match="no job named train"):
                    await bench.submit(user, name="c", after=["train"])
            assert sum((await service.lookup.counts()).values()) == 1

    asyncio.run(main())


def test_a_client_can_not_set_the_ids_that_a_job_waits_for(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            forged = Dependency(name="x", id="0" * 32, condition="ok")
            request = bench.request(name="free").model_copy(update={"dependencies": [forged]})
            await service.submits.submit(ANN, request, None)
            assert (await bench.info("free")).dependencies == []
            await bench.submit(name="second", after=["free"])
            assert b"dependencies" not in await service.request(ANN, "second"), (
                "a copy of it names jobs, not ids"
            )

    asyncio.run(main())


def test_a_group_is_waited_for_as_one_and_a_group_waits_as_one(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            await group(bench, "scan", 3)
            choose = await bench.submit(name="choose", after=["any:scan"])
            strict = await bench.submit(name="strict", after=["scan"])
            await group(bench, "more", 2, after=["choose"])
            members = [await bench.info(f"scan-{index}") for index in range(3)]
            for index, member in enumerate(members):
                await bench.until_info(member.name, lambda _, job=member: has_started(bench, job))
                assert not has_started(bench, choose)
                bench.runtime.end(member.id, Reason.COMPLETED if index else Reason.EXIT_CODE)
            await bench.until_info("choose", lambda _: has_started(bench, choose))
            assert "scan is FAILED" in (await bench.until("strict", State.FAILED)).message
            assert not has_started(bench, strict)
            bench.runtime.end(choose.id)
            for index in range(2):
                member = await bench.info(f"more-{index}")
                await bench.until_info(member.name, lambda _, job=member: has_started(bench, job))

    asyncio.run(main())


def test_checkpoints_of_a_job_that_still_writes_them_are_copied_after_its_end_alone(
    bench: Bench,
) -> None:
    async def main() -> None:
        async with bench.server() as service:
            first = await bench.submit(name="first")
            await bench.submit(name="elsewhere", checkpoint_dir="/data/mine")
            with pytest.raises(
                InvalidRequest, match="first has not ended, and still writes its checkpoints"
            ):
                await bench.submit(checkpoint_from="first")
            with pytest.raises(InvalidRequest, match="are in /data/mine, which is not copied"):
                await bench.submit(checkpoint_from="elsewhere", after=["elsewhere"])
            with pytest.raises(NotFound, match="no job named first"):
                await bench.submit(User("carl"), checkpoint_from="first")
            second = await bench.submit(name="second", checkpoint_from="first", after=["any:first"])
            bench.runtime.end(first.id)
            await bench.until_info("second", lambda _: has_started(bench, second))
            attempt = bench.runtime.attempts[second.id]
            assert attempt.checkpoints_name == "first"
            assert (
                attempt.checkpoints_from
                == service._settings.data_dir / "jobs" / first.id / "checkpoints"
            )

    asyncio.run(main())


# --- ends that this server did not see


def test_waiting_jobs_go_on_after_a_restart(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            first, done = await bench.submit(name="first"), await bench.submit(name="done")
            second = await bench.submit(name="second", after=["first", "done"])
            bench.runtime.end(done.id)
            await bench.until_info(
                "second", lambda info: info.message == "waits for first (PENDING) to succeed"
            )
            await bench.service.delete(ANN, "done")
        async with bench.server():
            assert (await bench.info("second")).message == "waits for first (PENDING) to succeed"
            bench.runtime.end(first.id)
            await bench.until_info("second", lambda _: has_started(bench, second))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("state", "after", "starts"),
    [
        (State.SUCCEEDED, "first", True),
        (State.FAILED, "first", False),
        (None, "first", False),
        (None, "any:first", True),
    ],
)
def test_an_end_that_a_dead_server_stored_for_the_first_job_alone_is_decided_by_the_next(
    bench: Bench, state: State | None, after: str, starts: bool
) -> None:
    """`state` None: it was deleted too."""

    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            second = await bench.submit(name="second", after=[after])
        service: Service = bench.new_service()
        await service._store.open()
        row = await service._store.read(rows.find, "ann", "first")
        assert row is not None
        info = first.model_copy(
            update={"state": state or State.FAILED, "version": 2, "finished_at": T0}
        )
        stored = row._replace(
            state=info.state, version=2, info=info.model_dump_json(), finished_at=T0
        )
        steps = [State.RUNNING, info.state] if info.state is State.SUCCEEDED else [info.state]
        events = [
            Event(time=T0, attempt=1, state=step, reason=Reason.COMPLETED, message="")
            for step in steps
        ]
        await service._store.write(rows.save_job, stored, events)
        if state is None:
            await service._store.write(rows.remove, [row.seq])
        await service._store.close()
        async with bench.server():
            if starts:
                await bench.until_info("second", lambda _: has_started(bench, second))
            else:
                assert (
                    await bench.until("second", State.FAILED)
                ).reason is Reason.DEPENDENCY_FAILED

    asyncio.run(main())


def test_a_lost_database_keeps_what_a_job_waits_for(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server() as service:
            first = await bench.submit(name="first")
            second = await bench.submit(name="second", after=["first"])
            data = service._settings.data_dir
        for file in data.glob("*.db*"):
            file.unlink()
        async with bench.recovered():
            assert (await bench.info("second")).message == "waits for first (PENDING) to succeed"
            bench.runtime.end(first.id)
            await bench.until_info("second", lambda _: has_started(bench, second))

    asyncio.run(main())


def test_a_thousand_jobs_after_one_leave_the_event_loop_to_others(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            first = await bench.submit(name="first")
            await group(bench, "many", 1000, after=["first"])
            await bench.until_info(
                "many-999", lambda info: info.message == "waits for first (PENDING) to succeed"
            )
            assert len(bench.runtime.started) == 1
            bench.runtime.end(first.id)
            longest, before = 0.0, time.monotonic()
            while len(bench.runtime.started) < 1001:
                await asyncio.sleep(0)
                now = time.monotonic()
                longest, before = max(longest, now - before), now
            assert longest < 2.0

    asyncio.run(main())
