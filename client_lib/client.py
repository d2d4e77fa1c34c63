"""Public entry points: a Client is one server; `get_job`, `list_jobs` and so
on use the configured one.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from client_lib.errors import ClientLibError
from client_lib.functions import call as functions
from client_lib.groups import Group, JobList
from client_lib.job import Job, submitted, with_names
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.states import State
from client_lib.submit import changes, request
from client_lib.transport.api import Api, configured
from client_lib.transport.config import resolve

P = ParamSpec("P")
R = TypeVar("R")

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
        does not answer (30).

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
    stored, before = api.job_request(name), api.job_info(name)
    if isinstance(stored.code, CodeSnapshot):
        with suppress(ClientLibError):  # an older server, or the job of another user
            stored = stored.model_copy(update={"provenance": api.job_provenance(name).submitted})
    spec = changes.changed(stored.spec, with_names(fields), stored.function)
    spec = spec.model_copy(update={"name": new_name})
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


# --- functions as jobs


class RemoteFunction(Generic[P, R]):
    """A function whose calls run as jobs. In a worker it is the plain function."""

    __name__: str

    def __init__(self, function: Callable[P, R], options: dict[str, Any]) -> None:
        self.__client_lib_function__ = function
        self._options = options
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the job, wait, and return the function's value of rank 0. Raises as `Job.result`."""
        return self.submit(*args, **kwargs).result()

    def __repr__(self) -> str:
        try:
            signature = str(inspect.signature(self.__client_lib_function__))
        except (TypeError, ValueError):  # some functions of C have none
            signature = "()"
        call = f"{functions.name_of(self.__client_lib_function__)}{signature}"
        options = [f"{name}={value!r}" for name, value in self._options.items()]
        return f"<remote {', '.join([call, *options])}>"

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Submit the job and return it without waiting."""
        return submitted(self.job(*args, **kwargs))

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The job, not submitted yet."""
        return Job(script=self.__client_lib_function__, args=args, kwargs=kwargs, **self._options)

    def options(self, **options: Any) -> RemoteFunction[P, R]:
        """The same function with more arguments of Job."""
        return RemoteFunction(self.__client_lib_function__, self._options | options)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method: the object travels as its first argument."""
        if instance is None:
            return self
        return RemoteFunction(self.__client_lib_function__.__get__(instance, owner), self._options)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (self.__client_lib_function__,)  # a worker may lack this package


@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Any) -> Callable[[Callable[P, R]], RemoteFunction[P, R]]: ...
def remote(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Decorate a function so that a call runs a job and returns the value of rank 0. `options`:
    arguments of `Job`. ::

        @client_lib.remote(n_workers=2)
        def train(lr):
            ...

        accuracy = train(0.1)       # waits
        job = train.submit(0.1)     # does not wait

    Raises TypeError at once for an option that Job does not have.
    """
    for name in ("script", "args", "kwargs"):
        if name in options:
            raise TypeError(
                f"remote() takes no {name}: the function and the arguments of its calls replace it"
            )
    Job(script=lambda: None, **options)  # only the options are checked
    return (
        partial(RemoteFunction, options=options)
        if function is None
        else RemoteFunction(function, options)
    )
