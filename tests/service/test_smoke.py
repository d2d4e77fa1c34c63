"""Short trials of a job: when they end, and how."""

import asyncio
from collections.abc import Sequence

import pytest

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.files.job_dirs import log_dir
from server_stub.service.watchdog import SMOKE_S
from tests.logs.support import LogWriter
from tests.service.bench import Bench


def smoke(bench: Bench, lines: Sequence[str], restarts: int = 0) -> tuple[int, JobInfo]:
    """Seconds of running until a trial that has printed these lines is stopped, and
    the job when it has ended.
    """

    async def main() -> tuple[int, JobInfo]:
        async with bench.server():
            bench.runtime.stops_at_once = False
            job = await bench.submit(name="one", smoke=True)
            bench.runtime.runs(job.id)
            await bench.until("one", State.RUNNING)
        for _ in range(restarts):
            async with bench.server():
                await bench.until("one", State.RUNNING)
        async with bench.server() as service:
            found = await service.lookup.by_id(job.id)
            assert found
            log = LogWriter(log_dir(service.lookup.logs(found.public).job_dir, 1, 0))
            for line in lines:
                log.write(line)
            seconds = 0
            while not bench.runtime.stopped:
                assert seconds <= SMOKE_S, "it was not stopped"
                seconds += 1
                bench.clock.pass_time(1.0)
                while not bench.runtime.stopped and bench.clock.next_in_s() > 1:  # noqa: ASYNC110  (the log is read)
                    await asyncio.sleep(0.01)
            bench.runtime.end(job.id, Reason.CANCELLED, "the ranks ended")
            return seconds, await bench.until_info("one", lambda info: info.state.final)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("lines", "because"),
    [
        ([f"step {step} loss={1 / step}" for step in (1, 2, 3)], "3 values of loss"),
        ([f"step {step}/200" for step in (1, 2, 3)], "3 marks of progress"),
    ],
)
def test_the_first_steps_end_it(bench: Bench, lines: list[str], because: str) -> None:
    seconds, info = smoke(bench, lines, restarts=1)
    assert seconds <= 3
    assert (info.state, info.reason, info.message) == (
        State.SUCCEEDED,
        Reason.COMPLETED,
        f"smoke test passed: {because}",
    )


def test_without_steps_it_ends_after_its_time(bench: Bench) -> None:
    seconds, info = smoke(bench, ["step 1 loss=1.0", "step 2 loss=0.9", "step 1/200"])
    assert seconds >= SMOKE_S - 1
    assert (info.state, info.message) == (
        State.SUCCEEDED,
        f"smoke test passed: no failure in {SMOKE_S} s",
    )
