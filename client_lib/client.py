"""The way in: a Client is one server, `get_job` and `list_jobs` ask the configured one. Public."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from client_lib import naming, resubmission, submission
from client_lib.api import Api, configured
from client_lib.config import resolve
from client_lib.job import Job
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo

_log = logging.getLogger("client_lib")


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

    def resubmit(self, name: str, *, new_name: str | None = None, python: str | None = None, **changes: Any) -> Job:
        """Run the job `name` again as a new one; see `client_lib.resubmit`."""
        return resubmit(name, client=self, new_name=new_name, python=python, **changes)


def get_job(name: str, *, client: Api | None = None) -> Job:
    """A handle on the job of that name, whichever process or machine submitted it. Raises NotFound."""
    api = client or configured()
    return Job.of(api, api.job_info(name))


def resubmit(
    job: Job | str,
    *,
    client: Api | None = None,
    new_name: str | None = None,
    python: str | None = None,
    **changes: Any,
) -> Job:
    """Run a job again as a new one: the same code and spec but for `changes`, with the caller's environment of now.

        resubmit(job, n_workers=4, env_variables={"LR": "0.1"})

    What differs, and which code runs, is said in the log. Of a job that has ended the checkpoints are handed on: the
    new one starts with a copy of them. `new_name` None: one is made. `python`: the interpreter for a job on this
    machine; None: this one.

    Raises InvalidRequest: a field that isn't there, a wrong value, or one that would make it other code.
    """
    api = client or (job.client if isinstance(job, Job) else configured())
    name = job if isinstance(job, str) else job.info().name
    stored, before = api.job_request(name), api.job_info(name)
    spec = resubmission.changed(stored.spec, changes)
    spec = spec.model_copy(update={"name": new_name or naming.draw(spec)})
    for sentence in resubmission.sentences(before, stored, spec, submission.script_digest(stored)):
        _log.info("%s", sentence)
    ended = before if before.state.final else None
    return Job.of(api, submission.resubmit(api, stored, spec, uuid.uuid4().hex, python, ended))


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
