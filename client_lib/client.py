"""Public entry points: a Client is one server; `get_job`, `list_jobs` and so
on use the configured one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from client_lib.errors import ClientLibError
from client_lib.groups import Group, JobList
from client_lib.job import Job, with_names
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.states import State
from client_lib.submit import changes, request
from client_lib.transport.api import Api, configured
from client_lib.transport.config import resolve

_log = logging.getLogger("client_lib")


class Client(Api):
    """One server, for programs that use more than one: `Job(..., client=client)`,
    `client.get_job(name)`.

    Missing arguments come from CLIENT_LIB_* variables and the configuration file. With nothing
    configured it is the local server of this machine, started when the first call needs it;
    `endpoint="local"` always means that server. Thread-safe. The other methods are the typed calls
    of the REST API.
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
        """Store and check the arguments; the first call connects.

        `insecure`: the token may travel over plain http to another host. `ca_bundle`: file of
        certificate authorities. `retry_s`: seconds for which a call is repeated while the server
        does not answer; None: 120 for an address that has answered before, else 30.

        Raises InvalidRequest: an endpoint that is no URL, an unknown profile, a broken
        configuration file.
        """
        config = resolve(
            endpoint,
            token,
            profile=profile,
            insecure=insecure,
            ca_bundle=ca_bundle,
            retry_s=retry_s,
        )
        super().__init__(config)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_job(self, name: str) -> Job:
        """The job of that name, whatever process or machine submitted it. Raises NotFound."""
        return get_job(name, client=self)

    def get_group(self, name: str) -> Group:
        """The group of that name; see `client_lib.get_group`."""
        return get_group(name, client=self)

    def resubmit(
        self,
        name: str,
        *,
        new_name: str | None = None,
        python: str | None = None,
        resume: bool | None = None,
        **fields: Any,
    ) -> Job:
        """Run the job `name` again as a new one; see `client_lib.resubmit`."""
        return resubmit(
            name, client=self, new_name=new_name, python=python, resume=resume, **fields
        )


def get_job(name: str, *, client: Api | None = None) -> Job:
    """The job of that name, whatever process or machine submitted it. Raises NotFound."""
    api = client or configured()
    return Job.of(api, api.job_info(name))


def get_group(name: str, *, client: Api | None = None) -> Group:
    """The group of that name, whatever process or machine submitted it. Raises NotFound."""
    api = client or configured()
    return Group(api, name, partial(Job.of, api), api.group_info(name))


def resubmit(
    job: Job | str,
    *,
    client: Api | None = None,
    new_name: str | None = None,
    python: str | None = None,
    resume: bool | None = None,
    **fields: Any,
) -> Job:
    """Run a job again as a new one: the same code and spec except for `fields`, with the caller's
    present environment.

        resubmit(job, n_workers=4, env_variables={"LR": "0.1"})

    The log lists the differences and the code that runs. The new job starts with a copy of the old
    job's checkpoints if the old job has ended, and script, `args`, `flags` and `env_variables` are
    unchanged; else it starts fresh, and a warning says so. `resume`: True starts from the
    checkpoints in any case, False never. `new_name` None: a new name is drawn. `python`: the
    interpreter for a job on this machine; None: this one.

    Raises InvalidRequest: an unknown field, a wrong value, a field that would change the code, or a
    `resume` that contradicts the state or the `checkpoint_dir` of the old job.
    """
    api = client or (job.client if isinstance(job, Job) else configured())
    name = job if isinstance(job, str) else job.info().name
    stored = api.job_request(name)
    before = api.job_info(name)
    if isinstance(stored.code, CodeSnapshot):
        with suppress(ClientLibError):  # an older server, or the job of another user
            stored = replaced(stored, provenance=api.job_provenance(name).submitted)
    spec = changes.changed(stored.spec, with_names(fields), stored.function)
    spec = replaced(spec, name=new_name)
    digest = request.script_digest(stored)
    differ = changes.what_differs(stored, spec, digest)
    is_copied, told = changes.checkpoints(before, spec, differ, resume)
    for message in (*changes.differences(stored.spec, spec), changes.code_message(stored, digest)):
        _log.info("%s", message)
    _log.log(logging.WARNING if differ and resume is None else logging.INFO, "%s", told)
    return Job.of(
        api,
        request.resubmit(
            api, stored, spec, uuid.uuid4().hex, python, before if is_copied else None
        ),
    )


def list_jobs(
    state: State | str | None = None,
    label: Mapping[str, str] | None = None,
    name: str | None = None,
    limit: int | None = None,
    *,
    group: str | None = None,
    client: Api | None = None,
) -> JobList:
    """The caller's jobs, newest first, at most `limit`, as a sequence of `Job` that fetches pages
    as they are needed.

    `name` is the beginning of their names; of several labels all must match. `group`: only members
    of this group.
    """
    api = client or configured()
    return JobList(partial(Job.of, api), lambda: api.list_jobs(state, label, name, limit, group))
