"""Explanations of a job that waits, runs or ended, and the report of its failure: JobInfo and
events to text. Pure.

Both runtimes put their observations into reason, message and events, so that one explanation does
for both. `wait()` raises the report. The server finds the causes and hints, because it has the
reports of the ranks.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, NamedTuple

from client_lib.errors import JobCancelled, JobEnded, JobFailed
from client_lib.reports.table import hints, stamp
from client_lib.spec.request import Dependency
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, Explanation, JobInfo, WorkerInfo
from client_lib.spec.wording import in_brackets, summary


class Part(NamedTuple):
    """A line of a report (an exception or hint may have several)."""

    # `hint` and `next`: its label in the text, too
    kind: Literal["summary", "exception", "line", "log", "hint", "next", "warning"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}" if self.kind in ("hint", "next") else self.text


def as_text(parts: Iterable[Part]) -> str:
    return "\n".join(map(str, parts))


EVENTS = 12  # the newest; `client-lib status NAME --events` has all
FAILURE_LINES = 20  # of the failing rank's last lines; `client-lib logs` has the rest


class Spelling(NamedTuple):
    """The words in which a reader carries out each next step."""

    logs: str
    follow: str
    resubmit: str
    resubmit_after: str
    """The words for a job that waits for another job than before ..."""
    resubmit_alone: str
    """... and for one that waits for none."""
    delete: str
    stacks: str
    cancel: str
    instances: str
    doctor: str
    events: str
    rank: str
    """The part of `logs` that names a rank."""

    def of(self, info: JobInfo) -> "Spelling":
        """The words with the job's name, and the rank that failed."""
        rank = info.failure.rank if info.failure else None
        given = {
            "name": info.name,
            "rank": "" if rank is None else self.rank.format(rank=rank),
        }
        return Spelling(*(words.format(**given) for words in self._replace(rank="")))


SHELL = Spelling(
    logs="`client-lib logs {name}{rank}`",
    follow="`client-lib logs {name} -f`",
    resubmit="`client-lib resubmit {name}`",
    resubmit_after="`client-lib resubmit {name} --set after=NEW-NAME`",
    resubmit_alone="`client-lib resubmit {name} --set after=`",
    delete="`client-lib delete`",
    stacks="`client-lib stacks {name}`",
    cancel="`client-lib cancel {name}`",
    instances="`client-lib instances`",
    doctor="`client-lib doctor`",
    events="`client-lib status {name} --events`",
    rank=" --rank {rank}",
)
PYTHON = Spelling(
    logs="`job.logs({rank})`",
    follow="`job.logs()`",
    resubmit="`client_lib.resubmit('{name}')`",
    resubmit_after="`client_lib.resubmit('{name}', after=[new_job])`",
    resubmit_alone="`client_lib.resubmit('{name}', after=[])`",
    delete="`job.delete()`",
    stacks="`job.stacks()`",
    cancel="`job.cancel()`",
    instances="`client_lib.Client().instance_types()`",
    doctor="`client_lib.Client().doctor()`",
    events="`job.events()`",
    rank="rank={rank}",
)

_RUN_AGAIN = "{resubmit} runs it again"
_MORE_RETRIES = (
    f"{_RUN_AGAIN}; with a larger max_infrastructure_retry the server does that by itself"
)
_LOGS = "{logs} shows its output"

NEXT: dict[Reason, str] = {  # the next step for every reason
    # while it waits
    Reason.QUEUED: "it starts by itself as soon as there is room; {instances} shows what is free",
    Reason.UNSCHEDULABLE: (
        "it starts by itself as soon as what the message names is free; {instances} shows what is "
        "free. A smaller instance type, fewer workers or other nodes may fit now"
    ),
    Reason.IMAGE_PULL: (
        "if the name of the image is wrong, submit the job again with the right one; an image of "
        "a private registry needs a pull secret in the server's catalogue"
    ),
    Reason.CODE_FETCH: "if it takes long, {doctor} checks whether workers reach the server",
    Reason.STARTING: "{follow} prints the lines of the ranks as soon as there are some",
    # while it runs
    Reason.RUNNING: "{follow} follows its log",
    Reason.HUNG: (
        "{stacks} shows every rank, {cancel} ends the job; hang_action='stop' or "
        "hang_action='retry' stops such an attempt"
    ),
    Reason.STOPPING: "nothing to do: processes that still run when grace_s is over are killed",
    # why an attempt or the job ended
    Reason.COMPLETED: _LOGS,
    Reason.PREEMPTED: f"{_MORE_RETRIES}; a higher priority_class makes pre-emption less likely",
    Reason.NODE_LOST: _MORE_RETRIES,
    Reason.OUT_OF_MEMORY: (
        f"a larger instance type, smaller batches or fewer processes per worker; {_LOGS}"
    ),
    Reason.EXIT_CODE: _LOGS,
    Reason.SIGNAL: _LOGS,
    Reason.LAUNCHER_LOST: f"{_LOGS}; {{doctor}} checks the place where it ran",
    Reason.START_FAILED: (
        "correct what the message names and submit it again; {doctor} checks the server"
    ),
    Reason.PREFLIGHT_FAILED: (
        f"repair or exclude the machine that the message names, and submit it again; {_LOGS}"
    ),
    Reason.SETUP_FAILED: f"correct its command setup and submit it again; {_LOGS}",
    Reason.STORAGE_FULL: (
        "make room on the disk that the message names, or take a larger tmp_storage, then "
        f"{_RUN_AGAIN}; {{delete}} removes finished jobs, {{doctor}} checks the server's disk"
    ),
    Reason.SERVER_ERROR: f"{_RUN_AGAIN}; the server's log has the cause",
    Reason.TIMEOUT: f"a larger stop_timer, or less work for one job; {_LOGS}",
    Reason.HUNG_SILENT: f"{_LOGS}; if silence is normal for it, raise or drop health_params",
    Reason.ALARM: (
        f"{_LOGS}; {_RUN_AGAIN}, and if it resumes, checkpoint_params with from_step names a "
        "checkpoint from before the alarm"
    ),
    Reason.CANCELLED: _RUN_AGAIN,
    Reason.DELETED_EXTERNALLY: f"{_RUN_AGAIN}; ask who works on the cluster beside the server",
    Reason.DEPENDENCY_FAILED: (
        "run the job that the message names again, then this job after the new one: "
        "{resubmit_after}"
    ),
}
_WANTED = {"ok": "has succeeded", "failed": "has failed", "any": "has ended"}
_NAMED = 3
"""Most jobs that a sentence names of those for which a job waits."""


def explain(
    info: JobInfo, events: Sequence[Event], now: datetime, spelling: Spelling = PYTHON
) -> list[Part]:
    """The state with its reason, the workers' messages, the last events and the next step."""
    parts = (
        failure_report(info)
        if info.state is State.FAILED
        else [Part("warning" if info.attention else "line", _summary(info, events, now))]
    )
    if info.state in (State.CANCELLED, State.RESTARTING):  # the report of a failure has them
        parts += _stack_lines(info)
    lines = [
        f"worker {each.worker} {each.state}: {each.message}" for each in _workers_with_message(info)
    ]
    lines += ["what happened:"] if events else []
    if len(events) > EVENTS:
        lines.append(f"    {len(events) - EVENTS} earlier: {spelling.of(info).events}")
    several = len({event.attempt for event in events}) > 1
    for event in events[-EVENTS:]:
        attempt = f"attempt {event.attempt} " if several else ""
        because = f": {event.message}" if event.message else ""
        lines.append(f"    {stamp(event.time)}  {attempt}{event.state} ({event.reason}){because}")
    return [*parts, *(Part("line", line) for line in lines), *advice(info, spelling)]


def explained(
    info: JobInfo, events: Sequence[Event], now: datetime, spelling: Spelling = PYTHON
) -> Explanation:
    """The explanation as data, with all events."""
    return Explanation(
        job=info.name,
        state=info.state,
        reason=info.reason,
        summary=_summary(info, events, now),
        message=info.message,
        attention=info.attention,
        since=_state_since(info, events),
        attempt=info.attempt,
        workers=_workers_with_message(info),
        failure=info.failure,
        stacks=info.stacks,
        events=list(events),
        next=[part.text for part in advice(info, spelling)],
    )


def _summary(info: JobInfo, events: Sequence[Event], now: datetime) -> str:
    return summary(info, (now - _state_since(info, events)).total_seconds())


def _state_since(info: JobInfo, events: Sequence[Event]) -> datetime:
    """Time at which the job entered its state for its reason."""
    began = info.created_at
    before: tuple[State, Reason] | None = None
    for event in events:
        entered = (event.state, event.reason)
        if entered == (info.state, info.reason) and entered != before:
            began = event.time
        before = entered
    return began


def _workers_with_message(info: JobInfo) -> list[WorkerInfo]:
    """Workers whose message says more than the job's message and failure."""
    failure = info.failure
    of_failure = f"rank {failure.rank} " if failure and failure.rank is not None else None
    return [
        worker
        for worker in info.workers
        if worker.message
        and worker.message not in info.message
        and not (of_failure and worker.message.startswith(of_failure))
    ]


def advice(info: JobInfo, spelling: Spelling = PYTHON) -> list[Part]:
    """The hint of a known failure, then the next step."""
    if info.state is State.RESTARTING:
        return [Part("next", "nothing to do: all workers are started again")]
    step = _next_step(info).format_map(spelling.of(info)._asdict())
    known = info.failure.hint if info.failure else None
    said = summary(info)
    seen = [hint for hint in hints(info.model_dump(mode="json")) if hint not in said]
    return [*(Part("hint", hint) for hint in (known, *seen) if hint), Part("next", step)]


def _next_step(info: JobInfo) -> str:
    if info.reason is Reason.QUEUED and (left := [d for d in info.dependencies if not d.ended]):
        return _waits(left)
    if info.reason is Reason.DEPENDENCY_FAILED:
        never = (d for d in info.dependencies if d.condition == "failed" and d.ended)
        for dependency in never:
            if dependency.ended is not State.FAILED:
                return (
                    f"nothing to do: this job was to run only if {dependency.name} failed; "
                    "{resubmit_alone} runs it nevertheless"
                )
    return NEXT.get(info.reason, _LOGS)


def _waits(left: Sequence[Dependency]) -> str:
    """The next step of a job that waits for these ends of others."""
    ends = [f"{each.name} {_WANTED[each.condition]}" for each in left[:_NAMED]]
    if len(left) > _NAMED:
        ends.append(f"{len(left) - _NAMED} more have ended as required")
    fails = any(each.condition != "any" for each in left)
    otherwise = ", and fails if that can't happen any more" if fails else ""
    return f"it starts by itself when {', '.join(ends)}{otherwise}; {{cancel}} ends its wait"


# --- the report of a failure


def ended(info: JobInfo, *, printed: bool = False) -> JobEnded:
    """The exception for a job that is final and not SUCCEEDED. `printed`: see `failure_report`."""
    if info.state is State.CANCELLED:
        report = [Part("summary", f"job {info.name} was cancelled{in_brackets(info.message)}")]
        error: JobEnded = JobCancelled(as_text(report), info=info)
    else:
        report = failure_report(info, printed=printed)
        steps = advice(info)
        error = JobFailed(as_text(report), hint=as_text(steps), info=info, printed=printed)
        report += steps
    error.card = partial(_card, info.state, report)  # can be pickled
    return error


def _card(state: str, parts: list[Part]) -> str:
    from client_lib.reports import display  # for notebooks alone

    return display.report_as_html(parts, state)


def failure_report(info: JobInfo, *, printed: bool = False) -> list[Part]:
    """The report, first a complete summary. `printed`: no last lines, because the
    whole log was just printed.
    """
    failure = info.failure
    parts = [Part("summary", summary(info)), *_stack_lines(info)]
    if failure and failure.exception:
        parts.append(Part("exception", failure.exception))
    if failure and failure.last_lines and not printed:
        parts.append(
            Part(
                "line",
                f"The last lines{'' if failure.rank is None else f' of rank {failure.rank}'}:",
            )
        )
        parts += [Part("log", f"    {line}") for line in failure.last_lines[-FAILURE_LINES:]]
    return parts


def _stack_lines(info: JobInfo) -> list[Part]:
    lines = [Part("log", f"    {line}") for line in info.stacks]
    return [Part("line", "Before it was stopped:"), *lines] if lines else []
