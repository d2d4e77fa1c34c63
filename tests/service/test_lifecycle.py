"""The state machine against a model: whatever a runtime says and whoever asks, in any order. And
its messages, counts and pauses; which state follows which is the table of test_transitions.py.
"""

import re
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from client_lib.spec.replace import replaced
from client_lib.spec.states import Reason, State, check_transition
from client_lib.spec.wire import Event, Failure
from server_stub.runtimes import Observation
from server_stub.service import lifecycle
from server_stub.service.lifecycle import Decision, JobStatus, Stop, pause_before
from tests.kit.examples import examples
from tests.service.bench import T0, status

WAITING = [Reason.QUEUED, Reason.UNSCHEDULABLE, Reason.STARTING, Reason.CODE_FETCH]
FAILURES = [
    Reason.EXIT_CODE,
    Reason.SIGNAL,
    Reason.OUT_OF_MEMORY,
    Reason.START_FAILED,
    Reason.STORAGE_FULL,
]
LOSSES = [Reason.NODE_LOST, Reason.PREEMPTED, Reason.UNSCHEDULABLE]
CANCEL = Stop(Reason.CANCELLED, "cancelled by ann")
INTERRUPT = Stop(Reason.CANCELLED, "cancelled by ann", interrupt=True)
TIMEOUT = Stop(Reason.TIMEOUT, "too long")
HUNG_RESTART = Stop(Reason.HUNG_SILENT, "silent", retry=True)
HUNG = Stop(Reason.HUNG_SILENT, "silent")


@dataclass
class Model:
    """What must hold, in the simplest words: counts, not states."""

    max_retry: int
    max_infrastructure_retry: int = 0
    failed_attempts: int = 0
    infrastructure_retries: int = 0
    asked: Stop | None = None
    final: State | None = None
    started: bool = False
    pausing: bool = False
    history: list[Event] = field(default_factory=list)


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.job = status()
        self.model = Model(0)
        self.now = T0

    def take(self, decision: Decision | None) -> None:
        if decision is None:
            return
        state = self.job.info.state
        for step in decision.transitions:
            check_transition(state, step.state)
            state = step.state
        assert state is decision.status.info.state, "the steps lead where the decision says"
        if decision.transitions:
            assert decision.transitions[-1].message == decision.status.info.message
        self.model.history.extend(decision.transitions)
        self.job = decision.status

    def see(
        self,
        phase: str,
        reason: Reason,
        message: str = "m",
        attempt: int | None = None,
        ran: bool = False,
    ) -> None:
        number = self.job.info.attempt if attempt is None else attempt
        started_at = self.now if ran else None
        seen = Observation("j", number, phase, reason, message, started_at=started_at)  # type: ignore[arg-type]
        self.take(lifecycle.observe(self.job, seen, self.now))

    @precondition(lambda self: not self.model.history)
    @rule(max_retry=st.integers(0, 3), max_infrastructure_retry=st.integers(0, 3))
    def begin(self, max_retry: int, max_infrastructure_retry: int) -> None:
        self.job = status(max_retry=max_retry, max_infrastructure_retry=max_infrastructure_retry)
        self.model = Model(max_retry, max_infrastructure_retry)

    @rule(reason=st.sampled_from(WAITING), message=st.sampled_from("ab"))
    def waits(self, reason: Reason, message: str) -> None:
        before = self.job
        self.see("waiting", reason, message)
        assert self.job.info.state is before.info.state, "waiting never moves a job backwards"

    @rule()
    def runs(self) -> None:
        before = self.job
        self.see("running", Reason.RUNNING)
        if not (before.info.state.final or before.resume_at):
            assert self.job.info.state is State.RUNNING

    @rule(reason=st.sampled_from([*FAILURES, *LOSSES, Reason.CANCELLED]), ran=st.booleans())
    def fails(self, reason: Reason, ran: bool) -> None:
        before, model = self.job, self.model
        self.see("ended", reason, ran=ran)
        if before.info.state.final or before.resume_at:
            assert self.job == before
            return
        model.failed_attempts += 1
        if model.asked is not None and not model.asked.retry:
            model.final = State.CANCELLED if model.asked in (CANCEL, INTERRUPT) else State.FAILED
        elif self.is_within_infrastructure_budget(reason):
            model.infrastructure_retries += 1
            model.pausing = True
        elif model.failed_attempts - model.infrastructure_retries > model.max_retry:
            model.final = State.FAILED
        else:
            model.pausing = True
        model.asked = None if model.pausing else model.asked

    def is_within_infrastructure_budget(self, reason: Reason) -> bool:
        model = self.model
        left = model.max_infrastructure_retry - model.infrastructure_retries
        return model.asked is None and reason in LOSSES and left > 0

    @rule()
    def completes(self) -> None:
        before = self.job
        self.see("ended", Reason.COMPLETED)
        if not (before.info.state.final or before.resume_at):
            self.model.final = State.SUCCEEDED

    @rule(shift=st.sampled_from([-1, 1]), phase=st.sampled_from(["waiting", "running", "ended"]))
    def hears_of_another_attempt(self, shift: int, phase: str) -> None:
        before = self.job
        self.see(phase, Reason.EXIT_CODE, attempt=before.info.attempt + shift)
        assert self.job == before

    @rule(stop=st.sampled_from([CANCEL, INTERRUPT, TIMEOUT, HUNG_RESTART, HUNG]))
    def asked_to_stop(self, stop: Stop) -> None:
        before, model = self.job, self.model
        self.take(lifecycle.ask_to_stop(self.job, stop, self.now))
        wins = {INTERRUPT: 1, CANCEL: 2}
        if before.info.state.final or (
            model.asked and wins.get(stop, 0) <= wins.get(model.asked, 0)
        ):
            assert self.job == before
            return
        model.asked = stop
        if model.pausing:
            model.final = State.CANCELLED if stop in (CANCEL, INTERRUPT) else State.FAILED
            model.pausing = False

    @precondition(lambda self: self.job.resume_at is not None)
    @rule()
    def pause_ends(self) -> None:
        assert self.job.resume_at
        self.now = max(self.now, self.job.resume_at)
        self.job = self.job._replace(resume_at=None)
        self.model.pausing = False

    @rule(seconds=st.integers(-3600, 3600))
    def clock_jumps(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @invariant()
    def agrees_with_the_model(self) -> None:
        job, model = self.job, self.model
        assert (job.info.state if job.info.state.final else None) is model.final
        assert job.info.attempt == 1 + model.failed_attempts - (
            1 if self._ended_by_failure() else 0
        )
        assert job.info.attempt <= model.max_retry + model.max_infrastructure_retry + 1
        assert job.info.infrastructure_retries == model.infrastructure_retries
        assert (job.resume_at is not None) == model.pausing
        assert job.info.state is State.RESTARTING or not job.resume_at
        if model.asked and not job.info.state.final:
            assert job.info.reason is Reason.STOPPING

    @invariant()
    def ends_once(self) -> None:
        finals = [step for step in self.model.history if step.state.final]
        assert len(finals) == (1 if self.job.info.state.final else 0)

    def _ended_by_failure(self) -> bool:
        """The last failed attempt was the last one: no number was taken after it. A
        cancel in a pause is none.
        """
        history = self.model.history
        if not self.job.info.state.final or self.job.info.state is State.SUCCEEDED:
            return False
        return not (
            len(history) > 1 and history[-2].state is State.RESTARTING and self._cut_in_a_pause()
        )

    def _cut_in_a_pause(self) -> bool:
        return self.model.failed_attempts == self.job.info.attempt - 1


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)


@given(st.integers(2, 10_000))
def test_pauses_grow_and_are_bounded(attempt: int) -> None:
    assert pause_before(attempt) <= pause_before(attempt + 1) <= lifecycle.LONGEST_PAUSE_S


def test_the_pauses_are_1_2_4_to_60_seconds() -> None:
    assert [pause_before(attempt) for attempt in (2, 3, 4, 8, 100)] == [1, 2, 4, 60, 60]


def test_an_attempt_that_ran_unseen_passes_through_running() -> None:
    seen = Observation("j", 1, "ended", Reason.EXIT_CODE, "boom", started_at=T0)
    decision = lifecycle.observe(status(), seen, T0 + timedelta(seconds=5))
    assert decision
    assert [(step.state, step.time) for step in decision.transitions] == [
        (State.RUNNING, T0),
        (State.FAILED, T0 + timedelta(seconds=5)),
    ]


def test_both_budgets_are_counted_apart_and_the_messages_name_them() -> None:
    job = status(max_retry=1, max_infrastructure_retry=2)
    ends = [
        (
            Reason.NODE_LOST,
            "attempt 1 failed: why (1 of 2 infrastructure retries); the next starts in 1 s",
        ),
        (Reason.EXIT_CODE, "attempt 2 failed: why (1 of 1 retries); the next starts in 2 s"),
        (
            Reason.PREEMPTED,
            "attempt 3 failed: why (2 of 2 infrastructure retries); the next starts in 4 s",
        ),
        (
            Reason.NODE_LOST,
            "why (all 2 infrastructure retries are used); not retried: max_retry=1 is used up",
        ),
    ]
    for number, (reason, message) in enumerate(ends, start=1):
        decision = lifecycle.observe(job, Observation("j", number, "ended", reason, "why"), T0)
        assert decision
        assert (decision.status.info.reason, decision.status.info.message) == (reason, message)
        job = decision.status._replace(resume_at=None)
    assert job.info.state is State.FAILED


def ended(
    job: JobStatus, reason: Reason, code: int | None = None, step: float | None = None
) -> JobStatus:
    """The job after its attempt has ended so, and after the pause."""
    first = Failure(rank=0, exit_code=code) if code else None
    seen = Observation("j", job.info.attempt, "ended", reason, "why", first_failing=first)
    decision = lifecycle.observe(job, seen, T0, step)
    assert decision
    return decision.status._replace(resume_at=None)


@pytest.mark.parametrize(
    ("reason", "code", "stop", "word"),
    [
        (Reason.NODE_LOST, None, None, ""),
        (Reason.EXIT_CODE, 75, None, ""),
        (Reason.SETUP_FAILED, 75, None, ""),
        (Reason.HUNG, 75, Stop(Reason.HUNG, "hangs"), ""),
        (Reason.EXIT_CODE, 75, HUNG_RESTART, ""),
        (Reason.EXIT_CODE, 1, None, "exit:1"),
        (Reason.OUT_OF_MEMORY, 1, None, "OutOfMemory"),
        (Reason.PREEMPTED, None, None, "Preempted"),
        (Reason.EXIT_CODE, 75, HUNG, "HungSilent"),
    ],
)
def test_only_the_named_failures_are_retried(
    reason: Reason, code: int | None, stop: Stop | None, word: str
) -> None:
    job = status(
        state=State.RUNNING, max_retry=2, retry_on=["NodeLost", "exit:75", "Hung"], stop=stop
    )
    after = ended(job, reason, code)
    assert after.info.state is (State.FAILED if word else State.RESTARTING)
    assert after.info.retry == (
        f"not retried: {word} is not in retry_on" if word else "1 of 2 retries"
    )
    assert after.info.message.endswith(
        f"; {after.info.retry}" if word else f" ({after.info.retry}); the next starts in 1 s"
    )


@pytest.mark.parametrize("stop", [CANCEL, TIMEOUT])
def test_what_can_never_be_retried_says_nothing_about_it(stop: Stop) -> None:
    after = ended(
        status(state=State.RUNNING, max_retry=2, retry_on=["exit:75"], stop=stop),
        Reason.EXIT_CODE,
        75,
    )
    assert (after.info.state.final, after.info.message, after.info.retry) == (
        True,
        stop.message,
        "",
    )


def test_a_loss_of_a_machine_has_its_own_retries_before_retry_on_decides() -> None:
    job = status(max_retry=2, max_infrastructure_retry=1, retry_on=["exit:75"])
    job = ended(job, Reason.NODE_LOST)
    assert job.info.retry == "1 of 1 infrastructure retries"
    failed = ended(job, Reason.NODE_LOST)
    used_up = "(all 1 infrastructure retries are used)"
    assert failed.info.message == f"why {used_up}; not retried: NodeLost is not in retry_on"
    job = ended(
        job._replace(info=replaced(job.info, spec=replaced(job.info.spec, retry_on=["NodeLost"]))),
        Reason.NODE_LOST,
    )
    assert (job.info.state, job.info.retry) == (State.RESTARTING, "1 of 2 retries")


def test_retries_count_from_0_again_when_an_attempt_got_further() -> None:
    job = status(max_retry=2, max_infrastructure_retry=1, retry_reset_steps=100)
    told, pauses = [], []
    ends = [
        *(
            (Reason.EXIT_CODE, 50.0),
            (Reason.NODE_LOST, None),
            (Reason.EXIT_CODE, 149.0),
            (Reason.EXIT_CODE, 249.0),
        ),
        *((Reason.NODE_LOST, 20.0), (Reason.EXIT_CODE, 300.0), (Reason.EXIT_CODE, 310.0)),
    ]
    for reason, step in ends:
        job = ended(job, reason, step=step)
        told.append(job.info.retry)
        pauses.append(re.findall(r"starts in (\d+) s", job.info.message))
    assert pauses == [["1"], ["2"], ["4"], ["1"], ["2"], ["4"], []], "the pause, too, begins again"
    assert told == [
        "1 of 2 retries",
        "1 of 1 infrastructure retries",
        "2 of 2 retries",
        "1 of 2 retries, counted from 0 again as it got from step 149 to 249",
        "1 of 1 infrastructure retries",
        "2 of 2 retries",
        "not retried: max_retry=2 is used up",
    ]
    assert (job.info.attempt, job.info.furthest_step, job.info.state) == (7, 310, State.FAILED)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 100))
def test_only_progress_gives_more_attempts_than_max_retry(steps: list[int], least: int) -> None:
    job = status(max_retry=1, retry_reset_steps=least)
    for step in steps:
        if not job.info.state.final:
            job = ended(job, Reason.EXIT_CODE, step=step)
    assert job.info.attempt <= 2 * (1 + max(steps, default=0) // least) + 1


def test_a_new_place_in_the_queue_is_a_message_and_no_event() -> None:
    job = status(message="3 jobs before it")
    decision = lifecycle.observe(
        job, Observation("j", 1, "waiting", Reason.QUEUED, "2 jobs before it"), T0
    )
    assert decision
    assert decision.status.info.message == "2 jobs before it"
    assert decision.transitions == ()


def test_a_field_that_no_job_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="JobInfo has no field mesage"):
        status().shows(mesage="x")  # type: ignore[call-arg]
