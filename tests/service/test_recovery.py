"""A database that is lost or damaged stops the start with the way out, and its
rows are rebuilt from files.
"""

import asyncio
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings, strategies as st

from client_lib.durable import write_json
from client_lib.errors import Conflict, KeyReused, ServerError
from client_lib.launcher_protocol.directory import Directory
from client_lib.spec.request import GroupMember, GroupRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobPage
from server_stub.files.job_dirs import attempt_dir, worker_dir
from server_stub.service import JobFilters
from tests.kit.examples import examples
from tests.kit.waiting import eventually
from tests.service.bench import ANN, Bench
from tests.service.test_alarms import alarm_events, is_raised, looks_go_on, submitted, until
from tests.service.test_damage import in_state

BOUNDED = settings(
    max_examples=examples(15),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def database(bench: Bench) -> Path:
    return bench.folder / "state" / "data" / "client_lib.db"


def lose(bench: Bench) -> None:
    for path in database(bench).parent.glob("client_lib.db*"):
        path.unlink()


async def jobs(bench: Bench, **filters: Any) -> dict[str, Any]:
    page = JobPage.model_validate_json(
        await bench.service.page(ANN, JobFilters(**filters), 100, None)
    )
    return {job.name: job for job in page.jobs}


async def filled(bench: Bench) -> dict[str, Any]:
    """One job of each kind."""
    async with bench.server() as service:
        await in_state(bench, "ended", State.SUCCEEDED)
        await bench.submit(name="cancelled")
        await service.cancel(ANN, "cancelled")
        await bench.until("cancelled", State.CANCELLED)
        await in_state(bench, "deleted", State.SUCCEEDED)
        await service.delete(ANN, "deleted")
        await bench.submit(name="waiting", labels={"a": "b"}, args=["x\ny"])
        await in_state(bench, "running", State.RUNNING)
        found = await jobs(bench)
        attempt_dir(bench.folder / "state" / "data" / "jobs" / found["running"].id, 2).mkdir(
            parents=True
        )
        noted = [
            service._files.job_dir(found[name].id) / "job.json" for name in ("ended", "cancelled")
        ]
        while not all(path.exists() for path in noted):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found


async def check_recovered(bench: Bench, before: dict[str, Any]) -> None:
    found = await jobs(bench)
    assert found.keys() == before.keys()
    assert (found["ended"], found["cancelled"]) == (before["ended"], before["cancelled"])
    assert [step[:2] for step in await bench.events("cancelled")][-1] == ("CANCELLED", "Cancelled")
    for name in ("waiting", "running"):
        assert (found[name].id, found[name].spec, found[name].code) == (
            *(before[name].id, before[name].spec),
            before[name].code,
        )
    assert (found["waiting"].state, found["running"].attempt) == (State.PENDING, 2)
    assert (await jobs(bench, labels={"a": "b"})).keys() == {"waiting"}
    assert bench.runtime.attempts[before["waiting"].id].spec.args == ["x\ny"]
    assert bench.runtime.attempts[before["running"].id].number == 2


def test_a_lost_database_stops_the_start_and_is_rebuilt(bench: Bench) -> None:
    async def run() -> None:
        before = await filled(bench)
        lose(bench)
        for _ in range(2):  # the first refusal leaves no empty database behind
            with pytest.raises(ServerError, match="is missing") as refused:
                await bench.new_service().start()
            assert "serve --recover" in str(refused.value.hint)
        bench.runtime.attempts.clear()
        async with bench.recovered():
            await check_recovered(bench, before)
            assert (await bench.submit(name="later")).name == "later"
        async with bench.server():
            assert (await jobs(bench)).keys() == {*before, "later"}

    asyncio.run(run())


def test_a_group_is_rebuilt_with_its_limit_and_without_the_jobs_that_a_resubmit_has_replaced(
    bench: Bench,
) -> None:
    async def run() -> None:
        async with bench.server() as service:
            runs = [GroupMember(args=[], values={"seed": seed}) for seed in range(4)]
            order = GroupRequest(name="scan", request=bench.request(), members=runs, max_parallel=1)
            await service.submits.submit_group(ANN, order, "key")
            bench.runtime.end((await bench.info("scan-0")).id, Reason.EXIT_CODE)
            await bench.until("scan-0", State.FAILED)
            await service.submits.resubmit_group(ANN, "scan", None, failed=True)
            bench.runtime.end((await bench.info("scan-1")).id)
            await bench.until("scan-1", State.SUCCEEDED)
            before, members = (
                await service.lookup.group(ANN, "scan", None),
                await jobs(bench, group="scan"),
            )
        lose(bench)
        bench.runtime.attempts.clear()
        async with bench.recovered() as service:
            after = await service.lookup.group(ANN, "scan", None)
            assert after.model_copy(update={"earlier": before.earlier}) == before
            assert {name: job.group for name, job in (await jobs(bench, group="scan")).items()} == {
                name: job.group for name, job in members.items()
            }
            assert (await bench.info("scan-0")).group is None
            assert [attempt.job_name for attempt in bench.runtime.attempts.values()] == ["scan-2"]
            assert not (await service.submits.submit_group(ANN, order, "key"))[1]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("what", "damage"),
    [(rb'("info": {[^\n]*"created_at": ")2', rb"\1x"), (rb'"group": {[^\n]*}', rb'"group": [1]}')],
)
def test_a_damaged_group_in_the_requests_takes_no_job_along(
    bench: Bench, what: bytes, damage: bytes
) -> None:
    async def run() -> None:
        async with bench.server() as service:
            runs = [GroupMember(args=[], values={"seed": seed}) for seed in range(2)]
            await service.submits.submit_group(
                ANN, GroupRequest(name="scan", request=bench.request(), members=runs), "key"
            )
            await bench.submit(name="alone")
        lose(bench)
        for segment in (bench.folder / "state" / "data" / "submissions").glob("*.jsonl"):
            damaged, count = re.subn(what, damage, segment.read_bytes())
            assert count == 2
            segment.write_bytes(damaged)
        async with bench.recovered():
            found = await jobs(bench)
            assert {name: job.group for name, job in found.items()} == dict.fromkeys(
                ("scan-0", "scan-1", "alone")
            )

    asyncio.run(run())


@BOUNDED
@given(
    where=st.floats(0, 1),
    length=st.sampled_from([1, 50, 4096, 40_000]),
    byte=st.sampled_from([0, 7, 255]),
)
@example(where=0.0, length=100, byte=7)
@example(where=0.0, length=10**9, byte=0)
def test_a_database_with_damaged_pages_is_refused_or_works_and_can_be_rebuilt(
    where: float, length: int, byte: int
) -> None:
    async def run() -> None:
        before = await filled(bench)
        file = database(bench)
        content = file.read_bytes()
        start = int(where * (len(content) - 1))
        file.write_bytes(
            content[:start]
            + bytes([byte]) * min(length, len(content) - start)
            + content[start + length :]
        )
        try:
            async with bench.server():
                await jobs(bench)
                return
        except ServerError as error:
            hint = error.hint
        assert "serve --recover" in str(hint)
        bench.runtime.attempts.clear()
        async with bench.recovered():
            await check_recovered(bench, before)
        assert file.with_name("client_lib.db.damaged-1").exists()

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        asyncio.run(run())


def test_a_job_of_an_earlier_version_is_shown_as_failed(bench: Bench) -> None:
    """Its request has no heading, so that its files alone say whose it was."""

    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="old")
        folder = bench.folder / "state" / "data" / "jobs" / job.id
        worker = worker_dir(folder, 1, 0)
        worker.mkdir(parents=True)
        write_json(Directory(str(worker)).plan, {"job": "old", "owner": "ann"})
        lose(bench)
        for path in (bench.folder / "state" / "data" / "submissions").iterdir():
            path.unlink()
        async with bench.recovered():
            failed = await bench.until("old", State.FAILED)
            assert (failed.id, failed.reason) == (job.id, Reason.SERVER_ERROR)
            assert bench.runtime.stopped[-1][0] == job.id, "its processes are looked for and ended"

    asyncio.run(run())


def test_a_cancelled_job_does_not_start_again_with_a_rebuilt_row(bench: Bench) -> None:
    """The database is lost as soon as the cancel is answered."""

    async def run() -> None:
        async with bench.server() as service:
            await bench.submit(name="one")
            await in_state(bench, "two", State.RUNNING)
            for name in ("one", "two"):
                await service.cancel(ANN, name)
            copy = bench.folder / "copy"
            shutil.copytree(
                bench.folder / "state" / "data",
                copy,
                ignore=shutil.ignore_patterns("client_lib.db*"),
            )
        shutil.rmtree(bench.folder / "state" / "data")
        copy.rename(bench.folder / "state" / "data")
        async with bench.recovered():
            for name in ("one", "two"):
                await bench.until(name, State.CANCELLED)

    asyncio.run(run())


def test_an_alarm_is_not_told_again_after_the_loss_of_the_database(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job_id = await submitted(bench, alarm="nan -> notify")
            before = await until(bench, is_raised)
        lose(bench)
        bench.runtime.attempts.clear()
        async with bench.recovered():
            await eventually(lambda: job_id in bench.runtime.attempts)
            bench.runtime.runs(job_id)
            await bench.until("one", State.RUNNING)
            await looks_go_on(bench)
            assert (await bench.info("one")).alarms == before.alarms
            assert await alarm_events(bench) == []

    asyncio.run(run())


@settings(BOUNDED, max_examples=examples(4))
@given(
    ends=st.lists(st.sampled_from([Reason.EXIT_CODE, Reason.NODE_LOST]), max_size=5),
    lost_at=st.integers(0, 5),
    budgets=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@example(ends=[Reason.NODE_LOST] * 3, lost_at=2, budgets=(0, 2))
def test_a_job_has_no_more_attempts_because_the_database_was_lost(
    ends: list[Reason], lost_at: int, budgets: tuple[int, int]
) -> None:
    async def job_after(folder: Path, lost_at: int) -> tuple[State, int, int]:
        bench = Bench(folder)
        async with bench.server():
            job = await bench.submit(
                name="one", max_retry=budgets[0], max_infrastructure_retry=budgets[1]
            )
            await failed(bench, job.id, ends[:lost_at])
        lose(bench)
        bench.runtime.attempts.clear()
        async with bench.recovered():
            await failed(bench, job.id, ends[lost_at:])
            info = await bench.info("one")
            return (
                info.state if info.state.final else State.PENDING,
                info.attempt,
                info.infrastructure_retries,
            )

    async def run(folder: Path) -> None:
        (folder / "early").mkdir()
        (folder / "late").mkdir()
        assert await job_after(folder / "early", 0) == await job_after(folder / "late", lost_at)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))


async def failed(bench: Bench, job_id: str, ends: list[Reason]) -> None:
    """End attempts one after the other, as far as the job has them."""
    for reason in ends:
        attempt = (await bench.info("one")).attempt
        if not (active := bench.service._jobs.by_id.get(job_id)):
            return
        bench.runtime.end(job_id, reason, "it failed")
        await bench.until_info(
            "one", lambda info, before=attempt: info.state.final or info.attempt > before
        )
        bench.clock.pass_time(100)
        await eventually(
            lambda job=active: job.info.state.final or job.submitted_attempt == job.info.attempt
        )


def test_the_note_of_a_cancel_is_on_the_disk_before_it_is_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss may damage the database, and then a job whose note is
    lost, or cut, starts again.
    """
    synced: list[str] = []
    fsync = os.fsync
    # nothing but a power loss shows what was not synced
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd)
    )

    async def run() -> None:
        async with bench.server() as service:
            await in_state(bench, "runs", State.RUNNING)
            await bench.submit(name="waits")
            for name in ("runs", "waits"):
                folder = str(service._files.job_dir((await bench.info(name)).id))
                await service.cancel(ANN, name)
                assert folder in synced
                assert [path for path in synced if path.startswith(folder + os.sep)]

    asyncio.run(run())


def test_a_repeated_submit_is_known_after_the_loss_of_the_database(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        request = bench.request(name="one")
        async with bench.server() as service:
            first, _ = await service.submits.submit(ANN, request, "key")
        lose(bench)
        async with bench.recovered() as service:
            again, is_new = await service.submits.submit(ANN, request, "key")
            assert not is_new
            assert json.loads(again)["id"] == json.loads(first)["id"]
            with pytest.raises(KeyReused):
                await service.submits.submit(ANN, bench.request(name="other"), "key")
        assert "1 jobs were rebuilt from their files; lost are their events" in caplog.text

    asyncio.run(run())


def test_a_new_data_directory_starts_and_so_does_one_whose_jobs_were_all_deleted(
    bench: Bench,
) -> None:
    async def run() -> None:
        async with bench.server() as service:
            await in_state(bench, "one", State.SUCCEEDED)
            with pytest.raises(Conflict):  # nor is there anything of a submit that was refused
                await bench.submit(name="one")
            await service.delete(ANN, "one")
        lose(bench)
        async with bench.server():
            assert await jobs(bench) == {}

    asyncio.run(run())


def test_a_job_whose_removal_had_begun_does_not_start_again_with_a_rebuilt_row(
    bench: Bench,
) -> None:
    """The server is killed in the middle of a removal, and its database is lost."""

    async def run() -> None:
        async with bench.server() as service:
            for name in ("removed", "kept"):
                await in_state(bench, name, State.SUCCEEDED)
            removed, kept = [
                service._files.job_dir((await bench.info(name)).id) for name in ("removed", "kept")
            ]
            await eventually(
                lambda: all((folder / "job.json").exists() for folder in (removed, kept))
            )
            service._cleanup._empty([removed.name])
        lose(bench)
        bench.runtime.attempts.clear()
        async with bench.recovered():
            assert (await jobs(bench)).keys() == {"kept"}
            assert not bench.runtime.attempts
            assert [path.name for path in kept.parent.iterdir()] == [kept.name]

    asyncio.run(run())


def test_recover_changes_nothing_in_a_database_that_is_whole(bench: Bench) -> None:
    async def run() -> None:
        before = await filled(bench)
        async with bench.recovered():
            found = await jobs(bench)
            assert {job.id: job.state for job in found.values()} == {
                job.id: job.state for job in before.values()
            }
        assert not list(database(bench).parent.glob("*.damaged-*"))

    asyncio.run(run())


def test_a_job_that_is_deleted_while_it_ends_leaves_no_folder(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server() as service:
            await bench.submit(name="one")
            active = service._jobs.by_name.get(("ann", "one"))
            assert active
            await service.delete(ANN, "one", force=True)
            await eventually(lambda: not service._jobs.by_name.get(("ann", "one")))
            await service._cleanup.finish()
            active.remove_at_end = False  # its end was handled before the order to delete it
            await service._cleanup.on_end(active)
            assert not service._files.job_dir(active.row.id).exists()

    asyncio.run(run())
