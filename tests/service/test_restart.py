"""A server that dies at any point, and the next one on the same data."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest, NotFound, ServerError
from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.states import Reason, State
from client_lib.spec.validation import STORED
from client_lib.spec.wire import Failure, JobInfo
from server_stub.files.job_dirs import log_dir
from server_stub.store import rows
from server_stub.store.rows import JobFilters
from tests.kit.waiting import eventually
from tests.logs.support import LogWriter
from tests.service.bench import ANN, Bench


def test_every_job_that_is_not_final_is_given_to_the_runtime_again(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            waiting = await bench.submit(name="waiting")
            running = await bench.submit(name="running")
            final = await bench.submit(name="final")
            bench.runtime.runs(running.id)
            bench.runtime.end(final.id)
            await bench.until("running", State.RUNNING)
            await bench.until("final", State.SUCCEEDED)
        bench.runtime.given.clear()
        async with bench.server():
            assert bench.runtime.given == [(running.id, 1), (waiting.id, 1)], (
                "what runs holds its place first"
            )
            assert len(bench.runtime.started) == 3, "nothing started twice"
            bench.runtime.end(waiting.id)
            await bench.until("waiting", State.SUCCEEDED)
            assert (await bench.info("running")).started_at == bench.clock.now()

    asyncio.run(run())


def test_a_job_that_ended_while_the_server_was_away_ends(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one")

        async def away() -> None:
            bench.runtime.runs(job.id)
            bench.runtime.end(job.id)

        await away()
        async with bench.server():
            await bench.until("one", State.SUCCEEDED)
            assert [state for state, _, _ in await bench.events("one")] == [
                "PENDING",
                "RUNNING",
                "SUCCEEDED",
            ]

    asyncio.run(run())


def test_an_attempt_gets_again_what_was_submitted(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server() as service:
            request = bench.request(
                name="one",
                secrets=["HF_TOKEN"],
                env_variables={"MY_KEY": "k"},
                secret_values={"HF_TOKEN": "v"},
            )
            job = JobInfo.model_validate_json((await service.submits.submit(ANN, request, None))[0])
            before = bench.runtime.attempts[job.id]
        async with bench.server():
            again = bench.runtime.attempts[job.id]
            assert again is not before
            assert (again.spec, again.submitter, again.secret_values) == (
                before.spec,
                before.submitter,
                {"HF_TOKEN": "v"},
            )

    asyncio.run(run())


def test_the_pause_between_two_attempts_outlives_the_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one", max_retry=1)
            bench.runtime.end(job.id, Reason.EXIT_CODE)
            await bench.until("one", State.RESTARTING)
        async with bench.server():
            assert bench.runtime.started == [(job.id, 1)]
            bench.clock.pass_time(1)
            await eventually(lambda: bench.runtime.started == [(job.id, 1), (job.id, 2)])
        async with bench.server():
            assert bench.runtime.started == [(job.id, 1), (job.id, 2)]
            bench.runtime.end(job.id)
            assert (await bench.until("one", State.SUCCEEDED)).attempt == 2

    asyncio.run(run())


def test_both_budgets_of_retries_outlive_the_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one", max_retry=1, max_infrastructure_retry=2)
        ends = [Reason.NODE_LOST, Reason.EXIT_CODE, Reason.PREEMPTED]
        for number, reason in enumerate(ends, start=1):
            async with bench.server():
                bench.runtime.end(job.id, reason)
                await bench.until("one", State.RESTARTING, number + 1)
                bench.clock.pass_time(60)
                await eventually(
                    lambda number=number: bench.runtime.started[-1] == (job.id, number + 1)
                )
        async with bench.server():
            assert (await bench.info("one")).infrastructure_retries == 2
            bench.runtime.end(job.id, Reason.NODE_LOST, "the node is gone")
            ended = await bench.until("one", State.FAILED)
        assert (ended.attempt, ended.message) == (
            4,
            (
                "the node is gone (all 2 infrastructure retries are used); not retried: "
                "max_retry=1 is used up"
            ),
        )

    asyncio.run(run())


def test_the_progress_that_resets_retries_outlives_the_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(
                name="one", max_retry=1, retry_on=["exit:75"], retry_reset_steps=100
            )
        reset = ", counted from 0 again as it got from step 100 to 200"
        for number, (step, told) in enumerate([(100, ""), (200, reset)], start=1):
            async with bench.server():
                await fails_at(bench, job.id, number, step)
                assert (
                    await bench.until("one", State.RESTARTING, number + 1)
                ).retry == f"1 of 1 retries{told}"
            async with bench.server():
                bench.clock.pass_time(60)
                await eventually(
                    lambda number=number: bench.runtime.started[-1] == (job.id, number + 1)
                )
        async with bench.server():
            await fails_at(bench, job.id, 3, 299)
            failed = await bench.until("one", State.FAILED)
        assert (failed.retry, failed.furthest_step) == ("not retried: max_retry=1 is used up", 299)

    asyncio.run(run())


async def fails_at(bench: Bench, job_id: str, attempt: int, step: int) -> None:
    log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job_id, attempt, 0))
    for printed in (step - 2, step - 1, step):
        log.write(f"step {printed} loss=0.5")
    bench.runtime.end(job_id, Reason.EXIT_CODE, "it failed", Failure(rank=0, exit_code=75))


def test_an_order_to_stop_outlives_the_server(bench: Bench) -> None:
    async def run() -> None:
        bench.runtime.stops_at_once = False
        async with bench.server() as service:
            job = await bench.submit(name="one", max_retry=3)
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
            await service.cancel(ANN, "one")
        bench.runtime.stopped.clear()
        bench.runtime.stops_at_once = True
        async with bench.server():
            assert bench.runtime.stopped == [(job.id, 1, 30.0)]
            await bench.until("one", State.CANCELLED)

    asyncio.run(run())


def test_an_interrupt_outlives_the_server_and_a_cancel_follows_it(bench: Bench) -> None:
    async def run() -> None:
        bench.runtime.stops_at_once = False
        async with bench.server() as service:
            job = await bench.submit(name="one")
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
            await service.cancel(ANN, "one", interrupt=True)
        assert bench.runtime.interrupted == [(job.id, 1)]
        bench.runtime.stopped.clear()
        async with bench.server() as service:
            assert bench.runtime.interrupted == [(job.id, 1)] * 2
            await service.cancel(ANN, "one")
            await service.cancel(ANN, "one")
            assert bench.runtime.stopped == [(job.id, 1, 30.0)] * 2
            assert len(bench.runtime.interrupted) == 2

    asyncio.run(run())


def test_the_stop_timer_outlives_the_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one", stop_timer=10)
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
        bench.clock.pass_time(540)
        async with bench.server():
            bench.clock.pass_time(59)
            assert bench.runtime.stopped == []
            bench.clock.pass_time(1)
            assert (await bench.until("one", State.FAILED)).reason is Reason.TIMEOUT

    asyncio.run(run())


def test_what_was_doomed_is_removed_by_the_next_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server() as service:
            job = await bench.submit(name="one")
            bench.runtime.end(job.id)
            await bench.until("one", State.SUCCEEDED)
            found = await service._store.read(rows.find, "ann", "one")
            assert found
            await service._store.write(rows.remove, [found.seq])  # and the server dies here
        folder = bench.settings().data_dir / "jobs" / job.id
        folder.mkdir(exist_ok=True)
        async with bench.server():
            assert not folder.exists()

    asyncio.run(run())


def test_a_removal_that_a_crash_interrupted_is_finished_by_the_next_server(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server() as service:
            for name in ("one", "runs"):
                job = await bench.submit(name=name)
                folder = bench.settings().data_dir / "jobs" / job.id
                (folder / "attempts").mkdir(parents=True)
            one = await bench.info("one")
            bench.runtime.end(one.id)
            await bench.until("one", State.SUCCEEDED)
            service._cleanup._empty([one.id])  # and the server dies here
        async with bench.server() as service:
            with pytest.raises(NotFound):
                await service.get(ANN, "one")
            assert (await bench.info("runs")).state is State.PENDING
        assert list(folder.parent.iterdir()) == [folder]

    asyncio.run(run())


def test_a_job_whose_request_is_gone_is_shown_as_failed_and_not_dropped(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server() as service:
            lost = await bench.submit(name="lost")
            kept = await bench.submit(name="kept")
            found = await service._store.read(rows.unfinished)
            service._request_log.erase(found[0].place)
        async with bench.server():
            assert bench.runtime.given[-1] == (kept.id, 1)
            failed = await bench.until("lost", State.FAILED)
            assert (failed.id, failed.reason) == (lost.id, Reason.SERVER_ERROR)
            assert "what was submitted as lost can't be read" in failed.message

    asyncio.run(run())


def test_a_data_directory_that_can_not_be_used_is_named(bench: Bench) -> None:
    (bench.folder / "state").write_text("a file")
    with pytest.raises(ServerError, match="data directory"):
        asyncio.run(bench.new_service_unopened().start())


# --- kill -9

SUBMITTER = """
import asyncio, json, sys
from pathlib import Path
from tests.logs.support import LogWriter
from tests.service.bench import ANN, Bench

async def main(folder, first):
    bench = Bench(folder)
    async with bench.server() as service:
        print("up", flush=True)
        for number in range(first, 10**6):
            names = [f"n{number}-{i}" for i in range(4)]
            answers = await asyncio.gather(*(
                service.submits.submit(ANN, bench.request(name=name), name.replace("n", "k"))
                for name in names
            ))
            for text, created in answers:
                print(json.loads(text)["id"], flush=True)
            job = json.loads(answers[0][0])["id"]
            bench.runtime.runs(job)
            bench.runtime.end(job)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.parametrize(
    "rounds", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(600)])]
)
def test_kill_9_loses_no_answered_submit_and_doubles_none(tmp_path: Path, rounds: int) -> None:
    answered: list[str] = []
    for number in range(rounds):
        command = [sys.executable, "-c", SUBMITTER, str(tmp_path), str(number * 10_000)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        ) as server:
            assert server.stdout
            assert server.stdout.readline() == "up\n"
            # on a busy machine the other rounds may be too short for any answer
            if number == rounds - 1:
                answered.append(server.stdout.readline().strip())
            time.sleep(random.uniform(0.01, 0.3))  # the moment is random on purpose
            os.kill(server.pid, signal.SIGKILL)
            answered += [line.strip() for line in server.stdout if line.endswith("\n")]
    stored = asyncio.run(_all_ids(tmp_path))
    assert answered
    assert len(stored) == len(set(stored))
    assert set(answered) <= set(stored)


async def _all_ids(folder: Path) -> list[str]:
    bench = Bench(folder)
    async with bench.server() as service:
        ids: list[str] = []
        before = None
        while True:
            found = await service._store.read(rows.page, JobFilters(("ann",)), 1000, before)
            ids += [job.id for job in found]
            if not found:
                break
            before = found[-1].seq
        unfinished = {row.id for row in await service._store.read(rows.unfinished)}
        assert {job_id for job_id, _ in bench.runtime.given} == unfinished
        return ids


def test_a_job_over_the_bounds_of_today_that_an_earlier_version_took_runs_on(bench: Bench) -> None:
    """The job is shown as it was stored; a second submit of the same spec is refused."""

    async def run() -> None:
        over = {
            "stop_timer": 10**10,
            "labels": {"a\nb": "c" * 1000},
            "requirements": [" -r /etc/passwd"],
        }
        spec = JobSpec.model_validate({"script": "true", "type": "binary", **over}, context=STORED)
        code = CodeSnapshot.model_validate(
            {"sha256": "0" * 64, "root": "/a", "working_dir": ".."}, context=STORED
        )
        async with bench.server() as service:
            request = bench.request(name="one").model_copy(
                update={"spec": spec.model_copy(update={"name": "one"})}
            )
            text, _ = await service.submits.submit(ANN, request, None)
            job = JobInfo.model_validate_json(text)
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
            shown = job.model_copy(update={"code": code})
            assert JobInfo.model_validate_json(shown.model_dump_json()) == shown
        async with bench.server() as service:
            assert (await bench.info("one")).spec.model_dump() == job.spec.model_dump()
            with pytest.raises(InvalidRequest, match=r"spec.stop_timer(.|\n)*spec.labels"):
                await service.submits.resubmit(ANN, "one")
            bench.runtime.end(job.id)
            await bench.until("one", State.SUCCEEDED)

    asyncio.run(run())


def test_a_server_that_ends_begins_to_read_no_log(bench: Bench) -> None:
    async def run() -> None:
        begun, go_on = [], threading.Event()

        def read(*_: object) -> None:
            begun.append(1)
            go_on.wait(60)

        async with bench.server() as service:
            job = await bench.submit(name="one")
            threads = service.metrics._threads._max_workers
            readings = [
                asyncio.ensure_future(service.metrics._read_log(read, job))
                for _ in range(threads + 1)
            ]
            await eventually(lambda: len(begun) == threads)
        go_on.set()
        ended = await asyncio.gather(*readings, return_exceptions=True)
        assert len(begun) == threads
        assert isinstance(ended[-1], asyncio.CancelledError)

    asyncio.run(run())
