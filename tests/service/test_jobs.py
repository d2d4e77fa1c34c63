"""The life of a job, from the submit to its end: retries, limits, stops, deletion."""

import asyncio
import errno
import hashlib
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from client_lib.errors import Conflict, NotFound
from client_lib.spec.request import CodeInPlace, CodeSnapshot, SubmitRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Failure, JobInfo, JobPage, WorkerInfo
from server_stub.runtimes import Observation
from server_stub.service import JobFilters, Service
from tests.kit.waiting import eventually
from tests.service.bench import ANN, Bench


def in_server(bench: Bench, run: Callable[[Service], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with bench.server(**settings) as service:
            await run(service)

    asyncio.run(main())


def test_a_list_says_what_a_job_waits_for_now(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        for place in (
            "waits for its turn; 2 jobs before it",
            "waits for its turn; 1 job before it",
        ):
            bench.runtime.waits(job.id, place)
            await bench.until_info("one", lambda info, place=place: info.message == place)
            [listed] = JobPage.model_validate_json(
                await service.page(ANN, JobFilters(), 10, None)
            ).jobs
            assert listed == await bench.info("one")
            _, [found] = await service.lookup.search(ANN, JobFilters(), 10, 0)
            assert found == listed

    in_server(bench, run)


def test_a_job_runs_to_its_end_and_every_step_is_an_event(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        assert (job.state, job.version, job.attempt, job.owner) == (State.PENDING, 1, 1, "ann")
        bench.runtime.runs(job.id)
        running = await bench.until("one", State.RUNNING)
        assert running.started_at == bench.clock.now()
        assert running.workers[0].state == "running"
        assert service.busy()
        bench.runtime.end(job.id)
        ended = await bench.until("one", State.SUCCEEDED)
        assert ended.finished_at
        assert await bench.events("one") == [
            ("PENDING", "Queued", 1),
            ("RUNNING", "Running", 1),
            ("SUCCEEDED", "Completed", 1),
        ]
        assert not service.busy()
        assert await service.lookup.counts() == {State.SUCCEEDED: 1}

    in_server(bench, run)


def test_a_failed_job_carries_its_first_failing_rank(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        rank = Failure(worker=0, rank=0, exit_code=137, signal=9, last_lines=["loading"])
        bench.runtime.end(job.id, Reason.SIGNAL, "rank 0 was killed by signal 9", rank)
        failed = await bench.until("one", State.FAILED)
        assert failed.failure
        assert (failed.failure.exit_code, failed.failure.rank, failed.failure.worker) == (137, 0, 0)
        assert failed.message == "rank 0 was killed by signal 9"

    in_server(bench, run)


def test_the_hint_names_a_file_that_the_snapshot_left_out(bench: Bench) -> None:
    async def run(service: Service) -> None:
        digest = await upload(bench, b"archive")
        (bench.scripts / "data.csv").write_text("1")
        code = CodeSnapshot(sha256=digest, root=str(bench.scripts), script="train.py")
        request = bench.request(name="one").model_copy(update={"code": code})
        text, _ = await service.submits.submit(ANN, request, None)
        job = JobInfo.model_validate_json(text)
        attempt = bench.runtime.attempts[job.id]
        assert attempt.snapshot
        assert attempt.snapshot.read_bytes() == b"archive"
        rank = Failure(
            rank=0, exit_code=1, exception="[Errno 2] No such file or directory: 'data.csv'"
        )
        bench.runtime.end(job.id, Reason.EXIT_CODE, failing=rank)
        failed = await bench.until("one", State.FAILED)
        assert failed.failure
        assert "data.csv exists, but the snapshot left it out" in (failed.failure.hint or "")

    in_server(bench, run)


async def upload(bench: Bench, archive: bytes, user: str = "ann") -> str:
    digest = hashlib.sha256(archive).hexdigest()

    async def chunks():  # type: ignore[no-untyped-def]
        yield archive

    await bench.snapshots.put(digest, user, chunks())
    return digest


def test_a_failed_attempt_is_followed_by_another_of_the_whole_gang_after_a_growing_pause(
    bench: Bench,
) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one", max_retry=2)
        for number, pause in ((1, 1), (2, 2)):
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
            bench.runtime.end(job.id, Reason.EXIT_CODE, "exit code 1")
            waiting = await bench.until("one", State.RESTARTING, number + 1)
            assert waiting.message == (
                f"attempt {number} failed: exit code 1 ({number} of 2 retries); the next "
                f"starts in {pause} s"
            )
            bench.clock.pass_time(pause - 0.1)
            await asyncio.sleep(0.02)
            assert bench.runtime.started[-1] == (job.id, number)
            bench.clock.pass_time(0.1)
            await eventually(
                lambda number=number: bench.runtime.started[-1] == (job.id, number + 1)
            )
        bench.runtime.runs(job.id)
        bench.runtime.end(job.id, Reason.EXIT_CODE, "exit code 1")
        failed = await bench.until("one", State.FAILED)
        assert (failed.attempt, failed.reason, failed.message) == (
            *(3, Reason.EXIT_CODE),
            "exit code 1; not retried: max_retry=2 is used up",
        )

    in_server(bench, run)


def test_a_job_that_succeeds_after_a_retry_shows_no_failure(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one", max_retry=1)
        bench.runtime.runs(job.id)
        bench.runtime.end(job.id, Reason.EXIT_CODE, failing=Failure(rank=0, exit_code=1))
        assert (await bench.until("one", State.RESTARTING)).failure
        bench.clock.pass_time(1)
        await eventually(lambda: len(bench.runtime.started) == 2)
        bench.runtime.end(job.id)
        assert (await bench.until("one", State.SUCCEEDED)).failure is None
        assert ("RUNNING", "Running", 2) in await bench.events("one")

    in_server(bench, run)


def test_cancel_while_pending_while_running_and_between_two_attempts(bench: Bench) -> None:
    async def run(service: Service) -> None:
        pending = await bench.submit(name="pending", grace_s=7)
        running = await bench.submit(name="running")
        between = await bench.submit(name="between", max_retry=5)
        bench.runtime.runs(running.id)
        bench.runtime.end(between.id, Reason.EXIT_CODE)
        await bench.until("running", State.RUNNING)
        await bench.until("between", State.RESTARTING)
        for name in ("pending", "running", "between"):
            await service.cancel(ANN, name)
            ended = await bench.until(name, State.CANCELLED)
            assert (ended.reason, ended.message) == (Reason.CANCELLED, "cancelled by ann")
            assert ended.failure is None
        assert bench.runtime.stopped == [(pending.id, 1, 7.0), (running.id, 1, 30.0)]
        bench.clock.pass_time(100)
        assert (
            JobInfo.model_validate_json(await service.cancel(ANN, "between")).state
            is State.CANCELLED
        )
        assert bench.runtime.started.count((between.id, 2)) == 0

    in_server(bench, run)


def test_cancel_says_stopping_until_the_processes_are_gone(bench: Bench) -> None:
    async def run(service: Service) -> None:
        bench.runtime.stops_at_once = False
        job = await bench.submit(name="one", max_retry=5)
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        for _ in range(2):
            info = JobInfo.model_validate_json(await service.cancel(ANN, "one"))
            assert (info.state, info.reason) == (State.RUNNING, Reason.STOPPING)
        assert len(bench.runtime.stopped) == 1
        bench.runtime.end(job.id, Reason.EXIT_CODE, "exit code 1", Failure(rank=0, exit_code=1))
        assert (await bench.until("one", State.CANCELLED)).failure is None

    in_server(bench, run)


def test_stop_timer_counts_from_the_first_start_over_all_attempts(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one", stop_timer=10, max_retry=3)
        bench.clock.pass_time(3600)  # waiting does not count
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        bench.clock.pass_time(300)
        bench.runtime.end(job.id, Reason.EXIT_CODE)
        await bench.until("one", State.RESTARTING)
        bench.clock.pass_time(1)
        await eventually(lambda: len(bench.runtime.started) == 2)
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING, 2)
        bench.clock.pass_time(298)
        assert bench.runtime.stopped == []
        bench.clock.pass_time(2)
        ended = await bench.until("one", State.FAILED)
        assert (ended.reason, ended.message) == (
            Reason.TIMEOUT,
            "it ran for 10 min, the limit that stop_timer sets",
        )

    in_server(bench, run)


def test_a_silent_job_is_ended(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(
            name="one", health_params={"log_period": 20, "action": "delete"}, max_retry=3
        )
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        bench.clock.pass_time(19 * 60)
        bench.runtime.life[job.id] = "a line"
        bench.clock.pass_time(20 * 60)
        assert bench.runtime.stopped == []
        bench.clock.pass_time(60)
        ended = await bench.until("one", State.FAILED)
        assert ended.reason is Reason.HUNG_SILENT
        assert ended.message == "no line was logged for 20 min (health_params)"

    in_server(bench, run)


def test_a_job_is_watched_on_after_its_file_server_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(job_id: str, attempt: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    async def run(service: Service) -> None:
        job = await bench.submit(name="one", health_params={"log_period": 20, "action": "delete"})
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        with monkeypatch.context() as failing:
            # the reading of a real log is in tests/logs; here it fails, and then succeeds
            failing.setattr(bench.runtime, "signs_of_life", fails)
            bench.clock.pass_time(30 * 60)
        assert bench.runtime.stopped == [], "nobody knows whether it is silent"
        bench.clock.pass_time(21 * 60)
        assert (await bench.until("one", State.FAILED)).reason is Reason.HUNG_SILENT

    in_server(bench, run)


def test_a_silent_job_is_restarted_and_watched_again(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(
            name="one", health_params={"log_period": 20, "action": "restart"}, max_retry=1
        )
        for attempt in (1, 2):
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING, attempt)
            bench.clock.pass_time(20 * 60)
            if attempt == 1:
                await bench.until("one", State.RESTARTING)
                bench.clock.pass_time(1)
                await eventually(lambda: len(bench.runtime.started) == 2)
        assert (await bench.until("one", State.FAILED)).reason is Reason.HUNG_SILENT

    in_server(bench, run)


def test_silence_is_told_once_and_again_after_new_output(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(
            name="one", health_params={"log_period": 20, "sub_actions": ["notify"]}
        )
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        bench.clock.pass_time(90 * 60)
        await bench.until_info("one", lambda info: info.version > 2)
        bench.runtime.life[job.id] = "a line"
        bench.clock.pass_time(20 * 60)
        bench.clock.pass_time(60 * 60)
        await bench.until_info("one", lambda info: info.version > 3)
        assert [event for event in await bench.events("one") if event[1] == "HungSilent"] == [
            ("RUNNING", "HungSilent", 1)
        ] * 2
        assert bench.runtime.stopped == []

    in_server(bench, run)


@pytest.mark.parametrize("days", [-400, 400])
def test_the_clock_may_jump_under_a_watched_job(days: int, bench: Bench) -> None:
    async def run(service: Service) -> None:
        limits: dict[str, Any] = {
            "health_params": {"log_period": 20, "action": "delete"},
            "stop_timer": 100,
        }
        talks = await bench.submit(name="talks", **limits)
        hangs = await bench.submit(name="hangs", **limits)
        for job in (talks, hangs):
            bench.runtime.runs(job.id)
            await bench.until(job.name, State.RUNNING)
        for minute in range(0, 90, 10):
            bench.runtime.life[talks.id] = f"a line in minute {minute}"
            bench.clock.jump(timedelta(days=days).total_seconds())
            bench.clock.pass_time(600)
        assert (await bench.until("hangs", State.FAILED)).reason is Reason.HUNG_SILENT
        assert [job_id for job_id, *_ in bench.runtime.stopped] == [hangs.id]
        bench.runtime.life[talks.id] = "the last line"
        bench.clock.pass_time(660)
        assert (await bench.until("talks", State.FAILED)).reason is Reason.TIMEOUT

    in_server(bench, run)


def test_a_clock_set_back_between_two_servers_does_not_lengthen_stop_timer(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one", stop_timer=10)
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
        bench.clock.jump(-timedelta(days=365).total_seconds())
        async with bench.server():
            bench.clock.pass_time(600)
            assert (await bench.until("one", State.FAILED)).reason is Reason.TIMEOUT

    asyncio.run(run())


def test_a_script_that_changed_while_it_waited_is_told_when_it_starts(bench: Bench) -> None:
    async def run(service: Service) -> None:
        script = bench.scripts / "train.py"
        code = bench.request().code
        assert isinstance(code, CodeInPlace)
        code = code.model_copy(update={"sha256": hashlib.sha256(script.read_bytes()).hexdigest()})

        async def submit(name: str) -> JobInfo:
            request: SubmitRequest = bench.request(name=name).model_copy(update={"code": code})
            return JobInfo.model_validate_json(
                (await service.submits.submit(ANN, request, None))[0]
            )

        same, changed, hidden = (
            await submit("same"),
            await submit("changed"),
            await submit("hidden"),
        )
        bench.runtime.runs(same.id)
        await bench.until("same", State.RUNNING)
        script.write_text("print('another')\n")
        bench.runtime.runs(changed.id)
        told = await bench.until_info("changed", lambda info: bool(info.notices))
        assert told.notices == [
            f"{script} was changed after it was submitted; attempt 1 runs it as it is now"
        ]
        assert (await bench.info("same")).notices == []
        assert len(await bench.events("changed")) == 3
        bench.runtime.hidden = "it is a link to a file that the account can't read"
        bench.runtime.runs(hidden.id)
        await bench.until("hidden", State.RUNNING)
        bench.runtime.end(hidden.id)
        await bench.until("hidden", State.SUCCEEDED)
        assert (await bench.info("hidden")).notices == []

    in_server(bench, run)


def test_delete_is_refused_while_the_job_is_not_final(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        with pytest.raises(Conflict, match="one is PENDING"):
            await service.delete(ANN, "one")
        folder = bench.settings().data_dir / "jobs" / job.id
        folder.mkdir()
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)
        assert folder.is_dir()
        assert await service.delete(ANN, "one") == 'Job "one" deleted.'
        assert not folder.exists()
        with pytest.raises(NotFound):
            await service.get(ANN, "one")
        await bench.submit(name="one")

    in_server(bench, run)


def test_delete_with_force_stops_the_job_first(bench: Bench) -> None:
    async def run(service: Service) -> None:
        bench.runtime.stops_at_once = False
        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        assert "is being stopped" in await service.delete(ANN, "one", force=True)
        assert (await bench.info("one")).reason is Reason.STOPPING
        folder = bench.settings().data_dir / "jobs" / job.id
        folder.mkdir(exist_ok=True)
        bench.runtime.end(job.id, Reason.CANCELLED)
        await eventually(lambda: not list(folder.parent.iterdir()))
        with pytest.raises(NotFound):
            await service.get(ANN, "one")

    in_server(bench, run)


def test_a_long_poll_answers_at_the_next_change_and_at_once_for_a_final_job(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        waiting = asyncio.ensure_future(service.lookup.wait(ANN, "one", 1, 30))
        logs = await service.lookup.find_logs(ANN, "one")
        following = asyncio.ensure_future(service.lookup.next_logs(logs))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        bench.runtime.runs(job.id)
        assert (await waiting).public.state is State.RUNNING
        assert (await following).state is State.RUNNING
        assert (await service.lookup.wait(ANN, "one", 0, 30)).public.version == 2
        started = time.monotonic()
        assert (await service.lookup.wait(ANN, "one", 2, 0.05)).public.version == 2
        assert time.monotonic() - started >= 0.04
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)
        assert (await service.lookup.wait(ANN, "one", 99, 30)).public.state is State.SUCCEEDED
        ended = await service.lookup.next_logs(await following)
        assert ended.state is State.SUCCEEDED
        assert await service.lookup.next_logs(ended) == ended

    in_server(bench, run)


def test_an_order_whose_caller_goes_away_is_stored_and_others_are_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(service: Service) -> None:
        may_write, write = asyncio.Event(), service._store.write

        async def slow_write(*args: Any, **kwargs: Any) -> Any:
            await may_write.wait()
            return await write(*args, **kwargs)

        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        await bench.until("one", State.RUNNING)
        # a disk that writes slowly, as long as the test wants
        monkeypatch.setattr(service._store, "write", slow_write)
        cancelling = asyncio.ensure_future(service.cancel(ANN, "one"))
        waiting = asyncio.ensure_future(service.lookup.wait(ANN, "one", 2, 10))
        await asyncio.sleep(0.02)
        cancelling.cancel()
        await asyncio.gather(cancelling, return_exceptions=True)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        may_write.set()
        assert (await waiting).public.reason is Reason.STOPPING
        await eventually(lambda: bench.runtime.stopped)

    in_server(bench, run)


def test_waiting_calls_that_go_away_leave_nothing_behind(bench: Bench) -> None:
    async def run(service: Service) -> None:
        await bench.submit(name="one")
        waiting = [
            asyncio.ensure_future(service.lookup.wait(ANN, "one", 1, 30)) for _ in range(500)
        ]
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert len(service._jobs._changes) == 1
        job_id = service._jobs.by_name["ann", "one"].row.id
        bench.runtime.end(job_id)
        await bench.until("one", State.SUCCEEDED)
        assert not service._jobs._changes

    in_server(bench, run)


def test_the_clock_may_jump_while_a_job_waits_for_its_next_attempt(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one", max_retry=1)
        bench.runtime.end(job.id, Reason.EXIT_CODE)
        await bench.until("one", State.RESTARTING)
        bench.clock.jump(-timedelta(days=365).total_seconds())
        bench.clock.pass_time(1)
        await eventually(lambda: len(bench.runtime.started) == 2)

    in_server(bench, run)


def test_an_end_that_is_reported_again_with_other_workers_changes_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        assert bench.runtime.sink
        for code in (0, 1):
            workers = (WorkerInfo(worker=0, state="ended", exit_code=code),)
            bench.runtime.sink(Observation(job.id, 1, "ended", Reason.COMPLETED, "", workers))
            await asyncio.sleep(0)  # the end is being stored
        ended = await bench.until("one", State.SUCCEEDED)
        await eventually(lambda: not service.busy())
        assert ended.workers[0].exit_code == 0
        await asyncio.sleep(0.1)  # a second write would fail
        assert not caplog.records

    in_server(bench, run)


def test_a_job_may_be_deleted_while_its_end_is_being_stored(bench: Bench) -> None:
    async def run(service: Service) -> None:
        job = await bench.submit(name="one")
        assert bench.runtime.sink
        bench.runtime.sink(Observation(job.id, 1, "ended", Reason.COMPLETED, ""))
        await asyncio.sleep(0)  # the end is being stored
        await asyncio.wait_for(service.delete(ANN, "one", force=True), 5)
        for _ in range(500):
            if not await service.lookup.counts():
                return
            await asyncio.sleep(0.01)
        pytest.fail("the job is there after 5 s")

    in_server(bench, run)
