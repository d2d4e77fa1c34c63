"""One job as an object, described and submitted: the platform's verbs (`submit status logs kill`) and typed ones.

Public. A Job is a description until `submit()`; afterwards, or from `get_job`, it is a handle on a job of a server, and
what that can be asked is `handle`. What travels is `api`, how the code gets there `submission`.
"""

from __future__ import annotations

import os
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from client_lib import arguments, legacy, naming, submission
from client_lib.api import Api, OnUpload
from client_lib.errors import Conflict
from client_lib.functions import call as functions
from client_lib.handle import Handle
from client_lib.spec import mlspace
from client_lib.spec.job import HealthParams, JobSpec, JobType, PriorityClass, Scalar
from client_lib.spec.mlspace import PlatformType
from client_lib.spec.wire import JobInfo, Manifest


class Job(Handle):
    """A distributed job. Only `script` is needed; every field is described in `client_lib.JobSpec`.

        job = Job(script="train.py", n_workers=2)
        job.submit()        # 'Job "train-x7k2m" created.'
        job.logs()          # prints, and follows until the job ends
        job.wait()          # raises JobFailed with the report

    Thread-safe. Nothing of the calling process is changed. An argument of None counts as not given, except `log_file`.
    """

    Type = PlatformType
    """The ML Space platform's names of the types: `Job.Type.pytorch2`."""

    def __init__(
        self,
        base_image: str | None = None,
        script: str | os.PathLike[str] | Callable[..., Any] | None = None,
        instance_type: str | None = None,
        n_workers: int | None = 1,
        type: JobType | str | None = JobType.PYTORCH2,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        flags: Mapping[str, Scalar] | None = None,
        env_variables: Mapping[str, Scalar] | None = None,
        secrets: Sequence[str] | None = None,
        code: Literal["auto", "in_place", "snapshot"] = "auto",
        working_dir: str | os.PathLike[str] | None = None,
        warm: bool | None = None,
        conda_env: str | None = None,
        pytorch_use_env: bool | None = None,
        log_file: str | None = "train.log",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        outputs: Sequence[str] | None = None,
        requirements: Sequence[str] | str | os.PathLike[str] | None = None,
        processes_per_worker: int | Literal["default"] | None = "default",
        gpus: Sequence[int] | None = None,
        volumes: Sequence[str] | None = None,
        shm_size_class: Literal["small", "medium", "large"] | None = None,
        tmp_storage: str | None = None,
        include_nodes: Sequence[str] | None = None,
        exclude_nodes: Sequence[str] | None = None,
        internet: bool | None = None,
        region: str | None = None,
        priority_class: PriorityClass | str | None = PriorityClass.MEDIUM,
        queue_name: str | None = None,
        allocation_name: str | None = None,
        max_retry: int | None = None,
        stop_timer: int | None = None,
        health_params: HealthParams | Mapping[str, Any] | None = None,
        grace_s: float | None = 30.0,
        elastic_min_workers: int | Literal["default"] | None = None,
        elastic_max_workers: int | Literal["default"] | None = None,
        elastic_max_restarts: int | None = None,
        name: str | None = None,
        job_desc: str | None = None,
        labels: Mapping[str, str] | None = None,
        logs_dir: str | os.PathLike[str] | None = None,
        client: Api | None = None,
        n_gpus: int | None = None,
        detached: bool | None = None,
        warm_cache: bool | None = None,
        memory_limit: Any = None,
        cpu_limit: Any = None,
        spark_executor_memory: float | None = None,
        cuda11: bool | None = None,
        preflight_check: bool | None = None,
        forbid_s3: bool | None = None,
        forbid_internet: bool | None = None,
        in_communal_cluster: bool | None = None,
    ) -> None:
        """Checks the values and stores them; touches neither disk nor network.

        `script` may be a function: every rank calls it with `args` and `kwargs`, and `result()` gives what it returned.
        `client`: the server that it goes to (a `client_lib.Client`); None: the configured one. Those behind it are the
        ML Space platform's of earlier years: a DeprecationWarning each says what to write instead.

        Raises:
            InvalidRequest: with a line for each field that is wrong.
            NotSupported: something of the platform that can't be had, by name.
        """
        given = dict(locals())  # the parameters are the spec's fields, one by one; a test compares them
        old = legacy.translate(given)
        for sentence in old.sentences:
            warnings.warn(sentence, DeprecationWarning, stacklevel=2)
        self._call = functions.taken_from(given)
        self._script = os.fspath(given["script"]) if given["script"] is not None else ""
        self._spec = arguments.checked_spec({name: given[name] for name in JobSpec.model_fields} | old.fields)
        self._attached = old.attached
        self._drawn: str | None = None
        self._key = uuid.uuid4().hex  # one for the object's life: a submit that is repeated is the same job
        self._lock = threading.Lock()
        super().__init__(client, None)

    @classmethod
    def of(cls, client: Api, info: JobInfo) -> Job:
        """A handle on a job that is there already; used by `get_job`."""
        job = object.__new__(cls)
        job._script, job._spec = info.spec.script, info.spec
        job._key, job._lock, job._attached, job._call = "", threading.Lock(), False, None
        Handle.__init__(job, client, info)
        return job

    @classmethod
    def from_function(cls, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job:
        """A job of one worker that calls the function with these arguments; `Job(script=function, ...)` has it all."""
        return cls(script=function, args=args, kwargs=kwargs)

    @property
    def spec(self) -> JobSpec:
        """What was asked for; once submitted, as the server shows it."""
        return self._last.spec if self._last else self._spec

    @property
    def name(self) -> str | None:
        """The name that the job has or was given; None: it gets one at the submit."""
        return self.job_name or self._spec.name

    def submit(self, *, python: str | None = None, on_upload: OnUpload | None = None) -> str:
        """Hand the job over; it is stored durably when this returns `Job "<name>" created.`

        `python`: interpreter that runs the script where jobs run on this machine; None: the one that runs this.
        `on_upload`: called with (bytes sent, bytes in all) where the code is uploaded. After a failure it may be
        called again: it is the same job, never a second one.

        Raises:
            InvalidRequest: a field, or the script, is wrong; names it, its value and the way out.
            Conflict: the name is taken, or this object was submitted already.
            ServerUnreachable, Unauthorized, StorageFull, ...: see `client_lib.errors`.
        """
        with self._lock:
            if self._last:
                raise Conflict(
                    f"this job was submitted already, as {self._last.name}",
                    hint="make a new Job(...), or `client-lib resubmit`, to run it again",
                )
            self._drawn = self._spec.name or self._drawn or naming.draw(self._spec)
            spec = self._spec.model_copy(update={"name": self._drawn})
            self._client = self._api  # from here on it is that server, whatever the environment says later
            prepared = submission.prepare(self._client, spec, self._script, python, self._call)
            self._last = submission.submit(self._client, prepared, self._key, on_upload)
        if self._attached:
            self.logs()
        return mlspace.submitted(self._last.name)

    def render(self, *, python: str | None = None) -> Manifest:
        """What the server would create (locally worker plans), secrets masked. Before the submit a dry run: nothing is
        created, and the same answer twice (in the place of a name to come it shows `...-xxxxx`).

        Raises what `submit` would raise for the same job.
        """
        if self._last:
            return self._api.job_manifest(self._last.name)
        spec = self._spec.model_copy(update={"name": self._spec.name or naming.name_for(self._spec.script, "xxxxx")})
        return submission.render(self._api, submission.prepare(self._api, spec, self._script, python, self._call))

    def __repr__(self) -> str:
        state = f", {self._last.state} when last asked" if self._last else ", not submitted"
        return f"Job({self.name or self._script!r}{state})"
