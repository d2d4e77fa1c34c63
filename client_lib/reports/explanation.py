"""Explanations of a job that waits, runs or ended, and the report of its failure: JobInfo and events to text. Pure.

    job train-x7k2m is PENDING (Unschedulable), for 3m12s: 0/3 nodes have 8 nvidia.com/gpu free
    worker 1 waiting: no node takes it
    what happened:
        2026-01-02T12:00:58Z  PENDING (Queued): accepted
        2026-01-02T12:01:02Z  PENDING (Unschedulable): 0/3 nodes have 8 nvidia.com/gpu free
    next: it starts by itself as soon as there is what the message names; `client-lib instances` shows what there is

They are the same for both runtimes, which put their observations into reason, message and events. `client-lib explain`
prints this text, and with `-o json` the data. The report of a failure is raised by `wait()`:

    job train-x7k2m FAILED (ExitCode): rank 3 on worker 1 ended with exit code 1
    ValueError: too many values
    The last lines of rank 3:
        epoch 3
        Traceback (most recent call last):
        ...

The server finds the causes and hints, because it has the reports of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby

from client_lib.errors import JobCancelled, JobEnded, JobFailed
from client_lib.reports.table import duration, stamp
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, Explanation, Failure, JobInfo, WorkerInfo

EVENTS = 12  # the newest; `client-lib status NAME --events` has all
FAILURE_LINES = 20  # of the failing rank's last lines; `client-lib logs` has the rest

_RUN_AGAIN = "`client-lib resubmit {name}` runs it again"
_MORE_RETRIES = f"{_RUN_AGAIN}; with a larger max_infrastructure_retry the server does so"
_LOGS = "`client-lib logs {name}` has what it printed"

NEXT: dict[Reason, str] = {
    # while it waits
    Reason.QUEUED: "it starts by itself as soon as there is room; `client-lib instances` shows what there is",
    Reason.UNSCHEDULABLE: "it starts by itself as soon as there is what the message names; `client-lib instances` "
    "shows what there is. A smaller instance type, fewer workers or other nodes may fit now",
    Reason.IMAGE_PULL: "an image with a wrong name needs a new submit with the right one; one of a private registry "
    "needs a pull secret in the server's catalogue",
    Reason.CODE_FETCH: "if it takes long, `client-lib doctor` checks whether workers reach the server",
    Reason.STARTING: "`client-lib logs {name} -f` prints its lines as soon as there are some",
    # while it runs
    Reason.RUNNING: "`client-lib logs {name} -f` follows it",
    Reason.STOPPING: "nothing: what doesn't stop by itself is killed when grace_s is over",
    # why an attempt or the job ended
    Reason.COMPLETED: _LOGS,
    Reason.PREEMPTED: f"{_MORE_RETRIES}; a higher priority_class makes it rarer",
    Reason.NODE_LOST: _MORE_RETRIES,
    Reason.OUT_OF_MEMORY: f"a larger instance type, smaller batches or fewer processes per worker; {_LOGS}",
    Reason.EXIT_CODE: _LOGS,
    Reason.SIGNAL: _LOGS,
    Reason.LAUNCHER_LOST: f"{_LOGS}; `client-lib doctor` checks the place where it ran",
    Reason.START_FAILED: "correct what the message names and submit it again; `client-lib doctor` checks the server",
    Reason.STORAGE_FULL: "make room on the disk that the message names, or take a larger tmp_storage, then "
    f"{_RUN_AGAIN}; `client-lib delete` removes finished jobs, `client-lib doctor` checks the server's disk",
    Reason.SERVER_ERROR: f"{_RUN_AGAIN}; the server's log has the cause",
    Reason.TIMEOUT: f"a larger stop_timer, or less work for one job; {_LOGS}",
    Reason.HUNG_SILENT: f"{_LOGS}; if silence is normal for it, raise or drop health_params",
    Reason.CANCELLED: _RUN_AGAIN,
    Reason.DELETED_EXTERNALLY: f"{_RUN_AGAIN}; ask who works on the cluster beside the server",
}
"""Next step for every reason."""


def explain(info: JobInfo, events: Sequence[Event], now: datetime) -> str:
    """The state with its reason, the workers' messages, the last events and the next step."""
    lines = [*_state_lines(info, events, now), *_worker_lines(info), *_event_lines(info, events)]
    if info.state in (State.CANCELLED, State.RESTARTING):  # the report of a failure has them
        lines[1:1] = _stack_lines(info)
    return "\n".join([*lines, "next: " + "\n      ".join(_next_steps(info))])


def explained(info: JobInfo, events: Sequence[Event], now: datetime) -> Explanation:
    """The same as data, with all events."""
    return Explanation(
        job=info.name,
        state=info.state,
        reason=info.reason,
        summary=_state_lines(info, events, now)[0],
        message=info.message,
        since=_state_since(info, events),
        attempt=info.attempt,
        workers=_workers_with_message(info),
        failure=info.failure,
        stacks=info.stacks,
        events=list(events),
        next=_next_steps(info),
    )


def _state_lines(info: JobInfo, events: Sequence[Event], now: datetime) -> list[str]:
    """Lines about the state; the first one is a complete summary."""
    if info.state is State.FAILED:
        return failure_report(info).splitlines()
    because = f": {info.message}" if info.message else ""
    if info.state is State.SUCCEEDED:
        took = (info.finished_at or now) - (info.started_at or info.created_at)
        return [f"job {info.name} SUCCEEDED in {duration(took.total_seconds())}{because}"]
    waits = "" if info.state.final else f", for {duration((now - _state_since(info, events)).total_seconds())}"
    return [f"job {info.name} is {info.state} ({info.reason}){waits}{because}"]


def _state_since(info: JobInfo, events: Sequence[Event]) -> datetime:
    """Time at which the job entered its state for its reason."""
    began = info.created_at
    for (state, reason), same in groupby(events, key=lambda event: (event.state, event.reason)):
        first = next(same)
        if (state, reason) == (info.state, info.reason):
            began = first.time
    return began


def _worker_lines(info: JobInfo) -> list[str]:
    return [f"worker {worker.worker} {worker.state}: {worker.message}" for worker in _workers_with_message(info)]


def _workers_with_message(info: JobInfo) -> list[WorkerInfo]:
    """Those whose message is not part of the job's."""
    return [worker for worker in info.workers if worker.message and worker.message not in info.message]


def _event_lines(info: JobInfo, events: Sequence[Event]) -> Iterator[str]:
    left = len(events) - EVENTS
    if events:
        yield "what happened:"
    if left > 0:
        yield f"    {left} earlier: `client-lib status {info.name} --events`"
    several = len({event.attempt for event in events}) > 1
    for event in events[-EVENTS:]:
        attempt = f"attempt {event.attempt} " if several else ""
        because = f": {event.message}" if event.message else ""
        yield f"    {stamp(event.time)}  {attempt}{event.state} ({event.reason}){because}"


def _next_steps(info: JobInfo) -> list[str]:
    """Next steps: the failure's own hint, then that of the reason."""
    if info.state is State.RESTARTING:
        return ["nothing: the whole gang is started again by itself"]
    step = NEXT.get(info.reason, _LOGS).format(name=info.name)
    rank = info.failure.rank if info.failure else None
    if rank is not None:
        step = step.replace(f"logs {info.name}`", f"logs {info.name} --rank {rank}`")
    known = info.failure.hint if info.failure else None
    return [known, step] if known else [step]


# --- the report of a failure


def ended(info: JobInfo) -> JobEnded:
    """The exception for a job that is final and not SUCCEEDED."""
    if info.state is State.CANCELLED:
        return JobCancelled(f"job {info.name} was cancelled{_in_brackets(info.message)}", info=info)
    return JobFailed(failure_report(info), hint=failure_hint(info), info=info)


def failure_report(info: JobInfo) -> str:
    """The report on some lines; the first one is a complete summary."""
    failure = info.failure
    first = f"job {info.name} FAILED ({info.reason}): {_end_of_rank(failure) or info.message or 'no reason is known'}"
    if info.attempt > 1:
        first += f" in attempt {info.attempt}"
    lines = [first, *_stack_lines(info)]
    if failure is None:
        return "\n".join(lines)
    if failure.exception:
        lines.append(failure.exception)
    if failure.last_lines:
        lines.append(f"The last lines{'' if failure.rank is None else f' of rank {failure.rank}'}:")
        lines += [f"    {line}" for line in failure.last_lines[-FAILURE_LINES:]]
    return "\n".join(lines)


def _stack_lines(info: JobInfo) -> list[str]:
    return ["Before it was stopped:", *(f"    {line}" for line in info.stacks)] if info.stacks else []


def failure_hint(info: JobInfo) -> str:
    """The way out where the cause is known, and the command that shows more."""
    rank = info.failure.rank if info.failure else None
    more = f"see more: client-lib logs {info.name}" + ("" if rank is None else f" --rank {rank}")
    known = info.failure.hint if info.failure else None
    return f"{known}\n{more}" if known else more


def _end_of_rank(failure: Failure | None) -> str | None:
    """The failing rank and its end; None: no rank is to blame."""
    if failure is None or failure.rank is None:
        return failure.meaning if failure else None
    who = f"rank {failure.rank}" + ("" if failure.worker is None else f" on worker {failure.worker}")
    if failure.exit_code is None:
        return f"{who} ended{_in_brackets(failure.meaning)}"
    return f"{who} ended with exit code {failure.exit_code}{_in_brackets(failure.meaning)}"


def _in_brackets(words: str | None) -> str:
    return f" ({words})" if words else ""
