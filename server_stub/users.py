"""Users and their teams: who asks, and what a team may use. Values alone, without a request.

`http/auth.py` finds the user of a request, and `http/users_file.py` reads the teams.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from client_lib.errors import Forbidden
from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced

ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
"""Name of an object of the cluster."""


class Team(BaseModel):
    """An entry of `[[teams]]` in the users file. A user belongs to the first one that names the
    user, `"*"`, or a group of the token."""

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
    """Namespace of the cluster in which the team's jobs run; None: the server's namespace."""
    service_account: ObjectName | None = None
    """ServiceAccount of the pods of its jobs, in that namespace, such as the identity by which a
    cloud gives the team its buckets; its token is not mounted. None: the catalogue's."""
    pull_secrets: list[ObjectName] = []
    """Secrets for private registries in that namespace, beside those of the catalogue."""

    def offers(self, instance_type: str) -> bool:
        return not self.instance_types or instance_type in self.instance_types

    def limited(self, spec: JobSpec) -> JobSpec:
        """The job with the team's defaults. Raises Forbidden: it names what the team lacks."""
        update: dict[str, Any] = {}
        for field, offered in (("instance_type", self.instance_types), ("queue_name", self.queues)):
            value = getattr(spec, field)
            if offered and value is None:
                update[field] = offered[0]
            elif offered and value not in offered:
                raise Forbidden(
                    f"{field}={value!r} is not for team {self.name}",
                    hint=f"it has {', '.join(offered)}",
                )
        return replaced(spec, **update) if update else spec


@dataclass(frozen=True)
class User:
    """The user that the token of a request belongs to; `server_stub.http.auth` finds it."""

    name: str
    admin: bool = False
    """Sees and acts on the jobs of all."""
    account: str = ""
    """The account of the machine under which local jobs of the user run, if it has
    another name than the user.
    """
    team: Team | None = None
    """None: the user may use all that the server has."""
