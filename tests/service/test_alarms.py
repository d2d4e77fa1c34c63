"""Rules about the metrics of a running job: what each action does, once in an attempt."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from client_lib.launcher_protocol.record import metric_lines
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.curves.alarms import Alarms, Finding
from server_stub.files.job_dirs import log_dir
from server_stub.service import Service, alarm_watch
from server_stub.service.attention import Seen
from server_stub.service.webhook import message_of
from tests.kit.bounds import Bounds
from tests.kit.waiting import eventually
from tests.logs.support import START, LogWriter
from tests.service.bench import Bench
from tests.service.test_notifications import Receiver, receiver as receiver, soon as soon

NAN = "alarm `nan -> {}`: loss was NaN on rank 1 from step 4"


def prints(bench: Bench, job_id: str, attempt: int = 1, bad: str = "nan") -> None:
    """Each rank prints its loss in 9 steps; the loss of rank 1 is bad from step 4 on."""
    log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job_id, attempt, 0))
    for step in range(1, 10):
        log.write(f"step {step}/9 loss={1 / step:.3f}", rank=0, at=float(step))
        log.write(f"step {step}/9 loss={bad if step > 3 else 0.5}", rank=1, at=float(step))


async def running(bench: Bench, **spec: Any) -> JobInfo:
    """A job that runs."""
    job = await bench.submit(name="one", **spec)
    bench.runtime.runs(job.id)
    await bench.until("one", State.RUNNING)
    return job


async def submitted(bench: Bench, **spec: Any) -> str:
    """A job that runs and prints."""
    job = await running(bench, **spec)
    prints(bench, job.id)
    return job.id


async def until(bench: Bench, holds: Callable[[JobInfo], bool]) -> JobInfo:
    """The job when this holds; time passes meanwhile."""
    found = []

    async def seen() -> None:
        found.append(await bench.until_info("one", holds))

    looking = asyncio.ensure_future(seen())
    while not looking.done():
        bench.clock.pass_time(1.0)
        await asyncio.sleep(0.005)
    looking.result()
    return found[0]


async def looks_go_on(bench: Bench, times: int = 3) -> None:
    """Time for some more looks."""
    for _ in range(times * 3):
        bench.clock.pass_time(1.0)
        await asyncio.sleep(0.02)


def run(bench: Bench, main: Callable[[Service], Any]) -> None:
    async def with_server() -> None:
        async with bench.server() as service:
            await main(service)

    asyncio.run(with_server())


def is_raised(info: JobInfo) -> bool:
    return len(info.alarms) > 0


async def alarm_events(bench: Bench) -> list[tuple[str, str, int]]:
    return [event for event in await bench.events("one") if event[1] == "Alarm"]


# --- notify


def test_a_notice_is_an_event_attention_and_a_message_to_the_webhook(
    bench: Bench, receiver: Receiver
) -> None:
    async def main(service: Service) -> None:
        job_id = await submitted(bench, alarm="nan -> notify", notify=receiver.url)
        info = await until(bench, is_raised)
        sentence = NAN.format("notify")
        assert (info.state, info.reason) == (State.RUNNING, Reason.RUNNING)
        assert ("alarm", sentence) in [(each.code, each.sentence) for each in info.attention]
        assert await alarm_events(bench) == [("RUNNING", "Alarm", 1)]
        await eventually(lambda: receiver.got)
        assert receiver.got[0]["event"] == "alarm"
        assert sentence in receiver.got[0]["text"]
        bench.runtime.end(job_id)
        ended = await bench.until("one", State.SUCCEEDED)
        assert "alarm" in [each.code for each in ended.attention]
        assert sentence in message_of(ended, "ended")["text"]
        assert bench.runtime.stopped == []

    run(bench, main)


def test_two_alarms_of_one_look_are_one_message(bench: Bench, receiver: Receiver) -> None:
    async def main(service: Service) -> None:
        rules = ["nan -> notify", "loss > 0.9 -> notify"]
        job_id = await submitted(bench, alarm=rules, notify=receiver.url)
        await until(bench, lambda info: len(info.alarms) == 2)
        bench.runtime.end(job_id)
        await bench.until("one", State.SUCCEEDED)
        await eventually(lambda: any(each["event"] == "ended" for each in receiver.got))
        told = [each for each in receiver.got if each["event"] == "alarm"]
        assert len({each["id"] for each in told}) == len(told)
        assert len(told[-1]["attention"]) == 2

    run(bench, main)


def test_a_rule_acts_once_also_over_a_restart_of_the_server(bench: Bench) -> None:
    async def main() -> None:
        async with bench.server():
            job_id = await submitted(bench, alarm=["nan -> notify", "loss > 10 -> notify"])
            await until(bench, is_raised)
            await looks_go_on(bench)
        async with bench.server():
            await looks_go_on(bench)
            assert await alarm_events(bench) == [("RUNNING", "Alarm", 1)]
            log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job_id, 1, 0))
            log._path = log._path.with_name(max(path.name for path in log.directory.iterdir()))
            log.write("step 10/20 loss=11", rank=0, at=10.0)
            info = await until(bench, lambda info: len(info.alarms) == 2)
            assert [each.rule for each in info.alarms] == ["nan -> notify", "loss > 10 -> notify"]

    asyncio.run(main())


def test_an_attempt_that_ends_between_two_looks_is_looked_at(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job_id = await submitted(bench, alarm="nan -> stop")
        bench.runtime.end(job_id)
        info = await bench.until("one", State.SUCCEEDED)
        assert [each.sentence for each in info.alarms] == [NAN.format("stop")]
        assert bench.runtime.stopped == []

    run(bench, main)


def test_a_job_whose_script_logs_an_infinite_step_ends(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job = await running(bench, alarm="loss rises for 200 steps -> stop")
        log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job.id, 1, 0))
        for step in (1.0, math.inf):
            line = metric_lines(0, step, {"loss": 0.5})[0]
            log.write(line.decode().strip(), rank="-", stream="metrics")
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)

    run(bench, main)


def test_a_job_whose_log_cannot_be_read_ends(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job = await running(bench, alarm="nan -> stop")
        directory = log_dir(bench.settings().data_dir / "jobs" / job.id, 1, 0)
        directory.parent.mkdir(parents=True)
        directory.symlink_to(directory)  # to list it is an OSError
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)

    run(bench, main)


def test_the_end_does_not_wait_for_a_look_that_takes_long(
    bench: Bench, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds(alarm_watch, END_S=0.1)
    may_read = asyncio.Event()

    async def main(service: Service) -> None:
        is_looking = asyncio.Event()

        async def slow_look(job: JobInfo, alarms: Alarms) -> list[Finding]:
            is_looking.set()
            await may_read.wait()
            return []

        # a disk that is slow for as long as the test wants
        monkeypatch.setattr(service.metrics, "alarms", slow_look)
        job_id = await submitted(bench, alarm="nan -> stop")
        while not is_looking.is_set():
            await looks_go_on(bench, times=1)
        bench.runtime.end(job_id)
        await bench.until("one", State.SUCCEEDED)
        may_read.set()

    run(bench, main)


def test_the_pause_after_a_look_that_took_long_has_a_bound(bench: Bench, bounds: Bounds) -> None:
    bounds(alarm_watch, PAUSE_TIMES=1e9)

    async def main(service: Service) -> None:
        job = await running(bench, alarm="nan -> notify")
        log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job.id, 1, 0))
        log.write("step 1/9 loss=1", at=1.0)
        await looks_go_on(bench)
        log.write("step 2/9 loss=nan", at=2.0)
        log.write("step 3/9 loss=nan", at=3.0)
        log.write("step 4/9 loss=nan", at=4.0)
        await until(bench, is_raised)

    run(bench, main)


def test_an_attempt_that_fails_by_itself_is_not_ended_by_a_look_meanwhile(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of the attempt waits for its log while the time of the next look comes."""
    may_end = asyncio.Event()

    async def main(service: Service) -> None:
        at_end = service.metrics.at_end

        async def slow_at_end(job: JobInfo) -> Seen:
            await may_end.wait()
            return await at_end(job)

        # a disk that is slow for as long as the test wants
        monkeypatch.setattr(service.metrics, "at_end", slow_at_end)
        job_id = await submitted(bench, alarm="nan -> stop")
        bench.runtime.end(job_id, Reason.EXIT_CODE, "rank 1 ended with exit code 1")
        await looks_go_on(bench)
        may_end.set()
        info = await bench.until("one", State.FAILED)
        assert info.reason is Reason.EXIT_CODE
        assert [each.sentence for each in info.alarms] == [NAN.format("stop")]

    run(bench, main)


def test_a_job_without_rules_or_without_a_fault_has_no_alarms(bench: Bench) -> None:
    async def main(service: Service) -> None:
        await submitted(bench, alarm="loss > 10 -> stop")
        await looks_go_on(bench)
        assert (await bench.info("one")).alarms == []
        job = await bench.submit(name="two")
        bench.runtime.runs(job.id)
        prints(bench, job.id)
        await bench.until("two", State.RUNNING)
        await looks_go_on(bench)
        assert (await bench.info("two")).alarms == []

    run(bench, main)


# --- stop


def test_a_stop_ends_the_job_with_the_reason_and_the_sentence(bench: Bench) -> None:
    async def main(service: Service) -> None:
        await submitted(bench, alarm="nan -> stop", max_retry=1)
        info = await until(bench, lambda info: info.state.final)
        assert (info.state, info.reason) == (State.FAILED, Reason.ALARM)
        assert info.message == NAN.format("stop")
        assert len(bench.runtime.stopped) == 1
        assert await bench.events("one") == [
            ("PENDING", "Queued", 1),
            ("RUNNING", "Running", 1),
            ("RUNNING", "Stopping", 1),
            ("FAILED", "Alarm", 1),
        ]

    run(bench, main)


def test_a_stop_that_is_stored_is_carried_out_by_the_next_server_and_not_given_again(
    bench: Bench,
) -> None:
    bench.runtime.stops_at_once = False

    async def main() -> None:
        async with bench.server():
            job_id = await submitted(bench, alarm="nan -> stop")
            await until(bench, lambda info: info.reason is Reason.STOPPING)
        async with bench.server():
            await looks_go_on(bench)
            bench.runtime.end(job_id, Reason.CANCELLED, "stopped")
            info = await bench.until("one", State.FAILED)
            assert (info.reason, info.message) == (Reason.ALARM, NAN.format("stop"))
            assert len(info.alarms) == 1

    asyncio.run(main())


# --- retry


def test_a_retry_starts_from_before_the_alarm(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job_id = await submitted(bench, alarm="nan -> retry", max_retry=2)
        info = await until(bench, lambda info: info.state is State.RESTARTING)
        assert info.reason is Reason.ALARM
        assert info.message == (
            f"attempt 1 failed: {NAN.format('retry')} (1 of 2 retries); the next starts in 1 s "
            "from the newest checkpoint before step 3"
        )
        assert info.alarms == []
        assert info.last_good
        assert info.last_good.time == START.replace(second=3)
        await until(bench, lambda _: bench.runtime.attempts[job_id].number == 2)
        assert bench.runtime.attempts[job_id].last_good == info.last_good
        bench.runtime.runs(job_id)
        await bench.until("one", State.RUNNING, attempt=2)
        prints(bench, job_id, attempt=2)
        info = await until(bench, lambda info: info.state is State.RESTARTING)
        assert "(2 of 2 retries)" in info.message
        await until(bench, lambda _: bench.runtime.attempts[job_id].number == 3)
        bench.runtime.runs(job_id)
        await bench.until("one", State.RUNNING, attempt=3)
        prints(bench, job_id, attempt=3)
        info = await until(bench, lambda info: info.state.final)
        assert info.message.endswith("; not retried: max_retry=2 is used up")

    run(bench, main)


def test_an_attempt_that_fails_by_itself_after_the_alarm_goes_back_too(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job_id = await submitted(bench, alarm="nan -> retry", max_retry=1)
        bench.runtime.end(job_id, Reason.EXIT_CODE, "rank 1 ended with exit code 1")
        info = await bench.until("one", State.RESTARTING)
        assert info.message.endswith("from the newest checkpoint before step 3")

    run(bench, main)


def test_an_attempt_after_another_failure_starts_from_the_last_checkpoint(bench: Bench) -> None:
    async def main(service: Service) -> None:
        job_id = await submitted(bench, alarm="nan -> retry", max_retry=2)
        await until(bench, lambda info: info.state is State.RESTARTING)
        await until(bench, lambda _: bench.runtime.attempts[job_id].number == 2)
        # it is lost before its ranks run: the next one must go back, too
        bench.runtime.end(job_id, Reason.NODE_LOST, "its node is gone")
        await until(bench, lambda _: bench.runtime.attempts[job_id].number == 3)
        assert bench.runtime.attempts[job_id].last_good
        bench.runtime.runs(job_id)
        await bench.until("one", State.RUNNING, attempt=3)
        bench.runtime.end(job_id, Reason.NODE_LOST, "its node is gone")
        await until(bench, lambda _: bench.runtime.attempts[job_id].number == 4)
        assert bench.runtime.attempts[job_id].last_good is None

    run(bench, main)


def test_a_retry_survives_a_restart_of_the_server(bench: Bench) -> None:
    bench.runtime.stops_at_once = False

    async def main() -> None:
        async with bench.server():
            job_id = await submitted(bench, alarm="nan -> retry", max_retry=1)
            await until(bench, lambda info: info.reason is Reason.STOPPING)
        async with bench.server():
            bench.runtime.end(job_id, Reason.CANCELLED, "stopped")
            await bench.until("one", State.RESTARTING)
        async with bench.server():
            await until(bench, lambda _: bench.runtime.attempts[job_id].number == 2)
            last_good = bench.runtime.attempts[job_id].last_good
            assert last_good
            assert last_good.step == 3.0
            assert bench.runtime.started == [(job_id, 1), (job_id, 2)]

    asyncio.run(main())


@pytest.mark.parametrize(("rule", "step"), [("loss > 10 for 2 steps -> retry", 3.0)])
def test_a_loss_that_is_too_high_goes_back_as_well(bench: Bench, rule: str, step: float) -> None:
    async def main(service: Service) -> None:
        job = await running(bench, alarm=rule, max_retry=1)
        prints(bench, job.id, bad="25.0")
        info = await until(bench, lambda info: info.state is State.RESTARTING)
        assert info.last_good
        assert info.last_good.step == step

    run(bench, main)


# --- client_lib.alert


def alerts(bench: Bench, job_id: str, *titles: str) -> None:
    """Both ranks call client_lib.alert with each title."""
    log = LogWriter(log_dir(bench.settings().data_dir / "jobs" / job_id, 1, 0))
    for title in titles:
        for rank in (1, 0):
            item = [title, "it is 3 times the usual"]
            log.write(json.dumps([rank, "alert", item]), rank="-", stream="metrics")


def test_an_alert_of_the_script_is_an_event_attention_and_a_message(
    bench: Bench, receiver: Receiver
) -> None:
    async def main(service: Service) -> None:
        job = await running(bench, notify=receiver.url)
        alerts(bench, job.id, "loss\x1b is high")
        info = await until(bench, is_raised)
        sentence = "alert of rank 1: loss is high: it is 3 times the usual"
        assert [(each.code, each.sentence) for each in info.attention] == [("alarm", sentence)]
        await eventually(lambda: receiver.got)
        assert sentence in receiver.got[0]["text"]
        await looks_go_on(bench)
        bench.runtime.end(job.id)
        ended = await bench.until("one", State.SUCCEEDED)
        assert [each.sentence for each in ended.attention] == [sentence]
        assert await alarm_events(bench) == [("RUNNING", "Alarm", 1)]

    run(bench, main)


def test_alerts_of_a_job_that_nobody_watches_are_seen_when_asked_for_and_at_its_end(
    bench: Bench,
) -> None:
    async def main(service: Service) -> None:
        job = await running(bench)
        alerts(bench, job.id, *map(str, range(30)))
        seen = (await bench.info("one")).attention
        assert len(seen) == 10  # 20 alerts of a worker, two of each title
        bench.runtime.end(job.id)
        ended = await bench.until("one", State.SUCCEEDED)
        assert ended.attention == seen
        assert len(await alarm_events(bench)) == 10

    run(bench, main)
