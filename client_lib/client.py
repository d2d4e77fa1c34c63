"""The way in: a Client is one server, `get_job` and `list_jobs` ask the configured one. Public."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from client_lib.api import Api
from client_lib.job import Job
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo


class Client(Api):
    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        profile: str | None = None,
        insecure: bool | None = None,
        ca_bundle: str | None = None,
        retry_s: float | None = None,
    ) -> None: ...

    def get_job(self, name: str) -> Job: ...
    def list_jobs(
        self,
        state: State | str | None = None,
        label: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobInfo]: ...


def get_job(name: str, *, client: Client | None = None) -> Job: ...
def list_jobs(
    state: State | str | None = None,
    label: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
    *,
    client: Client | None = None,
) -> Iterator[JobInfo]: ...
