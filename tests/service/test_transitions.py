"""One table of the state machine: in this state, after this observation or order, the job is in
that state with that reason. The invariants over any order of them are in test_lifecycle.py.
"""

from typing import NamedTuple

import pytest

from client_lib.spec.states import Reason, State
from server_stub.runtimes import Observation
from server_stub.service import lifecycle
from server_stub.service.lifecycle import Decision, JobStatus, Stop
from tests.service.bench import T0, status

WAITS = Observation("j", 1, "waiting", Reason.UNSCHEDULABLE, "no node fits")
RUNS = Observation("j", 1, "running", Reason.RUNNING, "")
DONE = Observation("j", 1, "ended", Reason.COMPLETED, "every rank ended with exit code 0")
FAILED = Observation("j", 1, "ended", Reason.EXIT_CODE, "rank 0 ended with exit code 1")
LOST = Observation("j", 1, "ended", Reason.NODE_LOST, "its node is gone")
GONE = Observation("j", 1, "ended", Reason.CANCELLED, "")
OLD = Observation("j", 0, "ended", Reason.EXIT_CODE, "an earlier attempt")

CANCEL = Stop(Reason.CANCELLED, "cancelled by ann")
TIMEOUT = Stop(Reason.TIMEOUT, "it ran too long")
SILENT = Stop(Reason.HUNG_SILENT, "silent", retry=True)
SMOKE_PASSED = Stop(Reason.COMPLETED, "the smoke test passed")

PENDING = status()
RUNNING = status(state=State.RUNNING, reason=Reason.RUNNING)
RETRIED = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1)
MOVABLE = status(state=State.RUNNING, reason=Reason.RUNNING, max_infrastructure_retry=1)
ONLY_LOSSES = status(state=State.RUNNING, reason=Reason.RUNNING, max_retry=1, retry_on=["NodeLost"])
CANCELLING = status(stop=CANCEL, state=State.RUNNING, reason=Reason.STOPPING)
TIMED_OUT = status(stop=TIMEOUT, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
RESTARTED = status(stop=SILENT, state=State.RUNNING, reason=Reason.STOPPING, max_retry=1)
PROVEN = status(stop=SMOKE_PASSED, state=State.RUNNING, reason=Reason.STOPPING)
PAUSING = status(state=State.RESTARTING, reason=Reason.EXIT_CODE)._replace(resume_at=T0)
ENDED = status(state=State.SUCCEEDED, reason=Reason.COMPLETED, finished_at=T0)


class Row(NamedTuple):
    before: JobStatus
    seen: Observation | Stop
    after: tuple[State, Reason] | None
    """None: nothing changes, and no event is written."""


TABLE = {
    # observations
    "waiting, for another reason": Row(PENDING, WAITS, (State.PENDING, Reason.UNSCHEDULABLE)),
    "waiting, then running": Row(PENDING, RUNS, (State.RUNNING, Reason.RUNNING)),
    "running, seen again": Row(RUNNING, RUNS, None),
    "running, then done": Row(RUNNING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "waiting, then done": Row(PENDING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "failed without a retry": Row(RUNNING, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "failed with a retry": Row(RETRIED, FAILED, (State.RESTARTING, Reason.EXIT_CODE)),
    "a lost node, without a retry": Row(RUNNING, LOST, (State.FAILED, Reason.NODE_LOST)),
    "a lost node, with its own retry": Row(MOVABLE, LOST, (State.RESTARTING, Reason.NODE_LOST)),
    "a failure that no machine caused": Row(MOVABLE, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "a reason of retry_on": Row(ONLY_LOSSES, LOST, (State.RESTARTING, Reason.NODE_LOST)),
    "no reason of retry_on": Row(ONLY_LOSSES, FAILED, (State.FAILED, Reason.EXIT_CODE)),
    "deleted on the cluster": Row(RUNNING, GONE, (State.FAILED, Reason.DELETED_EXTERNALLY)),
    "deleted on the cluster, with a retry": Row(
        RETRIED, GONE, (State.RESTARTING, Reason.DELETED_EXTERNALLY)
    ),
    "an end of an earlier attempt": Row(RUNNING, OLD, None),
    "an end that is reported again": Row(ENDED, FAILED, None),
    "an end between two attempts": Row(PAUSING, FAILED, None),
    # orders, and the end that follows them
    "a cancel while it waits": Row(PENDING, CANCEL, (State.PENDING, Reason.STOPPING)),
    "a cancel while it runs": Row(RUNNING, CANCEL, (State.RUNNING, Reason.STOPPING)),
    "a cancel between two attempts": Row(PAUSING, CANCEL, (State.CANCELLED, Reason.CANCELLED)),
    "a cancel of an ended job": Row(ENDED, CANCEL, None),
    "a timeout after a cancel": Row(CANCELLING, TIMEOUT, None),
    "cancelled": Row(CANCELLING, GONE, (State.CANCELLED, Reason.CANCELLED)),
    "cancelled, with an exit code": Row(CANCELLING, FAILED, (State.CANCELLED, Reason.CANCELLED)),
    "done before the cancel": Row(CANCELLING, DONE, (State.SUCCEEDED, Reason.COMPLETED)),
    "too long": Row(TIMED_OUT, GONE, (State.FAILED, Reason.TIMEOUT)),
    "silent, with a retry": Row(RESTARTED, GONE, (State.RESTARTING, Reason.HUNG_SILENT)),
    "a smoke test": Row(PROVEN, GONE, (State.SUCCEEDED, Reason.COMPLETED)),
}


def decide(row: Row) -> Decision | None:
    if isinstance(row.seen, Stop):
        return lifecycle.ask_to_stop(row.before, row.seen, T0)
    return lifecycle.observe(row.before, row.seen, T0)


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_the_state_and_the_reason_after(row: Row) -> None:
    decision = decide(row)
    if row.after is None:
        assert decision is None
        return
    assert decision is not None
    assert (decision.status.info.state, decision.status.info.reason) == row.after
    assert decision.transitions[-1].state is row.after[0]


def test_every_state_is_reached() -> None:
    assert {row.after[0] for row in TABLE.values() if row.after} == set(State)
