"""The state machine of one job, as pure functions: no clock, no disk, no runtime.

The reconciler calls it after each observation of a runtime, each order to stop and each end of a pause, stores the
decision, and only then carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from client_lib.spec.request import Dependency
from client_lib.spec.states import FAILURES, Reason, State, as_sent
from client_lib.spec.wire import Event
from server_stub.runtimes import Observation


@dataclass(frozen=True)
class Stop:
    """An order to end the running attempt, and what it means for the job."""

    reason: Reason
    """CANCELLED: the job is cancelled. TIMEOUT, HUNG_SILENT, HUNG: it failed. COMPLETED: a smoke test passed."""
    message: str
    retry: bool = False
    """A new attempt follows, if max_retry allows one."""


INFRASTRUCTURE = frozenset({Reason.NODE_LOST, Reason.PREEMPTED, Reason.UNSCHEDULABLE})
"""Reasons of an attempt that ended because of its machines: a node was lost or rebooted, a worker was evicted or
preempted, or the node that a worker was placed on refused it. An attempt that someone deleted is not among them."""

DELETED = as_sent(State, "DELETED")
"""State of a dependency that was removed, so that nobody knows how it ended."""

FIRST_PAUSE_S = 1.0  # long enough to free a port or GPU memory of the attempt before
LONGEST_PAUSE_S = 60.0  # a job that fails at once starts once a minute, and a repaired one waits no longer


def pause_before(attempt: int) -> float:
    """1, 2, 4 ... 60 s before attempts 2, 3, 4 ...; attempt 1 is the one that `retries_from` names."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt - 2, 60))


class JobStatus(NamedTuple):
    """The part of a job that decisions depend on."""

    state: State = State.PENDING
    reason: Reason = Reason.QUEUED
    message: str = ""
    attempt: int = 1
    """The newest: the one that the runtime has, or that `resume_at` waits for."""
    max_retry: int = 0
    retry_on: Sequence[str] | None = None
    retry_reset_steps: int | None = None
    max_infrastructure_retry: int = 0
    infrastructure_retries: int = 0
    """Number of new attempts after `retries_from` that followed the loss of a machine; at most
    max_infrastructure_retry."""
    retries_from: int = 1
    furthest_step: float = 0.0
    retry: str = ""
    stop: Stop | None = None
    hung: str = ""
    """The verdict on an attempt that hangs."""
    resume_at: datetime | None = None
    """End of the pause between two attempts. While it is set, nothing of the job runs and the runtime does not have
    `attempt` yet."""
    dependencies: tuple[Dependency, ...] = ()
    """The jobs and groups that must end before the first attempt."""


COUNTS = ("infrastructure_retries", "retries_from", "furthest_step", "retry")
"""Fields about retries that JobInfo has too, which describes and stores them."""


class Decision(NamedTuple):
    """The new status, and the steps that lead to it; each is legal by the table in `client_lib.spec.states`."""

    status: JobStatus
    transitions: tuple[Event, ...] = ()
    """Empty: only the message changed."""


def observe(status: JobStatus, seen: Observation, now: datetime, step: float | None = None) -> Decision | None:
    """Decide on an observation of the newest attempt; None: state, reason and message stay as they are. `step`: the
    one that an attempt reached which has ended; None: not known."""
    if status.state.final or status.resume_at or seen.attempt != status.attempt:
        return None
    if seen.phase == "ended":
        return _ended(status, seen, now, step)
    if seen.phase == "running":
        return _moved(status, State.RUNNING, Reason.RUNNING, seen.message, now)
    if status.state is State.RUNNING:  # an observation from before the start, or a runtime that finds the job again
        return None
    return _moved(status, status.state, seen.reason, seen.message, now)


def ask_to_stop(status: JobStatus, stop: Stop, now: datetime) -> Decision | None:
    """Decide on an order to stop; None: the job is final or is being stopped. A cancel wins over any other order."""
    if status.state.final or (
        status.stop and (status.stop.reason is Reason.CANCELLED or stop.reason is not Reason.CANCELLED)
    ):
        return None
    if status.resume_at:  # between two attempts: nothing runs that must end first
        return _final(
            status._replace(resume_at=None, stop=stop, retry=""), (), _state_of(stop), stop.reason, stop.message, now
        )
    return _moved(status._replace(stop=stop), status.state, Reason.STOPPING, stop.message, now)


def note_hang(status: JobStatus, message: str, now: datetime, *, hangs: bool) -> Decision | None:
    """Decide on a verdict about hangs; None: the attempt does not run or is being stopped."""
    if status.state is not State.RUNNING or status.stop:
        return None
    after = status._replace(hung=message if hangs else "")
    return _moved(after, State.RUNNING, Reason.RUNNING, message, now)


def note_dependency(status: JobStatus, ended_id: str, ended: State, now: datetime) -> Decision | None:
    """Decide on the end of a job or group that this one waits for; None: it does not wait, or is being stopped."""
    if status.state.final or status.stop:
        return None
    known = [dep.model_copy(update={"ended": ended}) if dep.id == ended_id else dep for dep in status.dependencies]
    after = status._replace(dependencies=tuple(known))
    for dep in known:
        wanted = {"ok": State.SUCCEEDED, "failed": State.FAILED}.get(dep.condition)  # None: any end
        if wanted and dep.ended not in (None, wanted):
            message = f"{dep.name} is {dep.ended}, and this job starts only after that has {wanted.lower()}"
            return _final(after, (), State.FAILED, Reason.DEPENDENCY_FAILED, message, now)
    return Decision(after._replace(message=""))


def _moved(status: JobStatus, state: State, reason: Reason, message: str, now: datetime) -> Decision | None:
    if status.stop:
        reason, message = Reason.STOPPING, status.stop.message
    elif status.hung:
        reason, message = Reason.HUNG, status.hung
    after = status._replace(state=state, reason=reason, message=message)
    if (state, reason) != (status.state, status.reason):
        return Decision(after, (_event(now, status.attempt, state, reason, message),))
    return Decision(after) if after != status else None


def _ended(status: JobStatus, seen: Observation, now: datetime, step: float | None) -> Decision:
    at = seen.ended_at or now
    began = _unseen_start(status, seen, now)
    if seen.reason is Reason.COMPLETED:
        return _final(status, began, State.SUCCEEDED, Reason.COMPLETED, seen.message, at)
    if status.stop and status.stop.reason is Reason.COMPLETED:
        if seen.reason is Reason.CANCELLED:
            return _final(status, began, State.SUCCEEDED, Reason.COMPLETED, status.stop.message, at)
        status = status._replace(stop=None)  # it failed before it was stopped
    if status.stop:  # the order is the reason, however the ranks then ended
        reason, message = status.stop.reason, status.stop.message
    elif seen.reason is Reason.CANCELLED:  # no order of this service: a signal, or a machine that shuts down
        reason, message = Reason.DELETED_EXTERNALLY, seen.message or "its processes were stopped from outside"
    else:
        reason, message = seen.reason, seen.message
    status, reset = _with_reset_retries(status, step)
    limit, used = status.max_infrastructure_retry, status.infrastructure_retries
    if reason in INFRASTRUCTURE and limit:
        if used < limit:
            after = status._replace(infrastructure_retries=used + 1)
            return _restarting(
                after, began, reason, message, f"{used + 1} of {limit} infrastructure retries{reset}", now
            )
        message += f" (all {limit} infrastructure retries are used)"
    code = seen.first_failing.report.exit_code if seen.first_failing and not status.stop else None
    limit, used = status.max_retry, status.attempt - status.retries_from - used
    retried = _is_retried(status, reason, code)
    if retried and used < limit:
        return _restarting(status, began, reason, message, f"{used + 1} of {limit} retries{reset}", now)
    why_not = ""
    if limit and retried:
        why_not = f"not retried: max_retry={limit} is used up"
    elif limit and status.retry_on is not None and reason in FAILURES:
        word = f"exit:{code}" if reason is Reason.EXIT_CODE and code else reason
        why_not = f"not retried: {word} is not in retry_on"
    message += f"; {why_not}" if why_not else ""
    return _final(status._replace(retry=why_not), began, _state_of(status.stop), reason, message, at)


def _with_reset_retries(status: JobStatus, step: float | None) -> tuple[JobStatus, str]:
    """The status whose retries count from 0 if the attempt got far enough, and the words that say so."""
    if step is None or not status.retry_reset_steps:
        return status, ""
    after = status._replace(furthest_step=max(step, status.furthest_step))
    if status.attempt == 1 or step < status.furthest_step + status.retry_reset_steps:
        return after, ""
    reset = f", counted from 0 again as it got from step {status.furthest_step:.15g} to {step:.15g}"
    return after._replace(retries_from=status.attempt, infrastructure_retries=0), reset


def _is_retried(status: JobStatus, reason: Reason, exit_code: int | None) -> bool:
    """True if max_retry applies to this end of an attempt."""
    words = status.retry_on or ()
    if str(reason) in words or f"exit:{exit_code}" in words:
        return True
    if status.stop:
        return status.stop.retry
    return status.retry_on is None and reason is not Reason.TIMEOUT  # of the command `setup`


def _state_of(stop: Stop | None) -> State:
    return State.CANCELLED if stop and stop.reason is Reason.CANCELLED else State.FAILED


def _unseen_start(status: JobStatus, seen: Observation, now: datetime) -> tuple[Event, ...]:
    """The step to RUNNING of an attempt that started and ended between two observations."""
    starts = [rank.started_at for rank in seen.ranks if rank.started_at]
    if status.state is State.RUNNING or not (starts or seen.reason is Reason.COMPLETED):
        return ()
    return (_event(min(starts, default=now), status.attempt, State.RUNNING, Reason.RUNNING, ""),)


def _restarting(
    status: JobStatus, began: tuple[Event, ...], reason: Reason, message: str, retry: str, now: datetime
) -> Decision:
    number = status.attempt + 1
    pause = pause_before(number - status.retries_from + 1)
    message = f"attempt {status.attempt} failed: {message} ({retry}); the next starts in {pause:g} s"
    after = status._replace(
        state=State.RESTARTING,
        reason=reason,
        message=message,
        retry=retry,
        attempt=number,
        stop=None,
        hung="",
        resume_at=now + timedelta(seconds=pause),
    )
    return Decision(after, (*began, _event(now, number, State.RESTARTING, reason, message)))


def _final(
    status: JobStatus, began: tuple[Event, ...], state: State, reason: Reason, message: str, at: datetime
) -> Decision:
    after = status._replace(state=state, reason=reason, message=message)
    return Decision(after, (*began, _event(at, status.attempt, state, reason, message)))


def _event(time: datetime, attempt: int, state: State, reason: Reason, message: str) -> Event:
    return Event(time=time, attempt=attempt, state=state, reason=reason, message=message)
