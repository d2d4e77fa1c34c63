"""Arguments and results of the service: frozen values, so that the HTTP layer imports neither store nor runtimes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from client_lib.errors import Conflict, Forbidden
from client_lib.spec.job import JobSpec
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo

ALL_OWNERS = "*"
"""The owner in the filters of a list that means the jobs of all users."""


class Team(BaseModel):
    """An entry of `[[teams]]` in the users file. A user belongs to the first one that names the user, `"*"`, or a group
    of the token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Name of the team, for messages."""
    users: list[str] = []
    """Names of its users; `"*"`: everyone."""
    groups: list[str] = []
    """Groups of the issuer whose members belong to the team."""
    instance_types: list[str] = []
    """Instance types that its jobs may use, the first for jobs that name none; empty: all."""
    queues: list[str] = []
    """LocalQueues of Kueue for its jobs, the first for jobs that name none; empty: all."""
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = None
    """Namespace of the cluster in which its jobs run; None: that of the server."""

    def offers(self, instance_type: str) -> bool:
        return not self.instance_types or instance_type in self.instance_types

    def limited(self, spec: JobSpec) -> JobSpec:
        """The job with the team's defaults. Raises Forbidden: it names what the team lacks."""
        update = {}
        for field, offered in (("instance_type", self.instance_types), ("queue_name", self.queues)):
            value = getattr(spec, field)
            if offered and value is None:
                update[field] = offered[0]
            elif offered and value not in offered:
                raise Forbidden(f"{field}={value!r} is not for team {self.name}", hint=f"it has {', '.join(offered)}")
        return spec.model_copy(update=update) if update else spec


@dataclass(frozen=True)
class User:
    """The user that the token of a request belongs to; `server_stub.http.auth` finds it."""

    name: str
    admin: bool = False
    """Sees and acts on the jobs of all."""
    account: str = ""
    """The account of the machine under which local jobs of the user run, if it has another name than the user."""
    team: Team | None = None
    """None: the user may use all that the server has."""


def check_owner(user: User, job: JobInfo, act: str) -> None:
    """Raises Forbidden: the user is neither the owner of the job nor an admin, who alone may do this."""
    if job.owner != user.name and not user.admin:
        raise Forbidden(f"only {job.owner}, the owner of job {job.name}, and admins {act}")


def check_running(job: JobInfo, why: str) -> None:
    """Raises Conflict: the job does not run."""
    if job.state != State.RUNNING:
        raise Conflict(
            f"job {job.name} is {job.state}: {why}", hint=f"`client-lib explain {job.name}` shows why it does not run"
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
