"""One job as an object: the platform's verbs (`submit status logs kill`) and the typed ones that they are built on.

Public. A Job is a description until `submit()`; afterwards, or from `get_job`, it is a handle on a job of a server, and
every call asks that server. What travels is `api`, how the code gets there `submission`.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Literal

from client_lib import arguments, display, explanation, failure_report, legacy, log_reader, naming, submission
from client_lib import download as downloads
from client_lib.api import LONG_POLL_S, Api, OnUpload, configured
from client_lib.cell_output import in_cell_or_terminal
from client_lib.errors import ClientLibError, Conflict, JobFailed, WaitTimeout
from client_lib.functions import call as functions
from client_lib.functions.results import Outcome
from client_lib.log_output import LogOutput, TextOut
from client_lib.log_reader import LogEntry
from client_lib.spec import mlspace
from client_lib.spec.explanation import Explanation
from client_lib.spec.job import HealthParams, JobSpec, JobType, PriorityClass, Scalar
from client_lib.spec.mlspace import PlatformType
from client_lib.spec.states import State
from client_lib.spec.wire import Event, JobInfo, Manifest

Ranks = int | Sequence[int] | None
Streams = str | Sequence[str] | None

_SHOWN_LINES = 5  # in a notebook's table of a job
_PATIENCE_S = 2.0  # with a server that is asked for them


class Job:
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
        self._client = client
        self._drawn: str | None = None
        self._key = uuid.uuid4().hex  # one for the object's life: a submit that is repeated is the same job
        self._lock = threading.Lock()
        self._last: JobInfo | None = None
        self._noticed: set[str] = set()

    @classmethod
    def of(cls, client: Api, info: JobInfo) -> Job:
        """A handle on a job that is there already; used by `get_job`."""
        job = object.__new__(cls)
        job._script, job._spec, job._client = info.spec.script, info.spec, client
        job._key, job._lock, job._last, job._noticed = "", threading.Lock(), info, set()
        job._attached, job._call = False, None
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

    @property
    def job_name(self) -> str | None:
        """The platform's word: the name once the job is submitted, None before and after a failed submit."""
        return self._last.name if self._last else None

    # --- the platform's verbs

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

    def status(self) -> str:
        """The platform's sentence: `Job status=Running` (Pending, Running, Completed, Failed, Deleted).

        Its users take what stands behind the last `=`.
        """
        return f"Job status={mlspace.shown_status(self.info().state)}"

    def logs(
        self,
        tail: int | None = None,
        verbose: bool | None = None,
        *,
        follow: bool | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        timestamps: bool = False,
        attempt: int | None = None,
        collapse: bool = False,
        file: TextOut | None = None,
    ) -> None:
        """Print the job's lines, and follow while it isn't final; on stderr its notices and, while it waits, why.

        `tail`: only so many last lines. `since`: `10m`, `2h` or a time. `rank`, `stream`: one or several. `attempt`:
        None is all, in order. What the launcher says about the job goes to stderr, unless `stream` names it.
        `collapse`: identical lines that several ranks print within 0.3 s are one line, `[0-3] loading`.
        `verbose`: the platform's word for `timestamps`. `follow=False` prints what there is, of a pending job the
        platform's sentence. Ctrl-C ends the look, never the job. `file` None: sys.stdout; in a notebook's cell the
        state and progress bars stand above the lines, and of a long log only the first and last lines are shown.
        """
        info = self.info()
        if follow is False and info.state is State.PENDING:
            (sys.stdout if file is None else file).write(f"{mlspace.in_queue(info.name)}\n")
            return
        params = log_reader.log_params(
            follow=follow is not False, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt
        )
        prefix = not isinstance(rank, int) and display.may_have_several_ranks(info.spec)
        self._print(info, params, file, prefix=prefix, timestamps=timestamps or bool(verbose), collapse=collapse)

    def kill(self) -> str:
        """Cancel the job; the platform's sentence. Its logs stay."""
        return mlspace.deleted(self.cancel().name)

    # --- typed

    def info(self) -> JobInfo:
        """Everything about the job, as it is now. Raises NotFound if it was deleted."""
        self._last = self._api.job_info(self._submitted)
        return self._last

    @property
    def state(self) -> State:
        """As it is now; asks the server."""
        return self.info().state

    def wait(self, timeout: float | None = None, *, follow: bool = False) -> JobInfo:
        """Block until the job is final; return its last info if it SUCCEEDED. The server pushes the change.

        `follow`: print the logs meanwhile.

        Raises:
            JobFailed: with the report: the first failing rank, its exit code and what that means, its last lines.
            JobCancelled: it was cancelled.
            WaitTimeout: it is not final after `timeout` seconds; says the state it is in.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        info = self.info()
        if follow:
            prefix = display.may_have_several_ranks(info.spec)
            self._print(info, log_reader.log_params(follow=True), prefix=prefix, deadline=deadline)
            info = self.info()
        while not info.state.final:
            info = self._changed(info, deadline)
        if info.state is not State.SUCCEEDED:
            raise failure_report.ended(info)
        return info

    def result(self, rank: int = 0, timeout: float | None = None, *, trust: bool = False) -> Any:
        """What the job's function returned in this rank, as soon as the job has ended.

        It is unpickled here, which runs code of who submitted the job: another owner's needs `trust=True`.

        Raises:
            what the function raised, from a JobFailed with the remote traceback; RemoteError: the same, but of a class
            that can't be rebuilt here.
            NoResult: the function returned nothing that can be read (or this is no job of a function); says why.
            NotFound: the job has no such rank; says which there are.
            JobFailed, JobCancelled, WaitTimeout: as `wait`.
        """
        return self._outcome(timeout, trust).value(rank)

    def results(self, timeout: float | None = None, *, trust: bool = False) -> list[Any]:
        """What the function returned, one value per rank in their order. Raises as `result` does."""
        return self._outcome(timeout, trust).values()

    def _outcome(self, timeout: float | None, trust: bool) -> Outcome:
        """The end of the job, waited for. Raises what it raised."""
        try:
            info = self.wait(timeout)
        except JobFailed as failed:
            raised = Outcome(self._api, failed.info, trust).failure(failed)
            raise raised from raised.__cause__
        return Outcome(self._api, info, trust)

    def download(
        self,
        folder: str | os.PathLike[str] | None = None,
        pattern: str | None = None,
        *,
        on_download: downloads.OnDownload | None = None,
    ) -> list[Path]:
        """Fetch what the ranks have left (`outputs`) into `folder`, and give the paths; also while the job runs.

        `folder` None: one of the job's name, here. `pattern`: a glob such as `*.pt` or `out/**`; None: all. What is
        there already is not fetched again, and a download that was cut goes on. `on_download`: called with its
        progress. Of a job in place nothing is fetched but what it was told to keep: a warning says where its files are.

        Raises:
            InvalidRequest: a link or something else in `folder` is in the way.
            NotFound: a running job writes a file anew again and again.
        """
        info = self.info()
        return downloads.download(self._api, info, Path(info.name if folder is None else folder), pattern, on_download)

    def log_lines(
        self,
        *,
        follow: bool = True,
        tail: int | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        attempt: int | None = None,
    ) -> Iterator[str]:
        """The job's own lines without their ends, as they come; filters as in `logs`. Of a progress bar the last state.

        What the launcher says about the job is not among them; `stream="launcher"` asks for it.
        """
        params = log_reader.log_params(follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt)
        return log_reader.log_lines(
            partial(self._api.open_logs, self._submitted), params, retry_s=self._api.config.retry_s
        )

    def log_entries(
        self,
        *,
        follow: bool = True,
        tail: int | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        attempt: int | None = None,
    ) -> Iterator[LogEntry]:
        """The lines with all that is known of them (time, worker, rank, stream, ...); filters as in `logs`.

        All streams are among them, also `launcher`: what the launcher says about the job.
        """
        params = log_reader.log_params(follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt)
        return log_reader.log_entries(
            partial(self._api.open_logs, self._submitted), params, retry_s=self._api.config.retry_s
        )

    def cancel(self) -> JobInfo:
        """Order the end of the job, also while it waits; the end itself arrives later (`wait`). Final: nothing."""
        self._last = self._api.cancel_job(self._submitted)
        return self._last

    def delete(self, *, force: bool = False) -> str:
        """Remove the job with its logs; a sentence. `force`: also while it runs, which stops it first.

        Raises Conflict: it is not final and `force` is False.
        """
        return self._api.delete_job(self._submitted, force=force)

    def events(self) -> list[Event]:
        """What happened to the job, oldest first; every change of its state is one."""
        return self._api.job_events(self._submitted)

    def explain(self) -> str:
        """Why the job waits, or why it failed, on some lines: the reason, the events behind it, and the next step."""
        return explanation.explain(self.info(), self.events(), datetime.now(timezone.utc))

    def explanation(self) -> Explanation:
        """The same as `explain`, as data: for programs. `docs/explanation.schema.json` describes it."""
        return explanation.explained(self.info(), self.events(), datetime.now(timezone.utc))

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

    def _repr_html_(self) -> str:
        """For notebooks: the job as it is now, or where the server doesn't answer at once, as it was."""
        if self._last is None:
            return f"<code>{html.escape(repr(self))}</code>"
        try:
            self._last = self._api.job_info(self._last.name, retry_s=0)
        except ClientLibError as problem:
            return display.as_html(self._last, note=problem.message)
        return display.as_html(self._last, lines=self._last_lines(self._last))

    def _last_lines(self, info: JobInfo) -> Sequence[str]:
        """Of the failing rank, else of all of the job's. As the table is shown anew with every look, none is waited for
        long."""
        if info.failure is not None and info.failure.last_lines:
            return info.failure.last_lines[-_SHOWN_LINES:]
        params = log_reader.log_params(tail=_SHOWN_LINES)
        stream = partial(self._api.open_logs, info.name, deadline=time.monotonic() + _PATIENCE_S)
        try:
            return list(log_reader.log_lines(stream, params, retry_s=0))[-_SHOWN_LINES:]
        except ClientLibError:  # the table is worth showing without
            return ()

    # ---

    @property
    def client(self) -> Api:
        """The server that it is on, or would go to."""
        return self._api

    @property
    def _api(self) -> Api:
        return self._client or configured()

    @property
    def _submitted(self) -> str:
        """The name. Raises Conflict before the submit."""
        if self._last is None:
            raise Conflict(f"{self!r} is no job of a server yet", hint="call submit() first")
        return self._last.name

    def _changed(self, info: JobInfo, deadline: float | None) -> JobInfo:
        """The job after its next change, or some time later. Raises WaitTimeout at the deadline."""
        left = LONG_POLL_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            why = f": {info.message}" if info.message else ""
            raise WaitTimeout(f"job {info.name} is not final yet, but {info.state} ({info.reason}){why}")
        self._last = self._api.job_info(info.name, after_version=info.version, wait_s=min(left, LONG_POLL_S))
        return self._last

    def _print(
        self, info: JobInfo, params: Mapping[str, str | list[str]], file: TextOut | None = None, **look: Any
    ) -> None:
        """`file` None: where this process prints, which may be a notebook's cell. `look`: see LogOutput.

        The job's notices, what the server reads otherwise than it was asked for, are said once per object.
        """
        new = [notice for notice in info.notices if notice not in self._noticed]
        self._noticed.update(new)
        with in_cell_or_terminal(info, file) as cell:
            out = cell or (sys.stdout if file is None else file)
            output = LogOutput(info.name, out, retry_s=self._api.config.retry_s, beside=cell, **look)
            for notice in new:
                output.say(f"{notice}\n")
            output.write(partial(self._api.open_logs, info.name), params)
            if cell:
                cell.end(self.info())
