"""The life of a job, from the submit to its end."""

from __future__ import annotations

import asyncio

from client_lib.spec.states import State
from tests.service.bench import Bench


def test_a_job_runs_to_its_end_and_every_step_is_an_event(bench: Bench) -> None:
    async def run() -> None:
        async with bench.server():
            job = await bench.submit(name="one")
            assert (job.state, job.version, job.attempt, job.owner) == (State.PENDING, 1, 1, "ann")
            bench.runtime.runs(job.id)
            running = await bench.until("one", State.RUNNING)
            assert running.started_at == bench.clock.now()
            bench.runtime.end(job.id)
            ended = await bench.until("one", State.SUCCEEDED)
            assert ended.finished_at
            assert await bench.events("one") == [
                ("PENDING", "Queued", 1),
                ("RUNNING", "Running", 1),
                ("SUCCEEDED", "Completed", 1),
            ]

    asyncio.run(run())
