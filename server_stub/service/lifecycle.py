"""The state machine of one job, as pure functions: no clock, no disk, no runtime.

The reconciler calls it after each observation of a runtime, each order to stop and each end of a
pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypedDict

from typing_extensions import Unpack

from client_lib.spec.replace import replaced
from client_lib.spec.request import Dependency
from client_lib.spec.states import FAILURES, Reason, State, as_sent
from client_lib.spec.wire import (
    Attention,
    Event,
    Failure,
    JobInfo,
    LastGood,
    RaisedAlarm,
    WorkerInfo,
)
from server_stub.runtimes import Observation


@dataclass(frozen=True)
class Stop:
    """An order to end the running attempt, and what it means for the job."""

    reason: Reason
    """CANCELLED: the job is cancelled. TIMEOUT, HUNG_SILENT, HUNG, ALARM: it
    failed. COMPLETED: a smoke test passed.
    """
    message: str
    retry: bool = False
    """A new attempt follows, if max_retry allows one."""
    interrupt: bool = False
    """The ranks get SIGINT in place of SIGTERM."""


INFRASTRUCTURE = frozenset({Reason.NODE_LOST, Reason.PREEMPTED, Reason.UNSCHEDULABLE})
"""Reasons of an attempt that ended because of its machines: a node was lost or rebooted, a worker
was evicted or preempted, or the node that a worker was placed on refused it. An attempt that
someone deleted is not among them."""

# state of a dependency that was removed, so that nobody knows how it ended
DELETED = as_sent(State, "DELETED")

ALARMS_MAX = 40
"""Largest number of rules and alerts of an attempt that are kept with the job."""
FIRST_PAUSE_S = 1.0  # long enough to free a port or GPU memory of the attempt before
# a job that fails at once starts once a minute, and a repaired one waits no longer
LONGEST_PAUSE_S = 60.0


def pause_before(attempt: int) -> float:
    """1, 2, 4 ... 60 s before attempts 2, 3, 4 ...; attempt 1 is the one
    that `retries_from` names.
    """
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt - 2, 60))


class Shown(TypedDict, total=False):
    """The fields of a JobInfo that change after the submit."""

    version: int
    state: State
    reason: Reason
    message: str
    attempt: int
    started_at: datetime | None
    finished_at: datetime | None
    workers: list[WorkerInfo]
    failure: Failure | None
    stacks: list[str]
    retry: str
    retries_from: int
    infrastructure_retries: int
    furthest_step: float
    dependencies: list[Dependency]
    notices: list[str]
    alarms: list[RaisedAlarm]
    last_good: LastGood | None
    attention: list[Attention]


class JobStatus(NamedTuple):
    """A job, and what decisions depend on beside the facts that users see."""

    info: JobInfo
    """The job. `info.attempt` is the attempt that the runtime has, or for which `resume_at` waits.
    """
    stop: Stop | None = None
    hung: str = ""
    """The verdict on an attempt that hangs."""
    resume_at: datetime | None = None
    """End of the pause between two attempts. While it is set, nothing of the job runs and the
    runtime does not have the attempt yet."""

    def shows(self, **fields: Unpack[Shown]) -> JobStatus:
        """The status with other fields of `info`. Raises TypeError: there is no such field."""
        return self._replace(info=replaced(self.info, **fields))


class Decision(NamedTuple):
    """The new status, and the steps that lead to it; each is legal by the table in
    `client_lib.spec.states`.
    """

    status: JobStatus
    transitions: tuple[Event, ...] = ()
    """Empty: only the message or the workers changed."""


def observe(
    status: JobStatus, seen: Observation, now: datetime, step: float | None = None
) -> Decision | None:
    """Decide on an observation of the newest attempt; None: the job stays as it is. `step`: the
    step that an ended attempt has reached; None: not known."""
    job = status.info
    if job.state.final or status.resume_at or seen.attempt != job.attempt:
        return None
    if seen.workers:
        status = status.shows(workers=list(seen.workers))
    if seen.phase == "ended":
        ended = _ended(status, seen, now, step)
        failed = (
            seen.first_failing
            if ended.status.info.state in (State.FAILED, State.RESTARTING)
            else None
        )
        stacks = [] if seen.first_failing else list(seen.stacks)
        return ended._replace(status=ended.status.shows(failure=failed, stacks=stacks))
    decision = None
    if seen.phase == "running":
        decision = _moved(status, State.RUNNING, Reason.RUNNING, seen.message, now)
    elif job.state is not State.RUNNING:
        # else the observation is from before the start, or the runtime finds the job again
        decision = _moved(status, job.state, seen.reason, seen.message, now)
    return decision or (Decision(status) if status.info.workers != job.workers else None)


def ask_to_stop(status: JobStatus, stop: Stop, now: datetime) -> Decision | None:
    """Decide on an order to stop; None: the job is final or is being stopped. A cancel
    wins over any other order, and over one that interrupts.
    """
    if status.info.state.final or (status.stop and not _wins(stop, status.stop)):
        return None
    after = status._replace(stop=stop)
    if status.resume_at:  # between two attempts: nothing runs that must end first
        after = after.shows(retry="")._replace(resume_at=None)
        return _final(after, (), _state_of(stop), stop.reason, stop.message, now)
    moved = _moved(after, status.info.state, Reason.STOPPING, stop.message, now)
    return moved or Decision(after)


def _wins(stop: Stop, earlier: Stop) -> bool:
    if earlier.reason is not Reason.CANCELLED:
        return stop.reason is Reason.CANCELLED
    return earlier.interrupt and not stop.interrupt and stop.reason is Reason.CANCELLED


def note_hang(status: JobStatus, message: str, now: datetime, *, hangs: bool) -> Decision | None:
    """Decide on a verdict about hangs; None: the attempt does not run or is being stopped."""
    if status.info.state is not State.RUNNING or status.stop:
        return None
    after = status._replace(hung=message if hangs else "")
    return _moved(after, State.RUNNING, Reason.RUNNING, message, now)


def note_alarm(
    status: JobStatus, alarm: RaisedAlarm, stop: Stop | None, now: datetime
) -> Decision | None:
    """Decide on a rule of `alarm` that has become true, or an alert of the script. `stop`: the
    order that the rule gives. None: the attempt does not run or is being stopped, its alarms have
    this rule or alert already, or it has `ALARMS_MAX` alarms."""
    job = status.info
    acted = any(each.rule == alarm.rule for each in job.alarms)
    if job.state is not State.RUNNING or status.stop or acted or len(job.alarms) >= ALARMS_MAX:
        return None
    after = status.shows(alarms=[*job.alarms, alarm])
    told = replaced(after.info, reason=Reason.ALARM, message=alarm.sentence)
    if stop is None:
        return Decision(after, (_event(now, told),))
    stopping = after._replace(stop=stop)
    return _moved(stopping, job.state, Reason.STOPPING, stop.message, now)


def note_dependency(
    status: JobStatus, ended_id: str, ended: State, now: datetime
) -> Decision | None:
    """Decide on the end of a job or group for which this job waits; None: this job does not wait,
    or is being stopped.
    """
    job = status.info
    if job.state.final or status.stop:
        return None
    known = [replaced(dep, ended=ended) if dep.id == ended_id else dep for dep in job.dependencies]
    after = status.shows(dependencies=known)
    for dep in known:
        wanted = {"ok": State.SUCCEEDED, "failed": State.FAILED}.get(dep.condition)  # None: any end
        if wanted and dep.ended not in (None, wanted):
            message = (
                f"{dep.name} is {dep.ended}, and this job starts only after that has "
                f"{wanted.lower()}"
            )
            return _final(after, (), State.FAILED, Reason.DEPENDENCY_FAILED, message, now)
    return Decision(after.shows(message=""))


def _moved(
    status: JobStatus, state: State, reason: Reason, message: str, now: datetime
) -> Decision | None:
    if status.stop:
        reason = Reason.STOPPING
        message = status.stop.message
    elif status.hung:
        reason = Reason.HUNG
        message = status.hung
    job = status.info
    after = status.shows(state=state, reason=reason, message=message)
    if state is State.RUNNING and job.state is not State.RUNNING:
        after = after.shows(started_at=now)
    if (state, reason) != (job.state, job.reason):
        return Decision(after, (_event(now, after.info),))
    return Decision(after) if message != job.message else None


def _ended(status: JobStatus, seen: Observation, now: datetime, step: float | None) -> Decision:
    at = seen.ended_at or now
    began: tuple[Event, ...] = ()
    ran = seen.started_at is not None or seen.reason is Reason.COMPLETED
    if status.info.state is not State.RUNNING and ran:  # it was not seen to run
        status = status.shows(started_at=seen.started_at or now)
        running = status.shows(state=State.RUNNING, reason=Reason.RUNNING, message="")
        began = (_event(seen.started_at or now, running.info),)
    if seen.reason is Reason.COMPLETED:
        return _final(status, began, State.SUCCEEDED, Reason.COMPLETED, seen.message, at)
    if status.stop and status.stop.reason is Reason.COMPLETED:
        if seen.reason is Reason.CANCELLED:
            return _final(status, began, State.SUCCEEDED, Reason.COMPLETED, status.stop.message, at)
        status = status._replace(stop=None)  # the attempt failed before it was stopped
    if status.stop:  # the order is the reason, however the ranks then ended
        reason = status.stop.reason
        message = status.stop.message
    elif seen.reason is Reason.CANCELLED:
        # no order of this service: a signal, or a machine that shuts down
        reason = Reason.DELETED_EXTERNALLY
        message = seen.message or "its processes were stopped from outside"
    else:
        reason = seen.reason
        message = seen.message
    status, reset = _with_reset_retries(status, step)
    job = status.info
    spec = status.info.spec
    limit = spec.max_infrastructure_retry
    used = job.infrastructure_retries
    if reason in INFRASTRUCTURE and limit:
        if used < limit:
            after = status.shows(infrastructure_retries=used + 1)
            retry = f"{used + 1} of {limit} infrastructure retries{reset}"
            return _restarting(after, began, reason, message, retry, now)
        message += f" (all {limit} infrastructure retries are used)"
    failed = seen.first_failing
    code = failed.exit_code if failed and failed.signal is None and not status.stop else None
    limit = spec.max_retry or 0
    used = job.attempt - job.retries_from - used
    retried = _is_retried(status, reason, code)
    if retried and used < limit:
        return _restarting(
            status, began, reason, message, f"{used + 1} of {limit} retries{reset}", now
        )
    why_not = ""
    if limit and retried:
        why_not = f"not retried: max_retry={limit} is used up"
    elif limit and spec.retry_on is not None and reason in FAILURES:
        word = f"exit:{code}" if reason is Reason.EXIT_CODE and code else reason
        why_not = f"not retried: {word} is not in retry_on"
    message += f"; {why_not}" if why_not else ""
    return _final(status.shows(retry=why_not), began, _state_of(status.stop), reason, message, at)


def _with_reset_retries(status: JobStatus, step: float | None) -> tuple[JobStatus, str]:
    """The status whose retries count from 0 if the attempt got far enough,
    and the words that say so.
    """
    job = status.info
    least = status.info.spec.retry_reset_steps
    if step is None or not least:
        return status, ""
    after = status.shows(furthest_step=max(step, job.furthest_step))
    if job.attempt == 1 or step < job.furthest_step + least:
        return after, ""
    reset = f", counted from 0 again as it got from step {job.furthest_step:.15g} to {step:.15g}"
    return after.shows(retries_from=job.attempt, infrastructure_retries=0), reset


def _is_retried(status: JobStatus, reason: Reason, exit_code: int | None) -> bool:
    """True if max_retry applies to this end of an attempt."""
    words = status.info.spec.retry_on
    if words and (str(reason) in words or f"exit:{exit_code}" in words):
        return True
    if status.stop:
        return status.stop.retry
    return words is None and reason is not Reason.TIMEOUT  # of the command `setup`


def _state_of(stop: Stop | None) -> State:
    return State.CANCELLED if stop and stop.reason is Reason.CANCELLED else State.FAILED


def _restarting(
    status: JobStatus,
    began: tuple[Event, ...],
    reason: Reason,
    message: str,
    retry: str,
    now: datetime,
) -> Decision:
    number = status.info.attempt + 1
    pause = pause_before(number - status.info.retries_from + 1)
    ran = status.info.state is State.RUNNING
    # an attempt that never ran has not gone back, or has written nothing since
    last_good = status.info.last_good
    if ran:
        points = (each.last_good for each in status.info.alarms if each.last_good)
        last_good = next(points, None)
    message = f"attempt {number - 1} failed: {message} ({retry}); the next starts in {pause:g} s"
    if last_good:
        message += f" from the newest checkpoint before {_place(last_good)}"
    after = status.shows(
        state=State.RESTARTING,
        reason=reason,
        message=message,
        retry=retry,
        attempt=number,
        alarms=[],
        last_good=last_good,
    )
    after = after._replace(stop=None, hung="", resume_at=now + timedelta(seconds=pause))
    return Decision(after, (*began, _event(now, after.info)))


def _place(point: LastGood) -> str:
    if point.step is not None:
        return f"step {point.step:.15g}"
    return f"{point.time:%H:%M:%S} UTC"


def _final(
    status: JobStatus,
    began: tuple[Event, ...],
    state: State,
    reason: Reason,
    message: str,
    at: datetime,
) -> Decision:
    after = status.shows(state=state, reason=reason, message=message, finished_at=at)
    return Decision(after, (*began, _event(at, after.info)))


def _event(time: datetime, job: JobInfo) -> Event:
    return Event(
        time=time, attempt=job.attempt, state=job.state, reason=job.reason, message=job.message
    )
