"""The server that a command talks to. Reads return plain dicts, without pydantic; the
SDK makes all other calls.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any

from client_lib.cli import printer
from client_lib.errors import InvalidRequest, NotFound, ServerUnreachable
from client_lib.reports import table
from client_lib.spec import paths
from client_lib.transport import config, http_client, local_server
from client_lib.transport.config import Endpoint
from client_lib.transport.rest import Rest

if TYPE_CHECKING:
    from client_lib.transport.api import Api

Json = dict[str, Any]

SHOWN = 5  # names in a message
NEAREST_AMONG = 200  # newest jobs that a misspelt name is compared with
PAGE = 100  # jobs of a list asked for at once


class Connection:
    """Sends nothing until it is used. The local server is started by the
    first call that needs it.
    """

    def __init__(self, endpoint: str | None = None, profile: str | None = None) -> None:
        self._endpoint = endpoint
        self._profile = profile
        printer.show_notices()

    @cached_property
    def api(self) -> Api:
        from client_lib.transport.api import Api

        return Api(self.config, self.rest)

    @cached_property
    def config(self) -> config.Config:
        return config.resolve(self._endpoint, profile=self._profile)

    @cached_property
    def rest(self) -> Rest:
        """The calls of this server below the SDK's."""
        return Rest(lambda: local_server.locate(self.config), self.config, http_client.connect)

    def running(self) -> Endpoint:
        """URL and token of the server, which is not started. Raises ServerUnreachable: the
        local server doesn't run.
        """
        if self.config.endpoint:
            return local_server.locate(self.config)
        found = local_server.find(self.config.state_dir)
        if found is None:
            raise ServerUnreachable("the local server does not run")
        return found.endpoint

    # --- reads

    def job(self, name: str | None) -> Json:
        """One job by its name or an unambiguous beginning of it; None: the newest. Raises NotFound:
        there is no such job; names the nearest. InvalidRequest: the name is a group's."""
        found = self.job_or_group(name)
        if "told" in found:
            raise InvalidRequest(f"{name} is a group; `client-lib list {name}` shows its jobs")
        return found

    def job_or_group(self, name: str | None) -> Json:
        """One job as `job` finds it, or a group by its whole name: a row with `told`."""
        if name is None:
            newest = self.newest()
            printer.hint(f"the newest job is {newest['name']}")
            return newest
        try:
            return self.rest.read(paths.job(name), "name")
        except NotFound:
            if group := self.group(name):
                return group
            full = self.full_name(name)
        printer.hint(f"{name} is {full}")
        return self.rest.read(paths.job(full), "name")

    def newest(self) -> Json:
        """The newest job of the user. Raises NotFound: there is none."""
        for job in self.jobs(limit=1):
            return job
        raise NotFound("there is no job", hint="`client-lib submit train.py` submits one")

    def full_name(self, name: str) -> str:
        """The one job whose name begins with `name`, which is itself no job's name. Raises
        NotFound: no job or several begin with it; names the nearest."""
        found: list[str] = (
            [job["name"] for job in self.jobs(name=name, limit=SHOWN + 1)] if name else []
        )
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(found[:SHOWN]) + (" and more" if len(found) > SHOWN else "")
            raise NotFound(
                f"no job named {name}; {several} begin so", hint="write more of the name"
            )
        newest = [job["name"] for job in self.jobs(limit=NEAREST_AMONG)]
        near = get_close_matches(name, newest, n=3, cutoff=0.5)
        offer = f"; did you mean {' or '.join(near)}?" if near else ""
        raise NotFound(
            f"no job named {shlex.quote(name)}{offer}",
            hint="`client-lib list` shows the jobs you have",
        )

    def jobs(
        self,
        *,
        limit: int | None,
        state: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        group: str | None = None,
        grouped: bool = False,
    ) -> list[Json]:
        """Newest first; all of them where `limit` is None. `name` is the beginning of their names.
        `group`: only members of this group. `grouped`: groups in the place of their members."""
        wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
        asked = {
            "state": state,
            "name": name,
            "label": wanted,
            "group": group,
            "grouped": "true" if grouped else None,
        }
        found: list[Json] = []
        cursor: str | None = ""
        while cursor is not None and (limit is None or len(found) < limit):
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            params = {
                key: value
                for key, value in {**asked, "limit": str(size), "cursor": cursor}.items()
                if value
            }
            page = self.rest.read(paths.JOBS, "jobs", params)
            both = [*page["jobs"], *map(table.group_as_job, page.get("groups", []))]
            found += (
                sorted(both, key=lambda job: job["created_at"], reverse=True) if grouped else both
            )
            cursor = page.get("next_cursor")
        return found

    def group(self, name: str) -> Json | None:
        """A group as the row of a job; None: there is none, or the server is older than groups."""
        try:
            return table.group_as_job(self.rest.read(paths.group(name), "counts"))
        except NotFound:
            return None

    def members(self, name: str) -> list[Json]:
        """The members of a group by their index; []: there is no group of this name."""
        found = self.jobs(limit=None, group=name) if self.group(name) else []
        return sorted(found, key=lambda job: job["group"]["index"])

    def each_member(self, names: Sequence[str] | None) -> list[str]:
        """The names, with the members of a group in the place of its name."""
        return [
            each
            for name in names or ()
            for each in [job["name"] for job in self.members(name)] or [name]
        ]

    def server_info(self) -> Json:
        return self.rest.read(paths.INFO, "runtime")
