"""What travels beside the spec: requests and answers of `/api/v1`.

Requests are strict (an unknown field is an error); answers are lenient, so that an older client reads a newer server.
Times are aware UTC.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from client_lib.spec.job import JobSpec, Strict, empty
from client_lib.spec.states import Reason, State

SHA256 = r"^[0-9a-f]{64}$"
JOB_ID = r"^[0-9a-f]{32}$"


class Lenient(BaseModel):
    """What servers answer: frozen, and an unknown field is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class SharedFolderProof(Strict):
    """A file that the client wrote into the script's folder: the server shares it if it reads the same nonce."""

    path: str
    nonce: str


class CodeInPlace(Strict):
    """The script runs where it lies."""

    mode: Literal["in_place"] = "in_place"
    sha256: Annotated[str, Field(pattern=SHA256)] | None = None
    """Digest of the script's bytes at submit; None for a command that is no file."""
    proof: SharedFolderProof | None = None
    """Needed unless the server already knows (a resubmit)."""


class CodeSnapshot(Strict):
    """The script runs from a copy of its folder, uploaded before."""

    mode: Literal["snapshot"] = "snapshot"
    sha256: Annotated[str, Field(pattern=SHA256)]
    """Digest of the uploaded archive (tar.gz)."""
    root: str
    """The folder on the submitter's machine; for people only."""
    script: str | None = None
    """The script's path relative to the root; None for a command."""
    working_dir: str = "."
    """Working directory of the processes, relative to the root."""
    files: int = 0
    size: int = 0
    """Bytes of the archive."""


Code = Annotated[CodeInPlace | CodeSnapshot, Field(discriminator="mode")]


class FunctionCode(Strict):
    """A pickled function with its arguments, uploaded before as a snapshot is; every rank calls it."""

    sha256: Annotated[str, Field(pattern=SHA256)]
    """Digest of the uploaded file; what is in it says `client_lib.worker.function_runner`."""
    size: int = 0
    """Bytes of the file."""
    name: str
    """Of the function; for people only."""
    python: str
    """Version that pickled it, `3.11`; only the same one can read it."""
    cloudpickle: str


def _can_be_set(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name or "\0" in value:  # the value is not shown: it may be a token
            raise ValueError(f"{name!r} can't be set: no name is empty or holds '=', nothing holds a NUL byte")
    return variables


Variables = Annotated[dict[str, str], AfterValidator(_can_be_set)]
"""Environment variables as a process can receive them."""


class Submitter(Strict):
    """Who submits, as the local runtime needs it; stored 0600 outside the database, never shown.

    The job runs with this interpreter and on top of this environment, not the server's.
    """

    python: str | None = None
    """Absolute path of the interpreter that runs the scripts."""
    environment: Variables = {}
    working_dir: str | None = None
    """Absolute; the caller's."""
    gpus: list[str] | None = None
    """Device indices or UUIDs that the caller may use (CUDA_VISIBLE_DEVICES, SLURM); None: no bound."""


class SubmitRequest(Strict):
    """`POST /jobs` and `POST /render`."""

    spec: JobSpec
    code: Code
    function: FunctionCode | None = None
    """What runs instead of a script: `spec.script` is then a name for people, and `code` says where it runs."""
    submitter: Submitter = Submitter()
    secret_values: Variables = empty(dict)
    """Values for `spec.secrets`; names that are missing here are looked up in the server's catalogue."""
    checkpoints_of: Annotated[str, Field(pattern=JOB_ID)] | None = None
    """`id` of a job of the same user, which has ended: this one starts with a copy of its checkpoints, where neither
    names a `checkpoint_dir`."""


class RankReport(Lenient):
    """How one process ended."""

    rank: int
    exit_code: int | None = None
    """None while it is not known, or when a signal ended it."""
    signal: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    exception: str | None = None
    """Class and message, as in a traceback's last line."""
    traceback: str | None = None
    last_lines: list[str] = []
    """At most 50."""
    stopped_by_us: bool = False
    """It got SIGTERM or SIGKILL from its launcher: it is not the cause."""


class WorkerInfo(Lenient):
    worker: int
    state: Literal["waiting", "starting", "running", "ended"] = "waiting"
    host: str | None = None
    message: str | None = None
    exit_code: int | None = None
    """0: every rank of it ended with 0. None: not ended, or without a report."""
    warm: bool | None = None
    """Its ranks came out of the warm pool. None: not started, or not known any more."""


class Failure(Lenient):
    """Why a job failed: the first failing rank, not one of those that died of it."""

    worker: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    meaning: str | None = None
    """What the exit code or signal means, in words."""
    exception: str | None = None
    traceback: str | None = None
    last_lines: list[str] = []
    hint: str | None = None
    """The way out, where the cause is a known one."""


class JobInfo(Lenient):
    """Everything about one job, ready to show: secrets are masked."""

    name: str
    id: str
    owner: str
    version: int
    """Grows with every change; `GET /jobs/{name}?after_version=` waits for the next."""
    runtime: str
    """`local` or `kubernetes`."""
    state: State
    reason: Reason
    message: str = ""
    attempt: int = 1
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
    """What the runtime said once about fields that it reads otherwise."""
    failure: Failure | None = None

    @property
    def warm(self) -> bool | None:
        """All ranks of the newest attempt came out of the warm pool; None: not started, or not known any more."""
        known = [worker.warm for worker in self.workers]
        return None if not known or None in known else all(known)


class JobPage(Lenient):
    jobs: list[JobInfo]
    next_cursor: str | None = None
    """None: this was the last page."""


class Event(Lenient):
    """One thing that happened to a job; every transition of the state is one."""

    time: datetime
    attempt: int
    state: State
    reason: Reason
    message: str


class EventList(Lenient):
    events: list[Event]


class OutputFile(Lenient):
    """One file that a rank wrote and that is kept for download."""

    path: str
    """Relative to the working directory, with slashes; `worker-<n>/...` where several workers wrote different ones."""
    size: int
    sha256: str
    modified_at: datetime
    executable: bool = False
    attempt: int
    worker: int


class OutputLeftOut(Lenient):
    """One file (or its newest version) that is not kept."""

    path: str
    size: int
    why: str
    worker: int


class OutputList(Lenient):
    """`GET /jobs/{name}/outputs`."""

    files: list[OutputFile]
    """By their paths."""
    left_out: list[OutputLeftOut] = []
    in_place: str | None = None
    """The folder that the job runs in, where it runs in place: all that it writes is found there."""
    final: bool
    """The job has ended: nothing more comes."""


class OutputLength(Lenient):
    """How much of a file that a worker keeps the server has."""

    length: int
    """Bytes; it is kept when these are all."""


class Answer(Lenient):
    """What an action did, in a sentence."""

    message: str


class InstanceType(Lenient):
    name: str
    gpus: int
    cpu: float
    """Cores per worker."""
    memory_gib: float
    available: int | None = None
    """How many workers of it fit right now; None: not known."""
    description: str = ""


class InstanceTypes(Lenient):
    instance_types: list[InstanceType]


class WarmPoolInfo(Lenient):
    """A resident process that has packages imported, and forks ranks."""

    python: str
    """The interpreter that it is for."""
    state: Literal["starting", "ready"]
    pid: int | None = None
    modules: int = 0
    """Imported modules of installed packages."""
    launches: int = 0
    """Workers that came out of it."""
    idle_s: float = 0.0
    """Seconds since it was last asked."""
    memory_mib: float | None = None
    """Its proportional share (PSS)."""


class ServerInfo(Lenient):
    version: str
    api: str = "v1"
    runtime: str
    user: str
    admin: bool = False
    data_dir: str | None = None
    """None for those who are not admin."""
    warm_pools: list[WarmPoolInfo] = []
    """Empty for those who are not admin."""


class Check(Lenient):
    """One line of the doctor."""

    name: str
    ok: bool
    message: str
    fix: str | None = None


class DoctorReport(Lenient):
    checks: list[Check]


class Manifest(Lenient):
    """Exactly what a submit would create, secrets masked: locally worker plans, on Kubernetes objects."""

    runtime: str
    objects: list[dict[str, Any]]


class WorkerSays(Lenient):
    """How far a worker elsewhere is. Lenient: a newer worker may say more."""

    state: Literal["preparing", "ready", "started", "ended"]
    signs_of_life: int = 0
    """Another one than before when a rank has written something meanwhile."""


class WorkerOrder(Lenient):
    """What it is to do."""

    do: Literal["wait", "go", "stop", "exit"]
    grace_s: float | None = None
    """With `stop`: seconds between SIGTERM and SIGKILL; None: as its plan says."""


class LogLengths(Lenient):
    """How much of a worker's log the server has."""

    length: int
    """Offset behind the last record: the next one is wanted from there."""
    durable: int
    """Offset up to which a loss of power takes nothing."""
    next_seq: int = 0
    """Of the record that comes next."""


class ErrorBody(Lenient):
    code: str
    message: str
    hint: str | None = None
