"""What deserves attention: when it is decided, where it is kept, and who is told."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from client_lib.spec.request import GroupMember, GroupRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Attention, JobInfo, JobPage
from server_stub.files.job_dirs import log_dir
from server_stub.service import Service, job_metrics
from server_stub.service.attention import Seen, attention
from server_stub.service.job_json import with_live
from server_stub.service.webhook import message_of
from server_stub.store.rows import JobFilters
from tests.kit.bounds import Bounds
from tests.kit.waiting import eventually
from tests.logs.support import LogWriter
from tests.service.bench import ANN, Bench, status
from tests.service.test_hangs import becomes, with_two_ranks

SENTENCE = "loss was NaN on rank 1 from step 3 (rank 0: finite)"
LOST = [Attention(code="loss", sentence=SENTENCE)]


def prints(bench: Bench, job_id: str, of_ranks: Sequence[str], attempt: int = 1) -> None:
    """Each rank prints its loss in 5 steps; from step 3 on the value that is given for the rank."""
    log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job_id, attempt, 0))
    for step in range(1, 6):
        for rank, later in enumerate(of_ranks):
            log.write(f"step {step}/5 loss={later if step > 2 else 1 / step}", rank=str(rank))


def shown(text: bytes) -> JobPage:
    return JobPage.model_validate_json(text)


async def listed(service: Service, **wanted: Any) -> JobPage:
    return shown(await service.page(ANN, JobFilters(**wanted), 100, None))


def run(bench: Bench, main: Callable[[Service], Any]) -> None:
    async def with_server() -> None:
        async with bench.server() as service:
            await main(service)

    asyncio.run(with_server())


# --- the decision


@pytest.mark.parametrize(
    ("state", "reason", "codes"),
    [
        (State.PENDING, Reason.QUEUED, []),
        (State.RUNNING, Reason.RUNNING, ["loss", "slow"]),
        (State.RUNNING, Reason.HUNG, ["hung", "loss", "slow"]),
        (State.RESTARTING, Reason.HUNG, ["loss"]),
        (State.SUCCEEDED, Reason.COMPLETED, ["loss"]),
        (State.FAILED, Reason.HUNG, ["loss"]),
    ],
)
def test_a_hang_and_a_slow_rank_matter_while_the_job_runs_and_a_lost_loss_always(
    state: State, reason: Reason, codes: list[str]
) -> None:
    info = status(state=state, reason=reason, message="rank 0 waits").info
    seen = Seen(SENTENCE, ["rank 3 is slow"]) if state is not State.PENDING else Seen()
    assert [each.code for each in attention(info, seen)] == codes
    assert attention(status(state=State.SUCCEEDED, reason=Reason.COMPLETED).info) == []


# --- at the end of a job


def test_a_nan_of_another_rank_is_stored_with_the_end_and_changes_neither_state_nor_reason(
    bench: Bench,
) -> None:
    async def main(service: Service) -> None:
        job = await bench.submit(name="one", n_workers=1)
        bench.runtime.runs(job.id)
        prints(bench, job.id, ["0.5", "nan"])
        bench.runtime.end(job.id)
        ended = await bench.until("one", State.SUCCEEDED)
        assert (ended.reason, ended.attention) == (Reason.COMPLETED, LOST)
        page = await listed(service)
        assert page.jobs[0].attention == LOST
        assert page.jobs[0].progress is None
        found = JobInfo.model_validate_json(await service.get(ANN, "one"))
        assert found.attention == LOST
        assert found.progress
        assert found.progress.nan == SENTENCE
        told = message_of(ended, "ended")
        assert told["attention"] == [{"code": "loss", "sentence": SENTENCE}]
        assert told["text"].endswith(f"; {SENTENCE}")

    run(bench, main)


def test_healthy_jobs_and_a_retry_that_went_well_have_none(bench: Bench) -> None:
    async def main(service: Service) -> None:
        healthy = await bench.submit(name="healthy")
        again = await bench.submit(name="again", max_retry=1)
        for job in (healthy, again):
            bench.runtime.runs(job.id)
        prints(bench, healthy.id, ["0.5", "0.25"])
        prints(bench, again.id, ["0.5", "nan"])
        bench.runtime.end(healthy.id)
        bench.runtime.end(again.id, Reason.EXIT_CODE)
        await bench.until("again", State.RESTARTING)
        await eventually(lambda: bench.clock.next_in_s() <= 2)
        bench.clock.pass_time(2)
        await eventually(lambda: bench.runtime.attempts[again.id].number == 2)
        bench.runtime.runs(again.id)
        prints(bench, again.id, ["0.5", "0.25"], attempt=2)
        bench.runtime.end(again.id)
        await bench.until("healthy", State.SUCCEEDED)
        await bench.until("again", State.SUCCEEDED)
        assert [job.attention for job in (await listed(service)).jobs] == [[], []]

    run(bench, main)


def test_the_end_does_not_wait_for_a_log_that_takes_long(
    bench: Bench, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shows is found when somebody asks for the job."""
    bounds(job_metrics, END_S=0.1)
    may_read = threading.Event()

    async def main(service: Service) -> None:
        look = service.metrics._look

        def slow_look(*asked: Any) -> Seen:
            may_read.wait(20)
            return look(*asked)

        # a disk that is slow for as long as the test wants
        monkeypatch.setattr(service.metrics, "_look", slow_look)
        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        prints(bench, job.id, ["nan"])
        bench.runtime.end(job.id)
        await eventually(lambda: not service._jobs.by_id)
        assert not may_read.is_set()
        assert (await listed(service)).jobs[0].attention == []
        may_read.set()
        found = JobInfo.model_validate_json(await service.get(ANN, "one"))
        assert [each.code for each in found.attention] == ["loss"]

    run(bench, main)


def test_a_job_that_is_not_observed_is_not_looked_at(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job = await bench.submit(name="one", observe=False)
        bench.runtime.runs(job.id)
        prints(bench, job.id, ["nan"])
        bench.runtime.end(job.id)
        assert (await bench.until("one", State.SUCCEEDED)).attention == []
        assert JobInfo.model_validate_json(await service.get(ANN, "one")).attention == []

    run(bench, main)


# --- while it runs


def test_a_hang_is_told_in_lists_and_by_the_webhook_until_the_job_moves(bench: Bench) -> None:
    async def main(job_id: str) -> None:
        hung = await becomes(bench, Reason.HUNG)
        expected = [Attention(code="hung", sentence=hung.message)]
        assert hung.attention == expected
        assert message_of(hung, "hangs")["attention"] == [expected[0].model_dump()]
        bench.runtime.runs(job_id)
        assert (await becomes(bench, Reason.RUNNING)).attention == []

    with_two_ranks(bench, main)


def test_a_list_looks_at_the_logs_of_ended_jobs_never(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(service: Service) -> None:
        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        prints(bench, job.id, ["0.5", "nan"])
        await bench.until("one", State.RUNNING)
        assert (await listed(service)).jobs[0].attention == LOST
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)

        def look(*_: Any) -> Seen:
            raise AssertionError("it reads the log")

        # only a look that fails shows that there was none
        monkeypatch.setattr(service.metrics, "_look", look)
        assert (await listed(service)).jobs[0].attention == LOST

    run(bench, main)


def test_a_job_that_waits_for_one_that_hangs_deserves_attention_until_that_moves(
    bench: Bench,
) -> None:
    async def main(job_id: str) -> None:
        await bench.submit(name="next", after=["ok:one"])
        await becomes(bench, Reason.HUNG)
        waiting = await bench.until_info("next", lambda info: bool(info.attention))
        sentence = "waits for one (RUNNING, hangs) to succeed"
        expected = Attention(code="stuck", sentence=sentence)
        assert (waiting.attention, waiting.message) == ([expected], sentence)
        assert (await listed(bench.service, name_prefix="next")).jobs[0].attention == [expected]
        bench.runtime.runs(job_id)
        await becomes(bench, Reason.RUNNING)
        await bench.until_info("next", lambda info: not info.attention)

    with_two_ranks(bench, main)


# --- groups


def test_the_row_of_a_group_names_a_member_that_has_ended_or_that_runs(bench: Bench) -> None:
    async def main(service: Service) -> None:
        members = [GroupMember(args=[str(number)]) for number in range(3)]
        order = GroupRequest(name="scan", request=bench.request(), members=members)
        await service.submits.submit_group(ANN, order, None)
        ids = {job.name: job.id for job in (await listed(service, group="scan")).jobs}
        for job_id in ids.values():
            bench.runtime.runs(job_id)
        prints(bench, ids["scan-0"], ["0.5", "0.25"])
        prints(bench, ids["scan-1"], ["0.5", "nan"])
        prints(bench, ids["scan-2"], ["0.5", "nan"])
        await bench.until("scan-1", State.RUNNING)
        await bench.until("scan-2", State.RUNNING)
        (group,) = (await listed(service, group="")).groups
        expected = f"scan-1: {SENTENCE} (and 1 more job)"
        assert group.attention == [Attention(code="loss", sentence=expected)]
        for job_id in ids.values():
            bench.runtime.end(job_id)
        for name in ids:
            await bench.until(name, State.SUCCEEDED)
        (group,) = (await listed(service, group="")).groups
        assert group.attention == [Attention(code="loss", sentence=expected)]
        assert (await service.lookup.group(ANN, "scan", None)).attention == group.attention

    run(bench, main)


def test_a_job_of_an_older_version_is_joined_with_what_its_log_shows(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job = await bench.submit(name="one")
        bench.runtime.runs(job.id)
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)
        prints(bench, job.id, ["0.5", "nan"])
        found = await service.lookup.find(ANN, "one", None)
        stored = json.loads(found.row.info)
        del stored["attention"]
        older = found.row._replace(info=json.dumps(stored, separators=(",", ":")))
        live = await service.metrics.details(ANN, found.public)
        assert live
        text = with_live(older.info.encode(), [], live)
        assert JobInfo.model_validate_json(text).attention == LOST

    run(bench, main)
