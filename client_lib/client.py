"""The way in: a Client is one server, `get_job` and `list_jobs` ask the configured one. Public."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping

from client_lib import naming, submission
from client_lib.api import Api, configured
from client_lib.config import resolve
from client_lib.job import Job
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo


class Client(Api):
    """One server, for those who use more than one: `Job(..., client=client)`, `client.get_job(name)`.

    What isn't given comes from CLIENT_LIB_* variables and the configuration file; with nothing configured it is the
    local server of this machine, started when the first call needs it. `endpoint="local"` means that one in any case.
    Thread-safe. Its other methods are the typed calls of the REST API.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        token: str | None = None,
        *,
        profile: str | None = None,
        insecure: bool | None = None,
        ca_bundle: str | None = None,
        retry_s: float | None = None,
    ) -> None:
        """Stores and checks; connects at the first call.

        `insecure`: the token may travel over plain http to another host. `ca_bundle`: file of certificate authorities.
        `retry_s`: seconds for which a call is tried again while the server doesn't answer (30).

        Raises:
            InvalidRequest: an endpoint that is no URL, an unknown profile, a broken configuration file.
        """
        super().__init__(
            resolve(endpoint, token, profile=profile, insecure=insecure, ca_bundle=ca_bundle, retry_s=retry_s)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_job(self, name: str) -> Job:
        """A handle on the job of that name, whichever process or machine submitted it. Raises NotFound."""
        return get_job(name, client=self)

    def resubmit(self, name: str, *, new_name: str | None = None, python: str | None = None) -> Job:
        """Run the job `name` again: the same spec and code as a new job, with the caller's environment of now.

        `new_name` None: one is made. `python`: the interpreter for a job on this machine; None: this one.
        """
        stored = self.job_request(name)
        new_name = new_name or naming.draw(stored.spec)
        return Job.of(self, submission.resubmit(self, stored, new_name, uuid.uuid4().hex, python))


def get_job(name: str, *, client: Api | None = None) -> Job:
    """A handle on the job of that name, whichever process or machine submitted it. Raises NotFound."""
    api = client or configured()
    return Job.of(api, api.job_info(name))


def list_jobs(
    state: State | str | None = None,
    label: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
    *,
    client: Api | None = None,
) -> Iterator[JobInfo]:
    """One's jobs, newest first, `limit` at most; see `Client.list_jobs`."""
    return (client or configured()).list_jobs(state, label, name, limit)
