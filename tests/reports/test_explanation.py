"""`explain`: from a job and its events to why it waits, why it failed, and what to do."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib import Client, Job, JobFailed
from client_lib.cli.app import COMMANDS
from client_lib.reports import explanation
from client_lib.spec.job import Condition
from client_lib.spec.replace import replaced
from client_lib.spec.request import Dependency
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Attention, Event, Failure, JobInfo, JobProgress, WorkerInfo
from server_stub.http.page import views
from tests.kit.jobs import job_info

T0 = datetime(2026, 11, 21, 10, 0, tzinfo=timezone.utc)


def job_at_t0(state: State, reason: Reason, message: str = "", **more: Any) -> JobInfo:
    return job_info("train", state, reason, message, created_at=T0, runtime="kubernetes", **more)


def event(
    seconds: float, state: State, reason: Reason, message: str = "", attempt: int = 1
) -> Event:
    return Event(
        time=T0 + timedelta(seconds=seconds),
        attempt=attempt,
        state=state,
        reason=reason,
        message=message,
    )


def lines(info: JobInfo, *events: Event, after_s: float = 100) -> list[str]:
    told = explanation.explain(info, events, T0 + timedelta(seconds=after_s), explanation.SHELL)
    return explanation.as_text(told).splitlines()


def test_a_pending_job_says_why_for_how_long_and_what_came_before() -> None:
    full = "0/3 nodes have 8 nvidia.com/gpu free"
    info = job_at_t0(State.PENDING, Reason.UNSCHEDULABLE, full)
    events = [
        event(0, State.PENDING, Reason.QUEUED, "accepted"),
        event(8, State.PENDING, Reason.UNSCHEDULABLE, full),
    ]
    first, head, accepted, refused, step, *rest = lines(info, *events, after_s=200)
    assert first == f"job train is PENDING (Unschedulable), for 3m12s: {full}"
    assert head == "what happened:"
    assert accepted.endswith("PENDING (Queued): accepted")
    assert refused.endswith(f"PENDING (Unschedulable): {full}")
    assert step.startswith("next: it starts by itself")
    assert rest == []


def test_the_time_counts_from_the_newest_entry_into_the_state() -> None:
    queued, running = (State.PENDING, Reason.QUEUED), (State.RUNNING, Reason.RUNNING)
    events = [
        event(0, *queued),
        event(10, *running),
        event(20, *queued),
        event(30, *queued, "a remark"),
    ]
    assert "for 1m20s" in lines(job_at_t0(*queued), *events)[0]


def test_a_worker_that_has_something_of_its_own_to_say_is_named() -> None:
    workers = [
        WorkerInfo(worker=0, state="running", message=None),
        WorkerInfo(worker=1, state="waiting", message="image 'x:y' can't be pulled: not found"),
        WorkerInfo(worker=2, state="waiting", message="the job's own sentence"),
    ]
    shown = lines(
        job_at_t0(State.PENDING, Reason.IMAGE_PULL, "the job's own sentence", workers=workers)
    )
    assert shown[1:-1] == ["worker 1 waiting: image 'x:y' can't be pulled: not found"]


def test_a_failed_job_is_its_report_with_the_known_cause_first_among_the_steps() -> None:
    failure = Failure(
        rank=3, worker=1, exit_code=1, exception="ValueError: no", last_lines=["a"], hint="set X"
    )
    shown = lines(job_at_t0(State.FAILED, Reason.EXIT_CODE, failure=failure, finished_at=T0))
    assert shown[0].startswith("job train FAILED (ExitCode): rank 3 on worker 1")
    assert "ValueError: no" in shown
    assert shown[-2:] == [
        "hint: set X",
        "next: `client-lib logs train --rank 3` shows its output",
    ]


@pytest.mark.parametrize("state", [State.CANCELLED, State.FAILED, State.RESTARTING])
def test_an_attempt_that_was_stopped_shows_where_its_ranks_stood(state: State) -> None:
    info = job_at_t0(
        state,
        Reason.TIMEOUT,
        "it ran for 5 min",
        stacks=["rank 0: load (data.py:3)"],
        finished_at=T0,
    )
    assert lines(info)[1:3] == ["Before it was stopped:", "    rank 0: load (data.py:3)"]
    assert explanation.explained(info, [], T0).stacks == info.stacks
    again = job_at_t0(State.RUNNING, Reason.RUNNING, stacks=info.stacks, attempt=2)
    assert "Before it was stopped:" not in lines(again)


def test_a_pause_between_attempts_says_that_it_goes_on_by_itself() -> None:
    events = [
        event(0, State.RUNNING, Reason.RUNNING),
        event(5, State.RESTARTING, Reason.NODE_LOST, attempt=2),
    ]
    shown = lines(
        job_at_t0(State.RESTARTING, Reason.NODE_LOST, "node n1 is gone", attempt=2), *events
    )
    assert "attempt 1 RUNNING" in shown[2]
    assert "attempt 2 RESTARTING" in shown[3]
    assert shown[-1] == "next: nothing to do: all workers are started again"


def test_many_events_are_cut_to_the_newest_and_the_cut_is_said() -> None:
    events = [event(n, State.PENDING, Reason.QUEUED, f"event {n}") for n in range(30)]
    shown = lines(job_at_t0(State.PENDING, Reason.QUEUED), *events)
    assert shown[2].strip() == "18 earlier: `client-lib status train --events`"
    assert "event 29" in shown[-2]
    assert len(shown) == 3 + explanation.EVENTS + 1


def test_a_clock_that_runs_behind_the_servers_makes_no_negative_time() -> None:
    assert "for 0s" in lines(job_at_t0(State.PENDING, Reason.QUEUED), after_s=-50)[0]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_next_step_whose_commands_exist(reason: Reason) -> None:
    text = "\n".join(lines(job_at_t0(State.RUNNING, reason)))
    commands = re.findall(r"`client-lib (\S+?)[ `]", text)
    assert "next: " in text
    assert set(commands) <= set(COMMANDS)
    assert "{" not in text
    in_python = explanation.as_text(explanation.advice(job_at_t0(State.RUNNING, reason)))
    assert "client-lib" not in in_python
    for code in re.findall(r"`(.*?)`", in_python):
        assert re.match(r"(job\.[a-z]+|client_lib\.resubmit|client_lib\.Client)\(", code)


SPELLINGS = {"shell": explanation.SHELL, "python": explanation.PYTHON, "page": views.SPELLING}
ENDS: dict[Condition, str] = {"ok": "has succeeded", "failed": "has failed", "any": "has ended"}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("state", State)
def test_each_spelling_has_the_words_of_each_reason(
    state: State, reason: Reason, spelling: explanation.Spelling
) -> None:
    failure = Failure(rank=1) if state is State.FAILED else None
    unmet = Dependency(name="first", id="i", condition="failed", ended=State.SUCCEEDED)
    for dependencies in ([], [unmet]):
        info = job_at_t0(state, reason, failure=failure, dependencies=dependencies)
        told = explanation.as_text(explanation.explain(info, [], T0, spelling))
        assert "{" not in told


@given(st.lists(st.sampled_from(list(ENDS)), min_size=1, max_size=6))
def test_a_job_that_waits_for_others_does_not_wait_for_room(conditions: list[Condition]) -> None:
    dependencies = [
        Dependency(name=f"job-{n}", id=str(n), condition=condition)
        for n, condition in enumerate(conditions)
    ]
    info = job_at_t0(State.PENDING, Reason.QUEUED, dependencies=dependencies)
    step = lines(info)[-1]
    assert "room" not in step
    for dependency in dependencies[:3]:
        assert f"{dependency.name} {ENDS[dependency.condition]}" in step
    assert ("more" in step) == ("can't happen any more" in step or len(dependencies) > 3)
    assert ("can't happen" in step) == ({*conditions} != {"any"})
    ended = [replaced(each, ended=State.FAILED) for each in dependencies]
    assert "room" in lines(replaced(info, dependencies=ended))[-1]


@pytest.mark.parametrize(
    ("condition", "ended", "step"),
    [
        ("ok", State.FAILED, "next: run the job that the message names again, then this job"),
        (
            "failed",
            State.SUCCEEDED,
            "next: nothing to do: this job was to run only if first failed; `client-",
        ),
        (
            "failed",
            State.CANCELLED,
            "next: nothing to do: this job was to run only if first failed; `client-",
        ),
    ],
)
def test_a_job_whose_dependency_ended_otherwise_says_what_is_left_to_do(
    condition: Condition, ended: State, step: str
) -> None:
    dependency = Dependency(name="first", id="i", condition=condition, ended=ended)
    info = job_at_t0(State.FAILED, Reason.DEPENDENCY_FAILED, dependencies=[dependency])
    assert lines(info)[-1].startswith(step)


def test_what_deserves_attention_is_in_the_first_line_or_else_a_hint() -> None:
    told = [Attention(code="loss", sentence="loss was NaN from step 5")]
    ended = job_at_t0(State.SUCCEEDED, Reason.COMPLETED, attention=told)
    shown = lines(ended)
    assert shown[0].endswith("; loss was NaN from step 5")
    assert not any(line.startswith("hint: ") for line in shown)
    assert explanation.explained(ended, [], T0).attention == told
    failed = job_at_t0(State.FAILED, Reason.EXIT_CODE, attention=told)
    shown = lines(failed)
    assert "NaN" not in shown[0]
    assert "hint: loss was NaN from step 5" in shown
    slow = job_at_t0(
        State.SUCCEEDED, Reason.COMPLETED, progress=JobProgress(slow="rank 3 is slow: ...")
    )
    assert "hint: rank 3 is slow: ..." in lines(slow)
    hung = [Attention(code="hung", sentence="rank 0 waits")]
    waits = job_at_t0(State.RUNNING, Reason.HUNG, message="rank 0 waits", attention=hung)
    assert "\n".join(lines(waits)).count("rank 0 waits") == 1


def test_a_real_failed_job_explains_itself(
    folder: Path, client: Client, script: Callable[..., str]
) -> None:
    made = Job(script=script("raise ValueError('too many values')\n"), client=client)
    made.submit()
    with pytest.raises(JobFailed):
        made.wait(timeout=60)
    text = made.explain()
    assert "ValueError: too many values" in text
    assert "PENDING (Queued)" in text
    assert "next: `job.logs(rank=0)`" in text


@pytest.fixture
def script(folder: Path) -> Callable[..., str]:
    def write(code: str) -> str:
        (folder / "train.py").write_text(code)
        return "train.py"

    return write
