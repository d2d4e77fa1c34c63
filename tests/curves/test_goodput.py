"""The use of a job's time: of simulated jobs, whose parts are known."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import example, given, strategies as st

from client_lib.spec.metrics import PARTS
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event
from server_stub.curves.goodput import Marks, split
from server_stub.curves.lag import SeenStep

CREATED = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)
STEP_S, QUEUED_S, STARTING_S, IMPORT_S = 0.5, 30.0, 3.0, 4.0


def event(at: float, state: State, reason: Reason, attempt: int = 1) -> Event:
    return Event(
        time=CREATED + timedelta(seconds=at),
        attempt=attempt,
        state=state,
        reason=reason,
        message="",
    )


class Counted(float):
    """A number that counts its comparisons with others."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < other

    def __le__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) <= other

    def __ge__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) >= other


class Simulated:
    """A job that runs step by step. `collectives`: its steps are seen there, else only printed."""

    def __init__(self, collectives: bool, lag_s: float) -> None:
        self.at, self.collectives, self.lag_s = 0.0, collectives, lag_s
        self.expected = dict.fromkeys(PARTS, 0.0)
        self.attempts: dict[int, Marks] = {}
        self.events = [event(0, State.PENDING, Reason.QUEUED)]
        self.spend("queued", QUEUED_S)
        self.events.append(event(self.at, State.PENDING, Reason.STARTING))

    def spend(self, use: str, seconds: float) -> None:
        self.expected[use] += seconds
        self.at += seconds

    def run(self, first: int, last: int, repeated_to: int = 0, checkpoint_every: int = 0) -> None:
        attempt = len(self.attempts) + 1
        self.spend("starting", STARTING_S)
        self.events.append(event(self.at, State.RUNNING, Reason.RUNNING, attempt))
        self.spend("starting", IMPORT_S)
        seen, printed, written = [], [], []
        for step in range(first, last + 1):
            begin = self.at
            lag_s = self.lag_s if self.collectives else 0.0
            if step <= repeated_to:
                self.spend("repeated", STEP_S + lag_s)
            else:
                self.spend("lag", lag_s)
                self.spend("steps", STEP_S)
            printed.append((CREATED.timestamp() + self.at, float(step)))
            if checkpoint_every and step % checkpoint_every == 0:
                self.spend("checkpoints", 2.0)
                written.append(CREATED.timestamp() + self.at - 0.1)
            if self.collectives:
                at = CREATED.timestamp() + begin
                seen.append(SeenStep(at, self.at - begin, step - first, {0: 0.0, 1: lag_s}))
        self.attempts[attempt] = Marks(seen, printed, written)
        self.events.append(event(self.at, State.RESTARTING, Reason.EXIT_CODE, attempt))

    def split(self) -> dict[str, float]:
        self.events[-1] = event(self.at, State.SUCCEEDED, Reason.COMPLETED, len(self.attempts))
        return split(self.events, CREATED + timedelta(seconds=self.at), self.attempts)


@given(
    st.booleans(),
    st.floats(0, 0.4),
    st.sampled_from([0, 7, 10]),
    st.integers(20, 60),
    st.integers(0, 19),
)
def test_each_part_of_a_simulated_job(
    collectives: bool, lag_s: float, checkpoint_every: int, steps: int, resumed: int
) -> None:
    job = Simulated(collectives, lag_s)
    job.run(1, steps, checkpoint_every=checkpoint_every)
    job.run(resumed + 1, steps + 20, repeated_to=steps, checkpoint_every=checkpoint_every)
    found = job.split()
    assert sum(found.values()) == pytest.approx(job.at)
    assert min(found.values()) >= 0
    for part in PARTS:
        assert found[part] == pytest.approx(job.expected[part], abs=0.05 * job.at), part


@example([(1.5, 1.0), (2.0, 2.0), (1.0, 3.0)], [])  # a clock that was set back
@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=20),
    st.lists(st.floats(0, 100), max_size=9),
)
def test_any_marks_give_parts_that_sum_up_to_the_whole(
    printed: list[tuple[float, float]], written: list[float]
) -> None:
    start = CREATED.timestamp()
    marks = Marks((), [(start + at, step) for at, step in printed], [start + at for at in written])
    events = [event(0, State.PENDING, Reason.QUEUED), event(10, State.RUNNING, Reason.RUNNING)]
    found = split(events, CREATED + timedelta(seconds=90), {1: marks})
    assert sum(found.values()) == pytest.approx(90)
    assert min(found.values()) >= -1e-6


@pytest.mark.parametrize(("waited", "first"), [(10.0, "queued"), (0.2, "starting")])
def test_a_job_without_steps_has_time_of_its_script(waited: float, first: str) -> None:
    events = [event(0, State.PENDING, Reason.QUEUED), event(waited, State.RUNNING, Reason.RUNNING)]
    found = split(events, CREATED + timedelta(seconds=30), {1: Marks((), (), ())})
    assert {name: seconds for name, seconds in found.items() if seconds} == {
        first: waited,
        "script": 30 - waited,
    }


@given(st.floats(0, 60))
def test_the_time_after_the_last_step_of_an_ended_run_is_its_ending(ending: float) -> None:
    job = Simulated(collectives=True, lag_s=0.0)
    job.run(1, 20)
    job.spend("ending", ending)
    assert job.split() == pytest.approx(job.expected, abs=1e-3)


@pytest.mark.parametrize(("after", "use"), [(15.0, "steps"), (600.0, "unknown")])
@pytest.mark.parametrize("stopped", [True, False])
def test_the_time_after_the_last_step_of_a_stopped_or_running_job_is_no_ending(
    after: float, use: str, stopped: bool
) -> None:
    job = Simulated(collectives=True, lag_s=0.0)
    job.run(1, 20)
    job.events.pop()
    job.spend(use, after)
    if stopped:
        job.events.append(event(job.at, State.RUNNING, Reason.STOPPING))
        job.spend("ending", 3.0)
        job.events.append(event(job.at, State.CANCELLED, Reason.CANCELLED))
    assert split(job.events, CREATED + timedelta(seconds=job.at), job.attempts) == pytest.approx(
        job.expected, abs=1e-3
    )


def test_a_pause_that_writes_no_checkpoint_is_not_known() -> None:
    job = Simulated(collectives=True, lag_s=0.0)
    job.run(1, 20)
    marks = job.attempts[1]
    later = [step._replace(begin=step.begin + 5.0 * (step.number > 9)) for step in marks.seen]
    job.attempts[1] = marks._replace(seen=later)
    job.at += 5.0
    assert job.split()["unknown"] == pytest.approx(5.0, abs=0.01)


def test_many_checkpoints_are_not_compared_with_each_step() -> None:
    start, steps = CREATED.timestamp(), 2000
    printed = [(start + at, float(at)) for at in range(steps)]
    # in any order
    written = [Counted("nan"), *(Counted(start + at + 0.5) for at in range(steps, 0, -4))]
    events = [event(0, State.PENDING, Reason.QUEUED), event(0, State.RUNNING, Reason.RUNNING)]
    found = split(events, CREATED + timedelta(seconds=steps), {1: Marks((), printed, written)})
    assert sum(found.values()) == pytest.approx(steps)
    assert 0 < Counted.compared < 20 * (steps + len(written))
