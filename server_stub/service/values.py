"""Arguments and results of the service: frozen values, so that the HTTP layer imports neither store nor runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import Conflict, Forbidden
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo

ALL_OWNERS = "*"
"""The owner in the filters of a list that means the jobs of all users."""


@dataclass(frozen=True)
class User:
    """The user that the token of a request belongs to; `server_stub.http.auth` finds it."""

    name: str
    admin: bool = False
    """Sees and acts on the jobs of all."""
    account: str = ""
    """The account of the machine under which local jobs of the user run, if it has another name than the user."""


def check_owner(user: User, job: JobInfo, act: str) -> None:
    """Raises Forbidden: the user is neither the owner of the job nor an admin, who alone may do this."""
    if job.owner != user.name and not user.admin:
        raise Forbidden(f"only {job.owner}, the owner of job {job.name}, and admins {act}")


def check_running(job: JobInfo, why: str) -> None:
    """Raises Conflict: the job does not run."""
    if job.state != State.RUNNING:
        raise Conflict(
            f"job {job.name} is {job.state}: {why}",
            hint=f"`client-lib explain {job.name}` shows why it does not run",
        )


class JobText(NamedTuple):
    """One job as JSON."""

    json: bytes
    """A JobInfo."""
    version: int
    state: State


@dataclass(frozen=True)
class JobOutputs:
    """The place of a job's outputs; `server_stub.files.outputs` reads them."""

    job_dir: Path
    in_place: str | None
    """The folder that it runs in, where that is the submitter's own."""
    final: bool
