"""The server that a command talks to: quickly where that is possible, else through the SDK. Both give plain dicts.

Which server it is says `client_lib.config`, where the local one listens `client_lib.local_server`. The SDK (requests,
pydantic: 200 ms) is loaded when it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from client_lib import __version__, config, local_server
from client_lib.cli import names, printer, quick_read
from client_lib.cli.quick_read import NotQuick, Target
from client_lib.config import Endpoint
from client_lib.errors import NotFound, ServerUnreachable
from client_lib.spec import paths

if TYPE_CHECKING:
    from client_lib.client import Client

Json = dict[str, Any]

PAGE = 100  # jobs asked for at once


class Connection:
    """Asks nothing until it is used."""

    def __init__(self, endpoint: str | None = None, profile: str | None = None) -> None:
        self._endpoint, self._profile = endpoint, profile

    @cached_property
    def client(self) -> Client:
        """The SDK's client of this server; starts the local server if it is the one and doesn't run."""
        from client_lib.client import Client

        printer.show_notices_of("client_lib")
        return Client(self._endpoint, profile=self._profile)

    def read(self, path: str, query: Sequence[tuple[str, str]] = (), timeout_s: float = quick_read.TIMEOUT_S) -> Any:
        """Raises NotQuick, or what the server refused with."""
        return quick_read.read(self._target, path, query, timeout_s)

    @cached_property
    def _target(self) -> Target:
        chosen = config.resolve(self._endpoint, profile=self._profile)
        return Target.of(chosen.endpoint, chosen.token) if chosen.endpoint else local_target()

    @property
    def is_local(self) -> bool:
        """It is the server of this machine that is started on demand."""
        return config.resolve(self._endpoint, profile=self._profile).endpoint is None

    def address(self) -> Endpoint:
        """URL and token, for another program. Raises ServerUnreachable: the local server doesn't run."""
        chosen = config.resolve(self._endpoint, profile=self._profile)
        if chosen.endpoint:
            return Endpoint(chosen.endpoint, chosen.token)
        running = local_server.find()
        if running is None:
            raise ServerUnreachable("the local server does not run")
        return running.endpoint

    # --- reads

    def job(self, name: str) -> Json:
        """One job by its name or an unambiguous beginning of it. Raises NotFound with the nearest names."""
        try:
            return self._exact(name)
        except NotFound:
            full = names.complete(name, self.names)
        printer.hint(f"{name} is {full}")
        return self._exact(full)

    def _exact(self, name: str) -> Json:
        try:
            return self._checked(self.read(paths.job(name)), "name")
        except NotQuick:
            return self.client.job_info(name).model_dump(mode="json")

    def jobs(
        self,
        *,
        limit: int | None,
        state: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Json]:
        """Newest first; all of them where `limit` is None. `name` is the beginning of their names."""
        try:
            return self._jobs_quickly(limit, state, name, labels or {})
        except NotQuick:
            found = self.client.list_jobs(state, labels, name, limit)
            return [info.model_dump(mode="json") for info in islice(found, limit)]

    def _jobs_quickly(
        self, limit: int | None, state: str | None, name: str | None, labels: Mapping[str, str]
    ) -> list[Json]:
        asked = [("state", state), ("name", name), *(("label", f"{key}={value}") for key, value in labels.items())]
        query = [(key, value) for key, value in asked if value]
        found: list[Json] = []
        cursor: str | None = ""
        while cursor is not None and (limit is None or len(found) < limit):
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            more = [("limit", str(size)), *([("cursor", cursor)] if cursor else [])]
            page = self._checked(self.read(paths.JOBS, [*query, *more]), "jobs")
            found += page["jobs"]
            cursor = page.get("next_cursor")
        return found

    def names(self, prefix: str, limit: int) -> list[str]:
        return [job["name"] for job in self.jobs(name=prefix or None, limit=limit)]

    def instance_types(self) -> list[Json]:
        return [kind.model_dump(mode="json") for kind in self.client.instance_types()]

    def checks(self) -> list[Json]:
        """What the server's doctor found."""
        return [check.model_dump(mode="json") for check in self.client.doctor().checks]

    @staticmethod
    def _checked(answer: Any, key: str) -> Json:
        """JSON that is none of ours came from another program: the SDK has the words for that."""
        if not isinstance(answer, dict) or key not in answer:
            raise NotQuick
        return answer


def local_target() -> Target:
    """The running local server. Raises NotQuick if there is none or it is of another version: the SDK decides then."""
    running = local_server.find()
    if running is None or running.version != __version__:
        raise NotQuick
    return Target.of(*running.endpoint)
