"""Jobs whose ranks wait for one that does nothing: what is said, and what hang_action does."""

import asyncio
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.files.job_dirs import log_dir
from tests.logs.support import START, LogWriter
from tests.service.bench import Bench


def process(rank: int, file: str, function: str, line: int) -> dict[str, Any]:
    dump = (
        f'Current thread 0x1 (most recent call first):\n  File "{file}", line {line} in '
        f"{function}\n"
    )
    return {"rank": rank, "pid": rank, "dump": dump + '  File "/s/train.py", line 41 in step\n'}


WAITS = process(0, "/lib/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", 9)
SLEEPS = process(1, "/s/train.py", "validate", 38)
SENTENCE = "; rank 1 is in validate (train.py:38) and has not entered it"
LASTS_S = 70.0


def with_two_ranks(bench: Bench, run: Callable[[str], Awaitable[None]], **spec: Any) -> None:
    """A running job of which both ranks have done nothing for 70 s."""

    async def main() -> None:
        async with bench.server():
            job = await bench.submit(name="one", **spec)
            bench.runtime.processes = [WAITS, SLEEPS]
            since = time.monotonic() - LASTS_S
            bench.runtime.runs(job.id, quiet=((0, since), (1, since)))
            await run(job.id)

    asyncio.run(main())


async def becomes(bench: Bench, reason: Reason) -> JobInfo:
    """The job with this reason, while time passes."""
    for _ in range(2000):
        info = await bench.info("one")
        if info.reason is reason:
            return info
        bench.clock.pass_time(0.1)
        await asyncio.sleep(0.005)
    raise AssertionError(f"{info.state} {info.reason} {info.message}")


def test_the_rank_that_others_wait_for_is_named_and_that_it_moves_again(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        info = await becomes(bench, Reason.HUNG)
        assert info.state is State.RUNNING
        assert info.message.startswith("rank 0 has waited in all_reduce (train.py:41) since ")
        assert info.message.endswith(SENTENCE)
        bench.clock.pass_time(600)
        bench.runtime.runs(job_id)
        moves = await becomes(bench, Reason.RUNNING)
        assert re.fullmatch("ranks 0-1 move again after 7[0-9] s", moves.message)
        bench.runtime.end(job_id)
        await bench.until("one", State.SUCCEEDED)
        told = [reason for _, reason, _ in await bench.events("one")]
        assert told == ["Queued", "Running", "Hung", "Running", "Completed"]
        assert bench.runtime.stopped == []

    with_two_ranks(bench, run)


def test_a_job_that_hangs_has_no_time_left_until_it_moves_again(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        found = await bench.service.lookup.by_id(job_id)
        assert found
        logs = bench.service.lookup.logs(found.public)
        log = LogWriter(log_dir(logs.job_dir, 1, 0))
        now = (bench.clock.now() - START).total_seconds()
        for step in range(1, 11):
            log.write(f"step {step}/100 loss={1 / step}", at=now - 10 + step)

        hung = (await becomes(bench, Reason.HUNG)).progress
        assert hung
        assert (hung.done, hung.metrics, hung.left_s, hung.rate) == (0.1, {"loss": 0.1}, None, None)
        bench.runtime.runs(job_id)
        moves = (await becomes(bench, Reason.RUNNING)).progress
        assert moves
        assert (moves.left_s, moves.rate) == (pytest.approx(90, abs=15), pytest.approx(1))

    with_two_ranks(bench, run)


def test_a_restart_of_the_server_repeats_nothing_and_hears_the_ranks_first(bench: Bench) -> None:
    async def first(_: str) -> None:
        await becomes(bench, Reason.HUNG)

    async def passes(seconds: float) -> list[str]:
        for _ in range(20):
            bench.clock.pass_time(seconds / 20)
            await asyncio.sleep(0.005)
        return [reason for _, reason, _ in await bench.events("one")]

    async def second() -> None:
        async with bench.server():
            job_id = (await bench.info("one")).id
            bench.runtime.runs(job_id)
            assert await passes(30) == ["Queued", "Running", "Hung"], (
                "the workers have not told yet who is quiet"
            )
            since = time.monotonic() - LASTS_S
            bench.runtime.runs(job_id, quiet=((0, since), (1, since)))
            assert await passes(100) == ["Queued", "Running", "Hung"]
            bench.runtime.runs(job_id)
            assert await passes(1) == ["Queued", "Running", "Hung", "Running"]

    async def third() -> None:
        async with bench.server():
            bench.runtime.runs((await bench.info("one")).id)
            assert (await passes(100))[-1] == "Running"
            assert (await bench.info("one")).message == "its ranks move again"

    with_two_ranks(bench, first)
    copy = bench.folder / "copy"
    shutil.copytree(bench.folder / "state", copy)
    asyncio.run(second())
    shutil.rmtree(bench.folder / "state")
    copy.rename(bench.folder / "state")
    asyncio.run(third())


def test_a_job_that_ends_while_it_hangs_does_not_move_again(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        await becomes(bench, Reason.HUNG)
        bench.runtime.end(job_id, Reason.EXIT_CODE, "rank 0 ended with exit code 1")
        await bench.until("one", State.FAILED)
        assert [reason for _, reason, _ in await bench.events("one")][-2:] == ["Hung", "ExitCode"]

    with_two_ranks(bench, run)


def test_nothing_is_said_while_the_other_rank_is_at_work(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        bench.runtime.runs(job_id, quiet=((0, time.monotonic() - LASTS_S),))
        for _ in range(50):
            bench.clock.pass_time(5)
            await asyncio.sleep(0.005)
        assert (await bench.info("one")).reason is Reason.RUNNING

    with_two_ranks(bench, run)


def test_ranks_that_wait_for_a_worker_that_has_ended_are_told(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        bench.runtime.processes = [WAITS]
        bench.runtime.missing = ["worker 1 runs no ranks now"]
        bench.runtime.runs(job_id, quiet=((0, time.monotonic() - LASTS_S),))
        for _ in range(20):
            bench.clock.pass_time(5)
            await asyncio.sleep(0.005)
        assert (await bench.info("one")).reason is Reason.RUNNING, (
            "it has not ended as far as is known"
        )
        bench.runtime.runs(job_id, quiet=((0, time.monotonic() - LASTS_S),), ended=(1,))
        info = await becomes(bench, Reason.HUNG)
        assert info.message.startswith("rank 0 has waited in all_reduce (train.py:41) since ")
        assert info.message.endswith("; worker 1 has ended")

    with_two_ranks(bench, run)


def test_a_hang_of_a_minute_ends_the_job_if_it_says_so(bench: Bench) -> None:
    async def run(_: str) -> None:
        await becomes(bench, Reason.HUNG)
        info = await bench.until("one", State.FAILED)
        assert info.reason is Reason.HUNG
        assert info.message.endswith(f"{SENTENCE} (hang_action)")

    with_two_ranks(bench, run, hang_action="stop", max_retry=1)


def test_a_hang_of_a_minute_makes_a_new_attempt_if_the_job_says_so(bench: Bench) -> None:
    async def run(job_id: str) -> None:
        info = await becomes(bench, Reason.HUNG)
        info = await bench.until("one", State.RESTARTING)
        assert info.message.startswith(
            "attempt 1 failed: rank 0 has waited in all_reduce (train.py:41) since "
        )
        while len(bench.runtime.started) < 2:
            bench.clock.pass_time(1)
            await asyncio.sleep(0.002)
        bench.runtime.runs(job_id)
        assert (await bench.until("one", State.RUNNING, 2)).reason is Reason.RUNNING

    with_two_ranks(bench, run, hang_action="retry", max_retry=1)


@pytest.mark.parametrize(("action", "named"), [("report", "retry_on"), ("stop", "hang_action")])
def test_a_hang_makes_a_new_attempt_if_retry_on_names_it(
    bench: Bench, action: str, named: str
) -> None:
    async def run(_: str) -> None:
        info = await becomes(bench, Reason.HUNG)
        info = await bench.until("one", State.RESTARTING)
        assert f"{SENTENCE} ({named}) (1 of 1 retries); " in info.message

    with_two_ranks(bench, run, hang_action=action, retry_on=["Hung"], max_retry=1)
