"""Requests of users, and the messages of workers apart from logs and reports.

The programs in the workers (client_lib.worker) read and write their messages as plain JSON.
"""

# without `from __future__ import annotations`: pydantic would compile each annotation from its
# text, 3 % of a submit

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import Self  # of the standard library from Python 3.11 on

from client_lib.spec.command_line import NAME_MAX, check_name
from client_lib.spec.job import AFTER_MAX, GPUS_MAX, Condition, JobSpec
from client_lib.spec.validation import (
    ARGUMENTS_MAX,
    MANY_MAX,
    Bound,
    Label,
    Lenient,
    Line,
    Scalar,
    SentState,
    Strict,
    Text,
    empty,
    is_storable,
    up_to,
    within,
)

SHA256 = r"^[0-9a-f]{64}$"
JOB_ID = r"^[0-9a-f]{32}$"
DIFF_MAX = 256 * 1024
MEMBERS_MAX = MANY_MAX
GROUP_BYTES_MAX = 32 * 2**20  # of the requests of all members
MEMBER_NUMBERS = 100_000  # counting resubmitted members
GROUP_NAME_MAX = NAME_MAX - len(f"-{MEMBER_NUMBERS - 1}")
# of a session: its order is one line of up to 512 KiB (client_lib.launcher_protocol.control)
_ARGV_MAX = 32 * 1024


class SharedFolderProof(Strict):
    """A file that the client wrote into the script's folder: the server shares the folder if it
    reads the nonce there.
    """

    path: Line
    nonce: Label


class CodeInPlace(Strict):
    """The script runs where it lies."""

    mode: Literal["in_place"] = "in_place"
    sha256: Annotated[str, Field(pattern=SHA256)] | None = None
    """Digest of the script's bytes at submit; None for a command that is no file."""
    proof: SharedFolderProof | None = None
    """Needed unless the server already knows (a resubmit)."""


def _check_inside(path: str) -> None:
    if path.startswith(("/", "~")) or ".." in path.split("/"):
        raise ValueError(
            f"{path!r} does not lie below the root of the snapshot; give a path relative to it"
        )


_Inside = Annotated[Line, Bound(_check_inside)]
_Amount = Annotated[int, within(0, 2**63 - 1)]


class CodeSnapshot(Strict):
    """The script runs from a copy of its folder, uploaded before."""

    mode: Literal["snapshot"] = "snapshot"
    sha256: Annotated[str, Field(pattern=SHA256)]
    """Digest of the uploaded archive (tar.gz)."""
    root: Line
    """The folder on the submitter's machine; for people only."""
    script: _Inside | None = None
    """The script's path relative to the root; None for a command."""
    working_dir: _Inside = "."
    """Working directory of the processes, relative to the root."""
    files: _Amount = 0
    size: _Amount = 0
    """Bytes of the archive."""


Code = Annotated[CodeInPlace | CodeSnapshot, Field(discriminator="mode")]


class FunctionCode(Strict):
    """A pickled function with its arguments, uploaded before as a
    snapshot is; every rank calls it.
    """

    sha256: Annotated[str, Field(pattern=SHA256)]
    """Digest of the uploaded file; `client_lib.worker.function_runner` describes its contents."""
    size: _Amount = 0
    """Bytes of the file."""
    name: Line
    """Name of the function; for people only."""
    python: Label
    """Version of Python that pickled the function, `3.11`; no other version can read it."""
    cloudpickle: Label


def _can_be_set(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        # the value is not shown: it may be a token
        if not name or "=" in name or not is_storable(name + value):
            raise ValueError(
                f"{name!r} can't be set: no name is empty or holds '=', nothing holds a NUL byte "
                "or half of a character"
            )
    return variables


Variables = Annotated[dict[str, str], AfterValidator(_can_be_set), up_to(ARGUMENTS_MAX, "object")]
"""Environment variables as a process can receive them."""


class Submitter(Strict):
    """The caller, for the local runtime; stored 0600 outside the database, never shown.

    The job runs with this interpreter and on top of this environment, not the server's.
    """

    python: Line | None = None
    """Absolute path of the interpreter that runs the scripts."""
    environment: Variables = {}
    working_dir: Line | None = None
    """Absolute; the caller's."""
    gpus: Annotated[list[Label], up_to(GPUS_MAX)] | None = None
    """Device indices or UUIDs that the caller may use
    (CUDA_VISIBLE_DEVICES, SLURM); None: no bound.
    """


class Provenance(Strict):
    """Origin of the code of a job, as its submitter saw it; None: not known, or
    it is in no git repository.
    """

    command_line: Line = ""
    """The command that submitted it; values that are named like secrets are `***`."""
    commit: Line | None = None
    branch: Line | None = None
    remote: Line | None = None
    """URL of the repository `origin`, without credentials."""
    diff: Annotated[str, Field(max_length=DIFF_MAX)] | None = None
    """The uncommitted changes as a patch, with new files that git does not ignore."""
    missing: Line | None = None
    """The reason why a part is missing, as a sentence."""


class Dependency(Lenient):
    """A job or group that another job waits for, by its id: names are
    used again after a deletion.
    """

    name: str
    id: str
    condition: Condition
    ended: SentState | None = None
    """The state in which it ended; None: not yet. DELETED: it was removed before the
    server noted how it ended.
    """


class SubmitRequest(Strict):
    """`POST /jobs` and `POST /render`."""

    spec: JobSpec
    code: Code
    function: FunctionCode | None = None
    """The function that runs instead of a script: `spec.script` is then a name for
    people, and `code` is its place.
    """
    submitter: Submitter = Submitter()
    secret_values: Variables = empty(dict)
    """Values for `spec.secrets`; names that are missing here are looked up
    in the server's catalogue.
    """
    checkpoints_of: Annotated[str, Field(pattern=JOB_ID)] | None = None
    """`id` of a job of the same user, which has ended: the new job starts with a copy of that job's
    checkpoints, unless one of the two names a `checkpoint_dir`."""
    checkpoints_name: Line | None = None
    """Name of that job. The server sets it."""
    dependencies: Annotated[list[Dependency], up_to(AFTER_MAX)] = []
    """The jobs and groups of `spec.after`. The server sets them."""
    namespace: Line | None = None
    """Namespace of the cluster in which the job runs, its owner's team's; None: the
    server's. The server sets it.
    """
    team: Line | None = None
    """Name of its owner's team; None: the owner has none. The server sets it."""
    service_account: Line | None = None
    """ServiceAccount of the team's pods in the cluster; None: the catalogue's. The server sets it.
    """
    pull_secrets: Annotated[list[Line], up_to(MANY_MAX)] = []
    """Names of the team's Secrets for registries, beside the catalogue's. The server sets them."""
    provenance: Provenance | None = None
    """None: an earlier client sent the request."""


# --- groups


class GroupMember(Strict):
    """One run of the group."""

    args: Annotated[list[Text], up_to(ARGUMENTS_MAX)]
    """`args` of the member, in place of the `args` of the job."""
    values: Annotated[dict[Label, Scalar], up_to(MANY_MAX, "object")] = {}
    """Values that it tries, as in `{"lr": "0.1"}`; for people and tables."""


class GroupRequest(Strict):
    """`POST /groups`: a job and its runs, which differ in their arguments."""

    name: Annotated[Label, Bound(check_name), Field(max_length=GROUP_NAME_MAX)]
    """Unique among one's jobs and groups. The members are called
    `<name>-0`, `<name>-1` and so on.
    """
    request: SubmitRequest
    """The job; each member has a `spec.name` and `spec.args` of its own."""
    members: Annotated[list[GroupMember], Field(min_length=1), up_to(MEMBERS_MAX)]
    max_parallel: Annotated[int, Field(ge=1)] | None = None
    """Members that may run or wait for a machine at the same time; None: all."""
    stop_on_failure: bool = False
    """True: when a member has FAILED, the others are cancelled."""


# --- sessions


class SessionTerminal(Strict):
    """The terminal of a user."""

    rows: Annotated[int, within(0, 65535)]
    columns: Annotated[int, within(0, 65535)]
    term: Annotated[Line, Field(max_length=100)] = "xterm"
    """Value of TERM."""


class SessionRequest(Strict):
    """A session in a worker of a running job."""

    argv: Annotated[list[str], up_to(ARGUMENTS_MAX)] = []
    """The command and its arguments, up to 32768 characters together; []: a shell."""
    port: Annotated[int, within(1, 65535)] | None = None
    """Connect to this port of the worker, instead of a command."""
    rank: Annotated[int, Field(ge=0)] | None = None
    """The command gets the environment of this rank, on its worker."""
    worker: Annotated[int, Field(ge=0)] | None = None
    """The command gets the environment of this worker, without the variables of
    a rank. Default: worker 0.
    """
    terminal: SessionTerminal | None = None
    """None: the command gets pipes."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.rank is not None and self.worker is not None:
            raise ValueError("give a rank or a worker, not both")
        if sum(map(len, self.argv)) > _ARGV_MAX:
            raise ValueError(
                f"the command is longer than {_ARGV_MAX} characters: write it to a script"
            )
        return self


# --- workers


_RANKS_MAX = 1024
"""Most ranks of a worker, as in `JobSpec.processes_per_worker`."""


class WorkerSays(Lenient):
    """Progress of a worker on another machine. Lenient: a newer worker may send more."""

    state: Literal["preparing", "ready", "started", "ended"]
    signs_of_life: int = 0
    """Changes whenever a rank has written something."""
    stacks: str | None = None
    """Mark of the last order for stacks that the worker has received; None: the worker's version
    cannot take stacks.
    """
    quiet: Annotated[
        dict[int, Annotated[float, Field(ge=0, le=1e9)]], up_to(_RANKS_MAX, "object")
    ] = {}
    """Its ranks that do nothing, and for how many seconds."""
    sessions: bool = False
    """It can take up sessions of users."""


class WorkerOrder(Lenient):
    """The order for a worker."""

    do: Literal["wait", "go", "stop", "exit"]
    grace_s: float | None = None
    """Seconds between SIGTERM and SIGKILL of a `stop`; None: the time in its plan."""
    interrupt: bool = False
    """True: SIGINT in place of SIGTERM."""
    stacks: str | None = None
    """Mark of an order to send the stacks of its ranks, which does not change what
    the worker does; None: none.
    """
    session: str | None = None
    """Mark of a session of a user to take up; None: none."""


class LogLengths(Lenient):
    """The server's part of a worker's log."""

    length: int
    """Offset after the last record: the next one is expected there."""
    durable: int
    """Offset up to which a loss of power takes nothing."""
    next_seq: int = 0
    """Number of the next record."""


class OutputLength(Lenient):
    """The server's part of a file that a worker keeps."""

    length: int
    """Bytes; it is kept when these are all."""
