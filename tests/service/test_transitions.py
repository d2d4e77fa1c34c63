"""One table of the state machine: in this state, after this observation, order or verdict, the job
is in that state with that reason. Messages and counts, and the invariants over any order of events,
are in test_lifecycle.py.
"""

from typing import Literal, NamedTuple

import pytest

from client_lib.spec.request import Dependency
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Failure, RaisedAlarm
from server_stub.runtimes import Observation
from server_stub.service import lifecycle
from server_stub.service.lifecycle import Decision, JobStatus, Stop
from tests.service.bench import T0, status

WAITS = Observation("j", 1, "waiting", Reason.UNSCHEDULABLE, "no node fits")
RUNS = Observation("j", 1, "running", Reason.RUNNING, "")
DONE = Observation("j", 1, "ended", Reason.COMPLETED, "every rank ended with exit code 0")
FAILED = Observation("j", 1, "ended", Reason.EXIT_CODE, "rank 0 ended with exit code 1")
LOST = Observation("j", 1, "ended", Reason.NODE_LOST, "its node is gone")
LOST_AGAIN = Observation("j", 2, "ended", Reason.NODE_LOST, "its node is gone")
KILLED = Observation(
    "j",
    1,
    "ended",
    Reason.SIGNAL,
    "rank 0 was killed by signal 9",
    first_failing=Failure(rank=0, exit_code=137, signal=9),
)
BAD_SETUP = Observation("j", 1, "ended", Reason.SETUP_FAILED, "setup ended with exit code 1")
SLOW_SETUP = Observation("j", 1, "ended", Reason.TIMEOUT, "setup took too long")
GONE = Observation("j", 1, "ended", Reason.CANCELLED, "")
OLD = Observation("j", 0, "ended", Reason.EXIT_CODE, "an earlier attempt")

CANCEL = Stop(Reason.CANCELLED, "cancelled by ann")
INTERRUPT = Stop(Reason.CANCELLED, "cancelled by ann", interrupt=True)
TIMEOUT = Stop(Reason.TIMEOUT, "it ran too long")
SILENT = Stop(Reason.HUNG_SILENT, "silent", retry=True)
SILENT_FOR_GOOD = Stop(Reason.HUNG_SILENT, "silent")
ALARM = Stop(Reason.ALARM, "loss was NaN")
ALARM_RETRY = Stop(Reason.ALARM, "loss was NaN", retry=True)
SMOKE_PASSED = Stop(Reason.COMPLETED, "the smoke test passed")


class Verdict(NamedTuple):
    """About hangs."""

    hangs: bool


class AlarmRaised(NamedTuple):
    """A rule that has become true."""

    stop: Stop | None


class EndOfAnother(NamedTuple):
    """The end of the job that this one waits for."""

    state: State


def waits_for(condition: Literal["ok", "failed", "any"]) -> JobStatus:
    return status(dependencies=[Dependency(name="a", id="1", condition=condition)])


PENDING = status()
RUNNING = status(state=State.RUNNING, reason=Reason.RUNNING)
RETRIED = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1)
MOVABLE = status(state=State.RUNNING, reason=Reason.RUNNING, max_infrastructure_retry=1)
MOVED_ONCE = status(
    state=State.RUNNING,
    reason=Reason.RUNNING,
    attempt=2,
    infrastructure_retries=1,
    max_retry=1,
    max_infrastructure_retry=1,
)
ONLY_SIGNALS = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1, retry_on=["Signal"])
ONLY_137 = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1, retry_on=["exit:137"])
ONLY_LOSSES = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1, retry_on=["NodeLost"])
HANGS = status(state=State.RUNNING, reason=Reason.HUNG)._replace(hung="rank 1 hangs")
CANCELLING = status(stop=CANCEL, state=State.RUNNING, reason=Reason.STOPPING)
INTERRUPTED = status(stop=INTERRUPT, state=State.RUNNING, reason=Reason.STOPPING)
TIMED_OUT = status(stop=TIMEOUT, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
RESTARTED = status(stop=SILENT, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
ALARMED = status(stop=ALARM, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
ALARMED_RETRY = status(stop=ALARM_RETRY, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
STOPPED_FOR_GOOD = status(
    stop=SILENT_FOR_GOOD, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1
)
PROVEN = status(stop=SMOKE_PASSED, state=State.RUNNING, reason=Reason.STOPPING)
PAUSING = status(state=State.RESTARTING, reason=Reason.EXIT_CODE)._replace(resume_at=T0)
ENDED = status(state=State.SUCCEEDED, reason=Reason.COMPLETED, finished_at=T0)


class Row(NamedTuple):
    before: JobStatus
    seen: Observation | Stop | Verdict | AlarmRaised | EndOfAnother
    after: tuple[State, Reason] | Literal["no event"] | None
    """"no event": something else changes. None: nothing changes."""


TABLE = {
    # observations
    "waiting, for another reason": Row(PENDING, WAITS, (State.PENDING, Reason.UNSCHEDULABLE)),
    "waiting, then running": Row(PENDING, RUNS, (State.RUNNING, Reason.RUNNING)),
    "running, seen again": Row(RUNNING, RUNS, None),
    "running, and a wait from before the start": Row(RUNNING, WAITS, None),
    "running, then done": Row(RUNNING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "waiting, then done": Row(PENDING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "failed without a retry": Row(RUNNING, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "failed with a retry": Row(RETRIED, FAILED, (State.RESTARTING, Reason.EXIT_CODE)),
    "a lost node, without a retry": Row(RUNNING, LOST, (State.FAILED, Reason.NODE_LOST)),
    "a lost node, with its own retry": Row(MOVABLE, LOST, (State.RESTARTING, Reason.NODE_LOST)),
    "a failure that no machine caused": Row(MOVABLE, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "a reason of retry_on": Row(ONLY_LOSSES, LOST, (State.RESTARTING, Reason.NODE_LOST)),
    "no reason of retry_on": Row(ONLY_LOSSES, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "a lost node, whose own retries are used up": Row(
        MOVED_ONCE, LOST_AGAIN, (State.RESTARTING, Reason.NODE_LOST)
    ),
    "a signal of retry_on": Row(ONLY_SIGNALS, KILLED, (State.RESTARTING, Reason.SIGNAL)),
    "a signal, and the code of a shell in retry_on": Row(
        ONLY_137, KILLED, (State.FAILED, Reason.SIGNAL)
    ),
    "a setup that failed, with a retry": Row(
        RETRIED, BAD_SETUP, (State.RESTARTING, Reason.SETUP_FAILED)
    ),
    "a setup that took too long, with a retry": Row(
        RETRIED, SLOW_SETUP, (State.FAILED, Reason.TIMEOUT)
    ),
    "deleted on the cluster": Row(RUNNING, GONE, (State.FAILED, Reason.DELETED_EXTERNALLY)),
    "deleted on the cluster, with a retry": Row(
        RETRIED, GONE, (State.RESTARTING, Reason.DELETED_EXTERNALLY)
    ),
    "an end of an earlier attempt": Row(RUNNING, OLD, None),
    "an end that is reported again": Row(ENDED, FAILED, None),
    "an end between two attempts": Row(PAUSING, FAILED, None),
    # verdicts about hangs
    "it hangs": Row(RUNNING, Verdict(hangs=True), (State.RUNNING, Reason.HUNG)),
    "it hangs, and is seen to run": Row(HANGS, RUNS, "no event"),
    "it hangs, and moves again": Row(HANGS, Verdict(hangs=False), (State.RUNNING, Reason.RUNNING)),
    "it hangs, and fails": Row(HANGS, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "a verdict while it waits": Row(PENDING, Verdict(hangs=True), None),
    "a verdict while it is being stopped": Row(CANCELLING, Verdict(hangs=True), None),
    # rules about its metrics
    "an alarm that is told": Row(RUNNING, AlarmRaised(None), (State.RUNNING, Reason.RUNNING)),
    "an alarm that stops": Row(RUNNING, AlarmRaised(ALARM), (State.RUNNING, Reason.STOPPING)),
    "an alarm while it waits": Row(PENDING, AlarmRaised(ALARM), None),
    "an alarm while it is being stopped": Row(CANCELLING, AlarmRaised(ALARM), None),
    "an alarm after its end": Row(ENDED, AlarmRaised(ALARM), None),
    # ends of the jobs that it waits for
    "the end that it waits for": Row(waits_for("ok"), EndOfAnother(State.SUCCEEDED), "no event"),
    "any end": Row(waits_for("any"), EndOfAnother(State.CANCELLED), "no event"),
    "another end": Row(
        waits_for("failed"), EndOfAnother(State.SUCCEEDED), (State.FAILED, Reason.DEPENDENCY_FAILED)
    ),
    "an end after its own": Row(ENDED, EndOfAnother(State.FAILED), None),
    # orders, and the end that follows them
    "a cancel while it waits": Row(PENDING, CANCEL, (State.PENDING, Reason.STOPPING)),
    "a cancel while it runs": Row(RUNNING, CANCEL, (State.RUNNING, Reason.STOPPING)),
    "a cancel between two attempts": Row(PAUSING, CANCEL, (State.CANCELLED, Reason.CANCELLED)),
    "a cancel of an ended job": Row(ENDED, CANCEL, None),
    "a timeout after a cancel": Row(CANCELLING, TIMEOUT, None),
    "a cancel after a cancel": Row(CANCELLING, CANCEL, None),
    "a cancel after a timeout": Row(TIMED_OUT, CANCEL, "no event"),
    "an interrupt": Row(RUNNING, INTERRUPT, (State.RUNNING, Reason.STOPPING)),
    "an interrupt after a cancel": Row(CANCELLING, INTERRUPT, None),
    "a cancel after an interrupt": Row(INTERRUPTED, CANCEL, "no event"),
    "a second interrupt": Row(INTERRUPTED, INTERRUPT, None),
    "a timeout after an interrupt": Row(INTERRUPTED, TIMEOUT, None),
    "a timeout between two attempts": Row(PAUSING, TIMEOUT, (State.FAILED, Reason.TIMEOUT)),
    "seen to run while it is being stopped": Row(CANCELLING, RUNS, "no event"),
    "cancelled": Row(CANCELLING, GONE, (State.CANCELLED, Reason.CANCELLED)),
    "cancelled, with an exit code": Row(CANCELLING, FAILED, (State.CANCELLED, Reason.CANCELLED)),
    "done before the cancel": Row(CANCELLING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "too long": Row(TIMED_OUT, GONE, (State.FAILED, Reason.TIMEOUT)),
    "silent, with a retry": Row(RESTARTED, GONE, (State.RESTARTING, Reason.HUNG_SILENT)),
    "silent, without a retry": Row(STOPPED_FOR_GOOD, GONE, (State.FAILED, Reason.HUNG_SILENT)),
    "an alarm, without a retry": Row(ALARMED, GONE, (State.FAILED, Reason.ALARM)),
    "an alarm, with a retry": Row(ALARMED_RETRY, GONE, (State.RESTARTING, Reason.ALARM)),
    "a smoke test that failed before the stop": Row(
        PROVEN, FAILED, (State.FAILED, Reason.EXIT_CODE)
    ),
    "a smoke test": Row(PROVEN, GONE, (State.SUCCEEDED, Reason.COMPLETED)),
}


def decide(row: Row) -> Decision | None:
    match row.seen:
        case Stop():
            return lifecycle.ask_to_stop(row.before, row.seen, T0)
        case Verdict():
            return lifecycle.note_hang(row.before, "rank 1 hangs", T0, hangs=row.seen.hangs)
        case AlarmRaised():
            alarm = RaisedAlarm(rule="nan -> stop", sentence="loss was NaN", time=T0)
            return lifecycle.note_alarm(row.before, alarm, row.seen.stop, T0)
        case EndOfAnother():
            return lifecycle.note_dependency(row.before, "1", row.seen.state, T0)
        case Observation():
            return lifecycle.observe(row.before, row.seen, T0)


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_the_state_and_the_reason_after(row: Row) -> None:
    decision = decide(row)
    if row.after is None:
        assert decision is None
        return
    assert decision is not None
    if row.after == "no event":
        assert decision.transitions == ()
        return
    assert (decision.status.info.state, decision.status.info.reason) == row.after
    assert decision.transitions[-1].state is row.after[0]


def test_every_state_is_reached() -> None:
    assert {row.after[0] for row in TABLE.values() if isinstance(row.after, tuple)} == set(State)
