"""What follows from what: the state machine of one job, as pure functions. No clock, no disk, no runtime.

The service asks here after each observation of a runtime, each order to stop and each end of a pause, stores the
decision, and only then acts on it. Nobody else imports this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from client_lib.spec.states import Reason, State
from server_stub.runtimes import Observation


@dataclass(frozen=True)
class Stop:
    """An order to end the running attempt, and what it means for the job."""

    reason: Reason
    """CANCELLED: the job is cancelled. TIMEOUT, HUNG_SILENT: it failed."""
    message: str
    retry: bool = False
    """A new attempt follows, if max_retry allows one."""


@dataclass(frozen=True)
class Pauses:
    """Seconds before attempt 2; doubled before each later one; never more than `longest`."""

    first: float = 1.0
    longest: float = 60.0

    def before(self, attempt: int) -> float:
        """1, 2, 4 ... 60 s before attempts 2, 3, 4 ..."""
        return min(self.longest, self.first * 2.0 ** min(attempt - 2, 60))


class Job(NamedTuple):
    """What decisions depend on, and nothing else of a job."""

    state: State = State.PENDING
    reason: Reason = Reason.QUEUED
    message: str = ""
    attempt: int = 1
    """The newest: the one that the runtime has, or that `resume_at` waits for."""
    max_retry: int = 0
    stop: Stop | None = None
    resume_at: datetime | None = None
    """Set: a pause between two attempts, nothing of the job runs and the runtime knows nothing of `attempt` yet."""


class Transition(NamedTuple):
    """One step of the state machine: an event to be."""

    state: State
    reason: Reason
    message: str
    attempt: int
    at: datetime


class Decision(NamedTuple):
    """The job as it becomes, and the steps that lead there, each legal by the table of `states`."""

    job: Job
    transitions: tuple[Transition, ...] = ()
    """Empty: only the message changed."""


def observe(job: Job, seen: Observation, now: datetime, pauses: Pauses) -> Decision | None:
    """What an observation of the newest attempt means; None: nothing new for the state, the reason or the message."""
    if job.state.final or job.resume_at or seen.attempt != job.attempt:
        return None
    if seen.phase == "ended":
        return _ended(job, seen, now, pauses)
    if seen.phase == "running":
        return _moved(job, State.RUNNING, Reason.RUNNING, seen.message, now)
    if (
        job.state is State.RUNNING
    ):  # it started once; a look that is older than that, or a runtime that is finding it again
        return None
    return _moved(job, job.state, seen.reason, seen.message, now)


def ask_to_stop(job: Job, stop: Stop, now: datetime) -> Decision | None:
    """What an order to stop means; None: it is final, or stops already. A cancel wins over any other order."""
    if job.state.final or (job.stop and (job.stop.reason is Reason.CANCELLED or stop.reason is not Reason.CANCELLED)):
        return None
    if job.resume_at:  # between two attempts: there is nothing to wait for
        return _final(job._replace(resume_at=None, stop=stop), (), _state_of(stop), stop.reason, stop.message, now)
    return _moved(job._replace(stop=stop), job.state, Reason.STOPPING, stop.message, now)


def resume(job: Job) -> Job:
    """The pause is over: from here the runtime has the newest attempt."""
    return job._replace(resume_at=None)


def _moved(job: Job, state: State, reason: Reason, message: str, now: datetime) -> Decision | None:
    if job.stop:
        reason, message = Reason.STOPPING, job.stop.message
    after = job._replace(state=state, reason=reason, message=message)
    if (state, reason) != (job.state, job.reason):
        return Decision(after, (Transition(state, reason, message, job.attempt, now),))
    return Decision(after) if after != job else None


def _ended(job: Job, seen: Observation, now: datetime, pauses: Pauses) -> Decision:
    at = seen.ended_at or now
    began = _unseen_start(job, seen, now)
    if seen.reason is Reason.COMPLETED:
        return _final(job, began, State.SUCCEEDED, Reason.COMPLETED, seen.message, at)
    reason, message = _why(job, seen)
    may_retry = job.stop is None or job.stop.retry
    if may_retry and job.attempt <= job.max_retry:
        return _restarting(job, began, reason, message, now, pauses)
    return _final(job, began, _state_of(job.stop), reason, message, at)


def _why(job: Job, seen: Observation) -> tuple[Reason, str]:
    """Why the attempt ended: our own order, if there was one, explains whatever the ranks then did."""
    if job.stop:
        return job.stop.reason, job.stop.message
    if seen.reason is Reason.CANCELLED:  # nobody asked us: a signal from outside, a machine that shuts down
        return Reason.DELETED_EXTERNALLY, seen.message or "its processes were stopped from outside"
    return seen.reason, seen.message


def _state_of(stop: Stop | None) -> State:
    return State.CANCELLED if stop and stop.reason is Reason.CANCELLED else State.FAILED


def _unseen_start(job: Job, seen: Observation, now: datetime) -> tuple[Transition, ...]:
    """An attempt that started and ended between two looks passes through RUNNING all the same."""
    starts = [rank.started_at for rank in seen.ranks if rank.started_at]
    if job.state is State.RUNNING or not (starts or seen.reason is Reason.COMPLETED):
        return ()
    return (Transition(State.RUNNING, Reason.RUNNING, "", job.attempt, min(starts, default=now)),)


def _restarting(
    job: Job, began: tuple[Transition, ...], reason: Reason, message: str, now: datetime, pauses: Pauses
) -> Decision:
    number = job.attempt + 1
    pause = pauses.before(number)
    message = f"attempt {job.attempt} of {job.max_retry + 1} failed: {message}; the next starts in {pause:g} s"
    after = job._replace(
        state=State.RESTARTING,
        reason=reason,
        message=message,
        attempt=number,
        stop=None,
        resume_at=now + timedelta(seconds=pause),
    )
    return Decision(after, (*began, Transition(State.RESTARTING, reason, message, number, now)))


def _final(
    job: Job, began: tuple[Transition, ...], state: State, reason: Reason, message: str, at: datetime
) -> Decision:
    after = job._replace(state=state, reason=reason, message=message)
    return Decision(after, (*began, Transition(state, reason, message, job.attempt, at)))
