"""Answers of `/api/v1`.

They are lenient, so that an older client understands a newer server: unknown fields are ignored,
and unknown states and reasons are kept as they were sent. Times are aware UTC.
"""

# without `from __future__ import annotations`: pydantic would compile each annotation from its
# text, 3 % of a submit

import textwrap
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, Dependency, FunctionCode, Provenance
from client_lib.spec.states import State
from client_lib.spec.validation import Lenient, Seldom, SentReason, SentState, WithNan

_SHOWN = 118  # characters of a repr


def _text_as_sent(value: object, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError:
        if isinstance(value, str):
            return value
        raise


def brief(kind: str, name: str, facts: str) -> str:
    """A repr of one line; `model_dump()` has everything."""
    return textwrap.shorten(f"{kind}({name!r}, {facts}", _SHOWN, placeholder="…") + ")"


class WorkerInfo(Lenient):
    worker: int
    state: Annotated[
        Literal["waiting", "starting", "running", "ended"], WrapValidator(_text_as_sent)
    ] = "waiting"
    host: str | None = None
    message: str | None = None
    exit_code: int | None = None
    """0: every rank of the worker ended with 0. None: the worker has not ended, or left no
    report."""
    warm: bool | None = None
    """Its ranks came out of the warm pool. None: not started, or not known any more."""
    threads: int | None = None
    """OMP_NUM_THREADS of its processes: its cores, shared among them. None: not
    started, or the job sets it.
    """


class Failure(Lenient):
    """The cause of a failed job: the first failing rank, not a rank that died because of it."""

    worker: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    meaning: str | None = None
    """Meaning of the exit code or signal, as a sentence."""
    exception: str | None = None
    traceback: str | None = None
    last_lines: list[str] = []
    hint: str | None = None
    """The way out, where the cause is a known one."""


class JobProgress(WithNan):
    """Progress of a running job by the lines that it prints; None: not known."""

    done: float | None = None
    """0 to 1."""
    left_s: float | None = None
    """Seconds until all steps are done, by the usual speed so far; None too while the job hangs."""
    left_from_s: float | None = None
    left_to_s: float | None = None
    """`left_s` by the upper and the lower quartile of the speeds so far."""
    rate: float | None = None
    """Steps in a second."""
    metrics: dict[str, float] = {}
    """The newest value of each metric of rank 0, the loss first."""
    nan: str | None = None
    """The sentence of the attention `loss`, for clients that do not know `attention`."""
    slow: str | None = None
    """The rank for which the others wait, and the part of the time that it costs;
    also of a job that has ended.
    """


class Attention(Lenient):
    """A fact that a person should know, although the state of the job or group is a good one: it is
    still true, or has spoiled the result. Exit codes and states do not depend on it.
    """

    code: str
    """`loss`: a loss is NaN or infinite. `hung`: the ranks hang. `alarm`: a rule of `alarm` has
    become true, or the script has called `client_lib.alert`. `slow`: a rank or worker holds up the
    others. `stuck`: it waits for a job that hangs. A newer server may send other codes."""
    sentence: str
    """One line for people."""


class LastGood(Lenient):
    """The last point of an attempt at which all was well, by the rule of `alarm` that ended it."""

    step: float | None = None
    """None: not known."""
    time: datetime


class RaisedAlarm(Lenient):
    """A rule of `alarm` that has become true in the newest attempt, or an alert of its script."""

    rule: str
    """The text of the rule, or `client_lib.alert(TITLE)`."""
    sentence: str
    """One line for people: the rule, and what the metric did."""
    time: datetime
    """The time at which the server found it."""
    last_good: LastGood | None = None
    """The point before which a new attempt starts; None: the rule makes none, or is about no
    metric."""


class Membership(Lenient):
    """The place of a job in its group."""

    name: str
    id: str
    index: int
    """Number from 0; the member is called `<name>-<index>`."""
    values: dict[str, str | int | float | bool | None] = {}
    """Values that this member tries."""


class JobInfo(Lenient):
    """Everything about one job, ready to show: secrets are masked."""

    name: str
    id: str
    owner: str
    version: int
    """Grows with every change; `GET /jobs/{name}?after_version=` waits for the next."""
    runtime: str
    """`local` or `kubernetes`."""
    state: SentState
    reason: SentReason
    message: str = ""
    attempt: int = 1
    infrastructure_retries: int = 0
    """Number of new attempts after `retries_from` that max_infrastructure_retry has allowed."""
    retries_from: int = 1
    """The attempt after which retries are counted: the newest that got further by
    retry_reset_steps, else the first.
    """
    furthest_step: float = 0.0
    """The largest step of the attempts that failed, if `retry_reset_steps` is given."""
    retry: str = ""
    """The retry that the newest attempt is, as in "1 of 3 retries", or the reason why a
    failed job was not retried.
    """
    spec: JobSpec
    code: Code
    function: FunctionCode | None = None
    """None: the job runs a script or a command, and has no results."""
    created_at: datetime
    started_at: datetime | None = None
    """First RUNNING of the newest attempt."""
    finished_at: datetime | None = None
    workers: list[WorkerInfo] = []
    notices: list[str] = []
    """The runtime's messages about fields that it interprets differently."""
    failure: Failure | None = None
    stacks: list[str] = []
    """The places of the ranks before the last attempt was stopped, if they had printed nothing for
    10 s: a line for all ranks that were at one place."""
    group: Membership | None = None
    """None: the job was submitted alone."""
    dependencies: list[Dependency] = []
    """The jobs and groups of `spec.after`, in its order."""
    alarms: list[RaisedAlarm] = []
    """The rules of `spec.alarm` that have become true in the newest attempt, and the alerts of its
    scripts, each once."""
    last_good: LastGood | None = None
    """The newest attempt starts from the newest checkpoint before this point; later ones were moved
    aside. None: it starts from the last one."""
    # the last two fields: server_stub.service.job_json replaces the end of the JSON
    attention: list[Attention] = []
    """Empty: all is well, as far as the server knows. Of an ended job, what its end deserves."""
    progress: JobProgress | None = None
    """None: the job does not run, shows none, or belongs to another user."""

    def __repr__(self) -> str:
        said = self.attention[0].sentence if self.attention else self.message
        why = f": {said}" if said else ""
        return brief("JobInfo", self.name, f"{self.state} ({self.reason}), {self.spec.script}{why}")

    __str__ = __repr__

    @property
    def warm(self) -> bool | None:
        """All ranks of the newest attempt came out of the warm pool; None: not
        started, or not known any more.
        """
        known = [worker.warm for worker in self.workers]
        return None if not known or None in known else all(known)


class GroupInfo(Seldom):
    """A group as it is now."""

    name: str
    id: str
    owner: str
    script: str
    size: int
    """Members that were submitted; some may have been deleted since."""
    max_parallel: int | None = None
    stop_on_failure: bool = False
    created_at: datetime
    state: SentState = State.PENDING
    """SUCCEEDED: all members have succeeded. FAILED or CANCELLED: all members have ended, and at
    least one has failed or was cancelled."""
    counts: dict[str, int] = {}
    """Number of members in each state."""
    earlier: str | None = None
    """Name of the group with the members that the last resubmit has replaced."""
    attention: list[Attention] = []
    """An entry for each code that its members have, which names one of them."""


class WorkerMachine(Seldom):
    """Interpreter, packages and hardware of one worker, as its launcher has read it."""

    worker: int = 0
    hardware: dict[str, str] = {}
    """python, torch, cuda, driver, gpus, cpu and cores, as far as they are known."""
    seeds: dict[str, str] = {}
    """Variables of the ranks that make a run repeatable, such as PYTHONHASHSEED."""
    packages: dict[str, str] = {}
    """Names and versions of the packages that the interpreter of the ranks finds."""


class JobProvenance(Seldom):
    """`GET /jobs/{name}/provenance`: what a job ran, for its owner and admins."""

    submitted: Provenance | None = None
    """None: an older client submitted it."""
    machines: list[WorkerMachine] = []
    """The first workers of the newest attempt, up to 64, by number."""
    images: list[str] = []
    """The container images that the workers ran, with their digests."""
    last_success: str | None = None
    """If this job failed: the newest earlier job of its owner and script that succeeded."""


class JobPage(Seldom):
    jobs: list[JobInfo]
    groups: list[GroupInfo] = []
    next_cursor: str | None = None
    """None: this was the last page."""


class StateChange(Seldom):
    """A job that has come into another state."""

    id: str
    state: SentState


class StateChanges(Seldom):
    """The changes since a cursor, oldest first."""

    changes: list[StateChange]
    complete: bool = True
    """False: some are missing, because the cursor is too old or of a server before a restart."""
    cursor: str
    """The place in the sequence from which the next call goes on."""


class Event(Seldom):
    """One thing that happened to a job; every transition of the state is one."""

    time: datetime
    attempt: int
    state: SentState
    reason: SentReason
    message: str


class EventList(Seldom):
    events: list[Event]


class OutputFile(Seldom):
    """One file that a rank wrote and that is kept for download."""

    path: str
    """Relative to the working directory, with slashes; `worker-<n>/...` where several workers wrote
    different files.
    """
    size: int
    sha256: str
    modified_at: datetime
    executable: bool = False
    attempt: int
    worker: int


class OutputLeftOut(Seldom):
    """One file (or its newest version) that is not kept."""

    path: str
    size: int
    why: str
    worker: int


class OutputList(Seldom):
    """`GET /jobs/{name}/outputs`."""

    files: list[OutputFile]
    """Sorted by path."""
    left_out: list[OutputLeftOut] = []
    in_place: str | None = None
    """The folder that the job runs in, where it runs in place: all that
    it writes is found there.
    """
    final: bool
    """The job has ended: nothing more comes."""


class Answer(Seldom):
    """The effect of an action, as a sentence."""

    message: str


class InstanceType(Seldom):
    name: str
    gpus: int
    cpu: float
    """Cores per worker."""
    memory_gib: float
    available: int | None = None
    """Number of workers of this type that fit right now; None: not known. Local runtime, on cores:
    those that have cores of their own; others start, too, and share the cores.
    """
    description: str = ""


class InstanceTypes(Seldom):
    instance_types: list[InstanceType]


class WarmPoolInfo(Seldom):
    """A resident process that has packages imported, and forks ranks."""

    python: str
    """The interpreter that it is for."""
    state: Literal["starting", "ready"]
    pid: int | None = None
    modules: int = 0
    """Imported modules of installed packages."""
    launches: int = 0
    """Workers that were forked from the pool."""
    idle_s: float = 0.0
    """Seconds since it was last asked."""
    memory_mib: float | None = None
    """Its proportional share (PSS)."""


class ServerInfo(Seldom):
    version: str
    commit: str | None = None
    """The commit of the server's code. None: the code does not know it."""
    api: str = "v1"
    runtime: str
    user: str
    admin: bool = False
    data_dir: str | None = None
    """None for users who are not admin."""
    warm_pools: list[WarmPoolInfo] = []
    """Empty for users who are not admin."""


class LoginIssuer(Seldom):
    """The OpenID Connect issuer whose tokens a server takes."""

    issuer: str
    """Its URL."""
    client_id: str
    """Id with which a client asks the issuer for a token."""
    token: Literal["id_token", "access_token"] = "id_token"
    """The name of the issuer's token that the server takes."""


class LoginLink(Seldom):
    """A link that logs a browser in, once."""

    path: str
    """Relative to the server's URL."""
    expires_s: float
    """Seconds from now on in which it can be opened."""


class Check(Seldom):
    """One line of the doctor."""

    name: str
    ok: bool
    message: str
    fix: str | None = None


class DoctorReport(Seldom):
    checks: list[Check]


class Manifest(Seldom):
    """A view of what a submit would create: locally worker plans, on Kubernetes objects. Secrets
    are masked, and binary files are shown by their size and digest."""

    runtime: str
    objects: list[dict[str, Any]]


class ErrorBody(Seldom):
    code: str
    message: str
    hint: str | None = None


class Explanation(Seldom):
    """The explanation of a waiting, running or ended job; times are aware UTC."""

    job: str
    """The job's name."""
    state: SentState
    reason: SentReason
    summary: str
    """One line for people: the first line of `explain`."""
    message: str
    """The runtime's sentence about the state, or nothing."""
    attention: list[Attention] = []
    """See `JobInfo`."""
    since: datetime
    """Time at which the job entered this state for this reason."""
    attempt: int
    workers: list[WorkerInfo]
    """The workers that have a message of their own."""
    failure: Failure | None
    """The first failing rank of a failed job."""
    stacks: list[str] = []
    """The places of the ranks before they were stopped, see `JobInfo`."""
    events: list[Event]
    """All events, oldest first."""
    next: list[str]
    """Next steps: at least one, the likeliest first."""
    changed: str = ""
    """A sentence about what has changed since the script of a failed job last succeeded."""

    def __repr__(self) -> str:
        return brief("Explanation", self.job, f"{self.summary}; next: {self.next[0]}")

    __str__ = __repr__
