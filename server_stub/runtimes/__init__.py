"""What a runtime is: the place where attempts of jobs run. The service decides what a job is and what follows from
how an attempt ended; a runtime starts an attempt, watches it, stops it, and says what it sees.

Implementations: `local` (worker processes of this machine). Only the service and the runtimes import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, Code, InstanceType, Manifest, RankReport, Submitter, WarmPoolInfo, WorkerInfo
from client_lib.worker.function_runner import RESULTS


@dataclass(frozen=True)
class Attempt:
    """One gang start of all workers of a job, as the service orders it."""

    job_id: str
    job_name: str
    number: int
    """From 1."""
    spec: JobSpec
    """With the unmasked env_variables."""
    code: Code
    submitter: Submitter
    secret_values: dict[str, str] = field(repr=False)
    job_dir: Path
    """`<data>/jobs/<id>`: the runtime keeps what belongs to the attempt below it (see attempt_dir, log_dir)."""
    snapshot: Path | None
    """The archive, where the code is a snapshot."""
    created_at: datetime
    """Of the job: its place in the queue among those of its priority class."""
    function: Path | None = None
    """The pickled function, where the job is one: `spec.script` is then its name."""
    checkpoints_from: Path | None = None
    """Below the directory of another job: a copy of what that job has left of its checkpoints is what the job's own
    directory of checkpoints begins with."""
    owner: str = ""
    """Whose job it is: other users are not told its name."""
    fresh: bool = False
    """No runtime was ever given it: there is nothing to be found again."""
    again: Callable[[], Attempt] | None = field(default=None, repr=False, compare=False)
    """Makes it once more, from the disk: a runtime may let go of one that waits long. Raises ServerError."""


CHECKPOINTS = "checkpoints"
"""Below a job's directory, where it names no other: kept over its attempts."""


def attempt_dir(job_dir: Path, attempt: int) -> Path:
    return job_dir / "attempts" / str(attempt)


def worker_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    return attempt_dir(job_dir, attempt) / "workers" / str(worker)


def log_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    """Where the log segments of one worker are (client_lib.worker.format), whichever the runtime."""
    return worker_dir(job_dir, attempt, worker) / "log"


def results_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    """Where the results of a function's ranks on one worker are (client_lib.worker.function_runner)."""
    return worker_dir(job_dir, attempt, worker) / RESULTS


@dataclass(frozen=True)
class Observation:
    """What a runtime sees of an attempt. Sent when something changed; sending the same again is harmless."""

    job_id: str
    attempt: int
    phase: Literal["waiting", "running", "ended"]
    """`running`: every worker has started its processes. `ended`: nothing of the attempt lives any more, its reports
    and its logs are complete."""
    reason: Reason
    """Ended: COMPLETED only if every rank ended with 0; CANCELLED if `stop` ended it; else why it failed."""
    message: str
    workers: tuple[WorkerInfo, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    """Ended: all reports that there are, of all workers."""
    ended_at: datetime | None = None
    remarks: tuple[str, ...] = ()
    """Sentences for the job's events, each of them once."""


Sink = Callable[[Observation], None]
"""Called on the event loop's thread."""


class Runtime(Protocol):
    """A place where attempts run. Every method is called on the event loop's thread and returns soon."""

    name: str

    def check(self, spec: JobSpec, submitter: Submitter) -> list[str]:
        """Notices for the submitter: fields that mean nothing here, or another thing than elsewhere.

        Raises:
            NeverFits: larger than anything that this place could ever give; says the largest that would fit.
            NotSupported, InvalidRequest: naming the field, its value and the way out.
        """
        ...

    def workers_see(self, spec: JobSpec, folder: str) -> bool:
        """Whether every worker of such a job has this folder of the server's machine, at the same path."""
        ...

    def render(self, attempt: Attempt) -> Manifest:
        """What `submit` would create, values of secrets masked. Pure: the same answer twice, nothing is created."""
        ...

    async def start(self, sink: Sink) -> None:
        """Begin to work; observations go to `sink`.

        After a restart give all attempts with `submit` before, or in the same turn of the event loop after it: those
        that run already get back what they hold before anything else is started.
        """
        ...

    def submit(self, attempt: Attempt) -> None:
        """Take the attempt: queue and start it. Idempotent over restarts of the server: an attempt that was started
        before is found again and observed, never started twice."""
        ...

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        """SIGTERM, then after `grace_s` SIGKILL, to every process of the attempt; also while it waits. Idempotent.
        The end arrives as an observation."""
        ...

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        """Another value than before whenever a worker has written to its log meanwhile. No time: clocks jump."""
        ...

    def instance_types(self) -> Sequence[InstanceType]:
        """The catalogue, with what is free now where that is known."""
        ...

    def warm_pools(self) -> list[WarmPoolInfo]:
        """Processes that it keeps to start ranks faster."""
        ...

    async def doctor(self) -> list[Check]:
        """What is wrong here, and the fix for each."""
        ...

    async def close(self) -> None:
        """Stop watching. Workers go on."""
        ...
