"""The protocol of a runtime, the place where attempts of jobs run.

A runtime starts, observes and stops attempts; the service decides about jobs, and what follows from
the end of an attempt. Implementations: `local` (processes of this machine) and `kube` (pods of a
cluster).
"""

from __future__ import annotations

import socket
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Code, Submitter
from client_lib.spec.states import Reason
from client_lib.spec.wire import (
    Check,
    Failure,
    InstanceType,
    LastGood,
    Manifest,
    WarmPoolInfo,
    WorkerInfo,
)
from server_stub.worker_gateway.worker import Quiet, StackDump


class Source(NamedTuple):
    """A job whose outputs, or whose result, another job gets."""

    job_dir: Path
    attempt: int
    """Its newest attempt."""
    member: str = ""
    """Its name, if the other job waited for its group; "": for itself."""


@dataclass(frozen=True)
class Attempt:
    """One gang start of all workers of a job, as the service orders it."""

    job_id: str
    job_name: str
    number: int
    """Counted from 1."""
    spec: JobSpec
    """The spec, with unmasked env_variables."""
    code: Code
    submitter: Submitter
    secret_values: dict[str, str] = field(repr=False)
    job_dir: Path
    """`<data>/jobs/<id>`: holds the files of the attempt (see `server_stub.files.job_dirs`)."""
    snapshot: Path | None
    """The archive, if the code is a snapshot."""
    created_at: datetime
    """Creation time of the job, which orders the queue within a priority class."""
    function: Path | None = None
    """The pickled function, if the job is one: `spec.script` is then its name."""
    checkpoints_from: Path | None = None
    """Checkpoint directory of an earlier job (resubmit, `checkpoint_from`), copied for
    this one before it starts.
    """
    checkpoints_name: str | None = None
    """Name of that job. None: there is none, or an earlier version of
    the server took the request.
    """
    last_good: LastGood | None = None
    """Point of an earlier attempt before which this one starts; None: it
    starts from the last checkpoint.
    """
    after: Callable[[], Awaitable[Sequence[Sequence[Source]]]] | None = field(
        default=None, repr=False, compare=False
    )
    """Finds the jobs for which each entry of `spec.after` stands, without deleted jobs. None:
    `spec.after` is empty.
    """
    namespace: str | None = None
    """Namespace of the cluster in which the attempt runs; None: the server's namespace. All
    attempts of a job have one namespace.
    """
    owner: str = ""
    """User who owns the job: messages to other users do not name it."""
    team: str | None = None
    """Name of the owner's team at the submit; None: the owner has none."""
    service_account: str | None = None
    """ServiceAccount that the team has; None: that of the catalogue."""
    pull_secrets: Sequence[str] = ()
    """Secrets for registries that the team has, beside those of the catalogue."""
    never_started: bool = False
    """No runtime has ever started it, so none needs to look for its processes."""
    unreadable: str = ""
    """The reason why its request can't be read; '': it can. An unreadable attempt is
    only found again and stopped.
    """
    reload: Callable[[], Attempt] | None = field(default=None, repr=False, compare=False)
    """Reads it from disk again, so that a runtime need not keep long-queued
    attempts. Raises ServerError.
    """


CHECKPOINTS = "checkpoints"
"""Default name of the checkpoint directory, below the job's directory: kept over its attempts."""


@dataclass(frozen=True)
class Observation:
    """The state of an attempt as a runtime reports it, after each change. Reporting
    the same again is harmless.
    """

    job_id: str
    attempt: int
    phase: Literal["waiting", "running", "ended"]
    """`running`: every worker has started its processes. `ended`: no process lives, and reports and
    logs are complete.
    """
    reason: Reason
    """Ended: COMPLETED only if every rank ended with 0; CANCELLED if `stop` ended
    it; otherwise the failure.
    """
    message: str
    workers: tuple[WorkerInfo, ...] = ()
    started_at: datetime | None = None
    """Ended: the time at which its first rank was started; None: no report has one."""
    ended_at: datetime | None = None
    notes: tuple[str, ...] = ()
    """Messages for the job's events, each of them added once."""
    first_failing: Failure | None = None
    """Ended: the rank that `message` names, if one is the cause, or the job's command before the
    ranks, which has no rank; without the meaning and the hint."""
    stacks: tuple[str, ...] = ()
    """Ended: the places of the ranks before they were stopped, see `verdict.last_stacks`."""
    quiet: Quiet = ()
    """Running: the ranks that do nothing now."""


RAN_IMAGE = "the image of its workers is "
"""Beginning of the note that a runtime adds for each container image; the digest follows."""

STACKS_S = 5.0
"""Time in which a worker must send its stacks; the launcher needs at most 1.8 s for them."""


Sink = Callable[[Observation], None]
"""Called on the event loop's thread."""


class Pruned(NamedTuple):
    """Early checkpoints of a job. Paths are as the launcher tells them."""

    goes: Sequence[tuple[str, int, int, float]]
    """Path, step, size in bytes, and time of the last change (seconds since 1970) of each that
    goes, the earliest step first."""
    stays: Mapping[str, str]
    """Others that stay, and why, as clauses."""


class CheckpointFiles(Protocol):
    """The files of a job's checkpoints. Every method raises ServerError: they can't be read."""

    async def gone(self, paths: Sequence[str]) -> Collection[str]:
        """The paths that are no longer there."""
        ...

    async def prune(self, keep: int, only: Sequence[str] | None) -> Pruned:
        """Remove complete checkpoints of earlier steps than the last `keep` (see
        `client_lib.checkpoints.surplus`). `only`: paths of the checkpoints to remove; None: nothing
        is removed, and the answer lists all that could be."""
        ...

    def read(self, path: str) -> AsyncGenerator[bytes, None]:
        """A checkpoint as a tar archive. Raises ServerError also in the middle: a file is gone."""
        ...


class Runtime(Protocol):
    """A place where attempts run. Every method is called on the event
    loop's thread and returns soon.
    """

    name: str

    def check(
        self, spec: JobSpec, owner: str, submitter: Submitter, namespace: str | None = None
    ) -> list[str]:
        """Notices for `owner`, who submits it, about fields that have no effect here, or another
        one than elsewhere. `namespace`: the namespace of the owner's team; None: the server's.

        Raises:
            NeverFits: larger than anything that this runtime can offer; the hint gives the largest
                that fits.
            NotSupported, InvalidRequest: naming the field, its value and the way out.
            Unavailable: what decides this is not known yet.
        """
        ...

    async def why_hidden(self, spec: JobSpec, owner: str, path: str) -> str | None:
        """The reason why a worker of such a job of `owner` can't read this folder or file of the
        server's machine at the same path; None: all workers can."""
        ...

    def checkpoint_files(self, attempt: Attempt) -> CheckpointFiles | None:
        """The checkpoints of a job; None: they are on disks of its workers, which this server does
        not see. Raises InvalidRequest: the owner has no account any more."""
        ...

    def render(self, attempt: Attempt) -> Manifest:
        """The objects that `submit` would create, with masked secrets. Creates
        nothing, and is deterministic.
        """
        ...

    async def start(self, sink: Sink) -> None:
        """Begin to work; observations go to `sink`. After a restart the caller submits all attempts
        before, or in the same turn of the event loop: attempts that run already get their resources
        back before any other attempt starts."""
        ...

    def submit(self, attempt: Attempt) -> None:
        """Take the attempt: queue and start it. Idempotent over restarts of the server: an attempt
        that was started before is found again and observed, never started twice."""
        ...

    def stop(self, job_id: str, attempt: int, grace_s: float, *, interrupt: bool = False) -> None:
        """Send SIGTERM, then after `grace_s` SIGKILL, to every process of the attempt, or remove it
        from the queue. Idempotent. The end is reported as an observation. `interrupt`: SIGINT in
        place of SIGTERM, where the workers can be reached; a later call without it sends SIGTERM.
        """
        ...

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        """A value that changes whenever a worker has written to its log. No time: clocks jump."""
        ...

    async def stacks(self, job_id: str, attempt: int) -> list[StackDump]:
        """Take the stacks of all ranks of a running attempt: an answer for each of its workers,
        after STACKS_S at the latest. Empty: no such attempt runs. One call at a time for each
        attempt."""
        ...

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, object]
    ) -> socket.socket:
        """Begin a session of the user (client_lib.worker.session) in a worker of a running attempt.
        Returns a Unix socket that carries its frames. `request`: a SessionRequest as JSON. Raises
        NotFound: there is no such rank or worker; Conflict with the reason why there is no session.
        """
        ...

    def instance_types(self) -> Sequence[InstanceType]:
        """The catalogue, with the free amount of each type if that is known."""
        ...

    def warm_pools(self) -> list[WarmPoolInfo]:
        """Resident processes that start ranks faster."""
        ...

    def warning(self) -> str:
        """A problem that an operator has to know, without paths and addresses:
        everyone can read it. '': none.
        """
        ...

    async def doctor(self) -> list[Check]:
        """Checks of this runtime, with a fix for each problem."""
        ...

    async def close(self) -> None:
        """Stop observing. Workers continue."""
        ...
