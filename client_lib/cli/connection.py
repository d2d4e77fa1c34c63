"""The server that a command talks to. Reads are plain dicts (see `http_reader`); all else goes through the SDK."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from client_lib.cli import printer
from client_lib.cli.http_reader import Params, Reader
from client_lib.errors import NotFound, ServerUnreachable
from client_lib.spec import paths
from client_lib.spec.log_stream import HEARTBEAT_S
from client_lib.transport import config, local_server
from client_lib.transport.config import Endpoint

if TYPE_CHECKING:
    from client_lib.client import Client

Json = dict[str, Any]

SHOWN = 5  # names in a message
NEAREST_AMONG = 200  # newest jobs that a misspelt name is compared with
PAGE = 100  # jobs of a list asked for at once


class Connection:
    """Sends nothing until it is used. The local server is started by the first call that needs it."""

    def __init__(self, endpoint: str | None = None, profile: str | None = None) -> None:
        self._endpoint, self._profile = endpoint, profile
        printer.show_notices()

    @cached_property
    def client(self) -> Client:
        """The SDK's client of this server."""
        from client_lib.client import Client

        return Client(self._endpoint, profile=self._profile)

    @cached_property
    def config(self) -> config.Config:
        return config.resolve(self._endpoint, profile=self._profile)

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self.config, lambda: local_server.locate(self.config))

    @property
    def is_local(self) -> bool:
        """True: it is the server of this machine that is started on demand."""
        return self.config.endpoint is None

    def running(self) -> Endpoint:
        """URL and token of the server, which is not started. Raises ServerUnreachable: the local server doesn't run."""
        if self.config.endpoint:
            return Endpoint(self.config.endpoint, self.config.token)
        found = local_server.find(self.config.state_dir)
        if found is None:
            raise ServerUnreachable("the local server does not run")
        return found.endpoint

    # --- reads

    def job(self, name: str) -> Json:
        """One job by its name or an unambiguous beginning of it. Raises NotFound with the nearest names."""
        try:
            return self._reader.get(paths.job(name), "name")
        except NotFound:
            full = self.full_name(name)
        printer.hint(f"{name} is {full}")
        return self._reader.get(paths.job(full), "name")

    def full_name(self, name: str) -> str:
        """The one job whose name begins with `name`, which is itself no job's name.

        Raises NotFound: no job or several begin with it; names the nearest.
        """
        found = self._names(name, SHOWN + 1) if name else []
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(found[:SHOWN]) + (" and more" if len(found) > SHOWN else "")
            raise NotFound(f"no job named {name}; {several} begin so", hint="write more of the name")
        from difflib import get_close_matches

        near = get_close_matches(name, self._names("", NEAREST_AMONG), n=3, cutoff=0.5)
        offer = f"; did you mean {' or '.join(near)}?" if near else ""
        raise NotFound(f"no job named {name}{offer}", hint="`client-lib list` shows the jobs you have")

    def _names(self, prefix: str, limit: int) -> list[str]:
        return [job["name"] for job in self.jobs(name=prefix or None, limit=limit)]

    def jobs(
        self,
        *,
        limit: int | None,
        state: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> list[Json]:
        """Newest first; all of them where `limit` is None. `name` is the beginning of their names."""
        wanted = [f"{key}={value}" for key, value in (labels or {}).items()]
        asked = {"state": state, "name": name, "label": wanted}
        found: list[Json] = []
        cursor: str | None = ""
        while cursor is not None and (limit is None or len(found) < limit):
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            params = {key: value for key, value in {**asked, "limit": str(size), "cursor": cursor}.items() if value}
            page = self._reader.get(paths.JOBS, "jobs", params)
            found += page["jobs"]
            cursor = page.get("next_cursor")
        return found

    def offered_jobs(self, prefix: str, limit: int, within_s: float) -> list[Json]:
        """Jobs whose names begin with `prefix`, for a shell that waits: no server is started, and nothing repeated."""
        params = {"limit": str(limit), **({"name": prefix} if prefix else {})}
        found: list[Json] = Reader(self.config, self.running).get(
            paths.JOBS, "jobs", params, read_s=within_s, retry_s=0
        )["jobs"]
        return found

    def events(self, name: str) -> list[Json]:
        """The events of a job, oldest first."""
        return self._list(paths.job_events(name), "events")

    def instance_types(self) -> list[Json]:
        return self._list(paths.INSTANCE_TYPES, "instance_types")

    def checks(self) -> list[Json]:
        """The findings of the server's doctor."""
        return self._list(paths.DOCTOR, "checks")

    def _list(self, path: str, key: str) -> list[Json]:
        found: list[Json] = self._reader.get(path, key)[key]
        return found

    def server_info(self) -> Json:
        return self._reader.get(paths.INFO, "runtime")

    def open_logs(self, name: str, params: Params, *, deadline: float | None = None) -> Iterator[bytes]:
        """The body of the job's log stream, as it arrives. Silence of three heartbeats means a dead connection."""
        read_s = 3 * HEARTBEAT_S if deadline is None else max(0.01, min(3 * HEARTBEAT_S, deadline - time.monotonic()))
        return self._reader.stream(paths.job_logs(name), params, accept=paths.LOG_FRAMES, read_s=read_s)
