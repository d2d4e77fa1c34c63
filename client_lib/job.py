"""One job as an object, described and submitted: the platform's verbs (`submit status logs kill`)
and typed ones.

Public. A Job is a description until `submit()`; afterwards, or from `get_job`, it stands for a job
of a server, which every call asks.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Union, cast

from typing_extensions import TypeVar  # of the standard library from Python 3.13 on

from client_lib.errors import ClientLibError, Conflict, InvalidRequest, JobFailed, WaitTimeout
from client_lib.functions import call as functions
from client_lib.groups import Group
from client_lib.reports import explanation
from client_lib.spec import mlspace
from client_lib.spec.job import CheckpointParams, HealthParams, JobSpec, JobType, PriorityClass
from client_lib.spec.mlspace import PlatformType
from client_lib.spec.refusals import validated
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeInPlace, CodeSnapshot, GroupRequest, SubmitRequest
from client_lib.spec.states import State
from client_lib.spec.validation import Scalar
from client_lib.spec.wire import Event, Explanation, JobInfo, JobProvenance, Manifest
from client_lib.submit import arguments, request, sweep
from client_lib.transport.api import LONG_POLL_S, Api, configured
from client_lib.transport.rest import OnUpload

if TYPE_CHECKING:  # a submit needs none of these modules: each is loaded by the call that uses it
    from typing_extensions import Unpack

    from client_lib.functions.results import Outcome
    from client_lib.log_reading.reader import LogEntry
    from client_lib.log_reading.text_output import TextOut
    from client_lib.reports.difference import JobDiff
    from client_lib.spec.checkpoints import JobCheckpoint
    from client_lib.spec.metrics import JobGoodput, JobMetrics
    from client_lib.spec.stacks import JobStacks
    from client_lib.transport import download as downloads

R = TypeVar("R", default=Any)
"""Type of the value of the job's function."""
T = TypeVar("T")
P = ParamSpec("P")
Ranks = int | Sequence[int] | None
Streams = str | Sequence[str] | None
Awaited = Union["Job[Any]", "Group", str]
"""A job that is waited for, a group, or `ok:NAME`."""

_TABLE_LINES = 5  # log lines in a notebook's table of a job
_TABLE_PATIENCE_S = 2.0  # longest wait for them
_COMPARED_MAX = 8 * 2**20  # bytes of two snapshots that an explanation fetches


@arguments.with_earlier_arguments
class Job(Generic[R]):
    """A distributed job. Only `script` is needed.

        job = Job(script="train.py", n_workers=2)
        job.submit()        # 'Job "train-x7k2m" created.'
        job.logs()          # prints, and follows until the job ends
        job.wait()          # raises JobFailed with the report

    Thread-safe. The calling process is left as it is. None counts as not given, except for
    `log_file`. The parameters are the fields of `client_lib.JobSpec`; `make docs` writes their
    descriptions here.

    Parameters:
        script: Path of a .py file, which arguments may follow; for the binary types, and where it
            names no .py file, any command line. The text is split by shell rules and run without a
            shell.
        base_image: Container image; None: the catalogue's default. The local runtime uses no image:
            it runs the interpreter of the submit.
        type: Way of starting the processes of a worker.
        args: Arguments that are passed to the script as they are.
        flags: Options that follow `args`, as `--key=value`; None: `--key` alone.
        env_variables: Variables for every process. They win over variables that client_lib sets;
            variables of the ranks (RANK, MASTER_ADDR ...) are refused. A variable with the value
            None is not set.
        secrets: Names of variables whose values are sent and stored apart from the spec, and are
            never shown.
        code: Place of the code: "in_place" runs it where it is, on a server that shares the folder;
            "snapshot" uploads a copy; "auto" is in place if the server proves that it shares the
            folder, else a snapshot.
        working_dir: Working directory of the processes. None: of code in place, the directory of
            the submit; of a snapshot, the same directory if it is inside the snapshot, else the
            script's folder.
        warm: False: start every process from scratch. None: fork the processes from one that has
            imported torch and other packages, if there is one that suits the job (local runtime
            only).
        observe: False: take no stacks of the job (`client-lib stacks`), and read no metrics and no
            progress from its output.
        metrics: Regular expression whose named groups are metrics, and `step` their step, in each
            line of the output: as in `ppl (?P<perplexity>[0-9.]+)`. Metrics that are found without
            the expression are kept.
        conda_env: Name or path of a conda environment whose python runs the script.
        pytorch_use_env: None: `--local_rank` is passed if the script declares that option; True:
            never; False: always.
        log_file: File (or glob) that the script writes beside its stdout; its lines are in the log
            as the stream `train.log`. None: no file.
        checkpoint_dir: Directory for checkpoints; the script finds its path in
            CLIENT_LIB_CHECKPOINT_DIR. None: a directory of the job's own, which is kept over its
            attempts.
        checkpoint_from: Name of an earlier job of the same user. At its start the new job gets a
            copy of the checkpoints of the earlier one. If the earlier job has not ended, it must
            stand in `after`, too.
        checkpoint_params: Rules for checkpoints: how many are kept, and what is done with a damaged
            one. None: all are kept.
        outputs: Globs of files that are kept for download, relative to the working directory (`**`:
            any folders). Of the files that match, those are kept that the ranks create or change.
            None: all such files of a job that runs from a snapshot; none of a job in place, whose
            files stay where they are. []: none.
        requirements: Extra packages, as lines of pip's requirements files. They are installed
            before the script starts, beside the packages of its interpreter, which stay as they
            are.
        setup: Command for `sh -e`, of one line or several. It runs once on each worker before the
            script, in each attempt, in the working directory and environment of the processes,
            without the variables of a rank. stop_timer limits its time, too.
        preflight_check: True: check the machines before the script, in each attempt: all ranks meet
            and sum tensors; disks, shared memory, GPUs and clocks are tried. A failing worker ends
            the job with reason PreflightFailed; `status` and the log name a slow worker.
        smoke: True: a short trial. When rank 0 has logged 3 values of a metric, or 3 marks of
            progress, or after 60 s of running, all ranks are stopped, and the job is SUCCEEDED if
            nothing has failed.
        instance_type: Name of an instance type of the server's catalogue, or, where the server
            reads such names, a name of the form `a100.8gpu` or `cpu.8C.32G`. None: the catalogue's
            default; on this machine all free GPUs, else the CPU.
        n_workers: Number of workers: pods of a cluster, or groups of processes of this machine.
            Worker 0 computes like the others.
        processes_per_worker: Ranks per worker; "default": the GPUs of the instance type, at least
            1.
        gpus: Indices of this machine's GPUs to use (local runtime only).
        volumes: Volumes of the server's catalogue for every worker, as `name:path[:ro]`. In the
            local runtime the path must be the path on this machine.
        shm_size_class: Size of /dev/shm: 16, 32 or 64 GiB per GPU.
        tmp_storage: Preset of an extra disk at /tmp.
        include_nodes: Nodes of the cluster; the job runs on no others.
        exclude_nodes: Nodes of the cluster on which the job never runs.
        internet: False: no outbound access. None: the server's default.
        region: Region of the ML Space platform; any is accepted.
        priority_class: Order in the queue; within a class, the order of submission.
        queue_name: Queue of the cluster.
        allocation_name: Reserved capacity of the ML Space platform.
        after: Jobs or groups for which the job waits, without taking resources: `NAME` or `ok:NAME`
            until NAME has SUCCEEDED, `failed:NAME` until it has FAILED, `any:NAME` until it has
            ended. If one of them ends in another way, the job is FAILED with reason
            DependencyFailed. A cancelled job has neither succeeded nor failed.
        max_retry: Largest number of new attempts, each with all workers, after failed ones; None:
            none.
        retry_on: Failures after which max_retry, which must be given too, makes a new attempt:
            reasons such as `NodeLost`, `Preempted`, `Hung`, and `exit:N`, the exit code of the
            first failing rank. None: all failures. Retries by max_infrastructure_retry, hang_action
            and health_params do not depend on this list. `Hung` stops and retries a hung attempt
            after a minute, whatever hang_action says; `HungSilent` needs health_params with an
            action.
        retry_reset_steps: Number of steps. If an attempt gets so many steps further than all
            attempts before it, max_retry and max_infrastructure_retry count from 0 again. The step
            of an attempt is the largest step in the metrics of rank 0, or without such metrics the
            step of rank 0's progress bar; an attempt with neither changes nothing. None: both count
            all attempts.
        max_infrastructure_retry: Largest number of new attempts after the loss of a place to run: a
            node was lost, or evicted or refused a worker, another job took the place, or this
            machine was rebooted. max_retry does not count these attempts, and applies after the
            last one.
        stop_timer: Minutes of running, at most ten years, after which the job is stopped and FAILED
            with reason Timeout; None or 0: never.
        health_params: Actions if the job prints nothing for a time; None: none.
        hang_action: Action if ranks wait in a collective for a rank that does nothing. `report`:
            the job's message names that rank; `stop`: after a minute the job is FAILED with reason
            Hung; `retry`: after a minute a new attempt begins, which max_retry counts.
        alarm: Rules about the metrics of all ranks, each with what is done when it becomes true:
            `nan -> stop`, `loss > 10 for 50 steps -> retry`, `loss spike -> notify`, `loss rises
            for 200 steps -> notify`, `loss stands still for 10 min -> notify`, `idle for 30 min ->
            notify`. `notify`: an event, `attention` and the webhook; `stop`: the job is FAILED with
            reason Alarm; `retry`: a new attempt, which max_retry counts, from the newest checkpoint
            before. A rule acts once in an attempt. At most 20 rules.
        notify: URL of a webhook. The server posts JSON to it when the job ends, hangs, or resumes
            after a hang, when a rule of `alarm` with `-> notify` becomes true, and when the script
            calls `client_lib.alert`; in Slack's format to hooks.slack.com and to a URL that begins
            with `slack+`. The URL is shown as `***`. None: the URL of the profile.
        grace_s: Seconds between SIGTERM and SIGKILL when the job is cancelled, another rank fails,
            or the job is pre-empted.
        elastic_min_workers: Number of workers with which a `pytorch_elastic` job continues; None or
            "default": n_workers.
        elastic_max_workers: Upper bound of the workers of a `pytorch_elastic` job; never more than
            n_workers are started.
        elastic_max_restarts: Restarts of the ranks of a `pytorch_elastic` job within an attempt;
            None: 5.
        name: DNS-1035 label of at most 50 characters, which no other job of the user has; None: a
            name made from the script's name.
        job_desc: Free text.
        labels: Free key-value pairs to find jobs by: at most 256, keys and values of at most 255
            characters.
        logs_dir: Directory of log files on the ML Space platform; here `client-lib logs` reads
            logs.
    """

    Type = PlatformType
    """The ML Space platform's names of the types: `Job.Type.pytorch2`."""
    submit_raises: bool = True
    """False: `submit` returns the sentence of an error, as on the ML Space
    platform, in place of raising it.
    """

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
        observe: bool | None = True,
        metrics: str | None = None,
        conda_env: str | None = None,
        pytorch_use_env: bool | None = None,
        log_file: str | None = "train.log",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        checkpoint_from: Job[Any] | str | None = None,
        checkpoint_params: CheckpointParams | Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        requirements: Sequence[str] | str | os.PathLike[str] | None = None,
        setup: str | None = None,
        preflight_check: bool | None = False,
        smoke: bool | None = False,
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
        after: Awaited | Sequence[Awaited] | None = None,
        max_retry: int | None = None,
        retry_on: Sequence[str] | None = None,
        retry_reset_steps: int | None = None,
        max_infrastructure_retry: int | None = 3,
        stop_timer: int | None = None,
        health_params: HealthParams | Mapping[str, Any] | None = None,
        hang_action: Literal["report", "stop", "retry"] | None = "report",
        alarm: str | Sequence[str] | None = None,
        notify: str | None = None,
        grace_s: float | None = 30.0,
        elastic_min_workers: int | Literal["default"] | None = None,
        elastic_max_workers: int | Literal["default"] | None = None,
        elastic_max_restarts: int | None = None,
        name: str | None = None,
        job_desc: str | None = None,
        labels: Mapping[str, str] | None = None,
        logs_dir: str | os.PathLike[str] | None = None,
        client: Api | None = None,
        **earlier: Unpack[arguments.OldArguments],
    ) -> None:
        """Check the values and store them; neither disk nor network is touched.

        `script` may be a function: every rank calls it with `args` and `kwargs`, and `result()`
        returns its value. `client`: the server that receives the job (a `client_lib.Client`); None:
        the configured one. `earlier`: arguments of the ML Space platform's earlier years, each with
        a DeprecationWarning that names today's one.

        Raises:
            InvalidRequest: with a line for each wrong field.
            NotSupported: a feature of the platform that does not exist here, by name.
            Conflict: a Job in `after` is not submitted yet.
        """
        # the parameters are the spec's fields, one by one; a test compares them
        given = dict(locals())
        old = arguments.translate(given, earlier)
        call = functions.taken_from(given)
        text = os.fspath(given["script"]) if isinstance(given["script"], str | os.PathLike) else ""
        given |= with_names({"after": after, "checkpoint_from": checkpoint_from})
        spec = arguments.checked_spec({name: given[name] for name in JobSpec.model_fields} | old)
        self._set_up(client, spec, text, call)
        self._attached = earlier.get("detached") is not None and not earlier["detached"]

    @classmethod
    def of(cls, client: Api, info: JobInfo) -> Job:
        """Return the object for a job that a server has; `get_job` is the public way."""
        job = cls.__new__(cls)  # no arguments of Job to check
        job._set_up(client, info.spec, info.spec.script)
        job._last = info
        return job

    def _set_up(
        self, client: Api | None, spec: JobSpec, script: str, call: functions.Call | None = None
    ) -> None:
        """`call`: the function that runs instead of a script."""
        self._client = client
        self._spec = spec
        self._script = script
        self._call = call
        self._attached = False  # True: `submit` shows the log and returns when the job has ended
        # as the server last described it; None: it is not submitted yet
        self._last: JobInfo | None = None
        self._key = uuid.uuid4().hex  # one per object: a repeated submit is the same job
        self._lock = threading.Lock()
        self._shown_notices: set[str] = set()

    @classmethod
    def from_function(
        cls, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[T]:
        """A job of one worker that calls the function with these arguments;
        `Job(script=function, ...)` has options.
        """
        return cast("Job[T]", cls(script=function, args=args, kwargs=kwargs))

    @property
    def spec(self) -> JobSpec:
        """The request; after the submit, as the server shows it."""
        return self._last.spec if self._last else self._spec

    @property
    def last_info(self) -> JobInfo | None:
        """The job as the server last described it, which asks nothing; None before the submit."""
        return self._last

    @property
    def name(self) -> str | None:
        """The job's name; None: the submit will choose one."""
        return self.job_name or self._spec.name

    @property
    def job_name(self) -> str | None:
        """The platform's attribute: the name of the submitted job; None before the
        submit and after a failed one.
        """
        return self._last.name if self._last else None

    def submit(
        self, *, python: str | None = None, on_upload: OnUpload | None = None, check: bool = True
    ) -> str:
        """Submit the job and return `Job "<name>" created.`; the server has stored it durably then.

        `python`: interpreter for a job on this machine; None: the one that runs this code.
        `on_upload`: called with (bytes sent, bytes in all) while the code is uploaded. `check`:
        check a script that runs on this machine first: a syntax error is refused; missing modules
        and options that argparse will refuse are logged as warnings (logger `client_lib`). If a
        call fails, it can be repeated: the repetition never makes a second job.

        Raises:
            InvalidRequest: a field or the script is wrong; the message names it, its value and the
                way out.
            Conflict: the name is taken, or this object was submitted already.
            ServerUnreachable, Unauthorized, StorageFull, ...: see `client_lib.errors`. None of them
            after `Job.submit_raises = False`: it then returns their text, which begins with
            `Error`, and `job_name` is None.
        """
        try:
            accepted = self._accepted(python, on_upload, check)
        except ClientLibError as error:
            if self.submit_raises:
                raise
            return f"Error: {error}"
        if self._attached:
            self.logs()
        return mlspace.submitted(accepted.name)

    def _accepted(self, python: str | None, on_upload: OnUpload | None, check: bool) -> JobInfo:
        with self._lock:
            if self._last:
                raise Conflict(
                    f"this job was submitted already, as {self._last.name}",
                    hint="make a new Job(...), or `client-lib resubmit`, to run it again",
                )
            self._client = self.client  # this server from now on, even if the environment changes
            prepared = self._prepared(self._spec.name, python)
            if check:
                prepared.check_script()
            self._last = prepared.submit(self._key, on_upload)
            return self._last

    def each(
        self,
        group: str,
        values: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
        *,
        max_parallel: int | None = None,
        stop_on_failure: bool = False,
        python: str | None = None,
        check: bool = True,
    ) -> Group:
        """Submit a group: this job once for each combination of `values`, such as
        `{"lr": [0.1, 0.01]}`, or for each run in a list, such as `[{"lr": 0.1}, {"lr": 0.01}]`. ::

            group = Job(script="train.py").each("lr-scan", {"lr": [0.1, 0.01], "seed": range(5)},
            max_parallel=2)

        `{lr}` in an argument is replaced by the value; if no argument has `{lr}`, `--lr 0.1` is
        appended. The jobs are called `<group>-0` and so on. The server stores all of them, or none.
        `max_parallel`: largest number of jobs that run at the same time. `stop_on_failure`: when
        one has FAILED, the others are cancelled. `python`, `check` and errors: as in `submit`.
        """
        if self._call or self._spec.name:
            raise InvalidRequest(
                "a group is made of a script without `name`: its jobs are named after the group"
            )
        prepared = self._prepared(group, python)
        client = self.client
        script, *words = prepared.spec.command()
        runs = sweep.members(words, values)
        spec = replaced(prepared.spec, script=shlex.quote(script), args=words, flags={})
        sent = SubmitRequest(spec=spec, code=CodeInPlace())
        limits = {"max_parallel": max_parallel, "stop_on_failure": stop_on_failure}
        order = validated(GroupRequest, {"name": group, "request": sent, "members": runs, **limits})
        prepared = replace(prepared, spec=spec)
        if check:
            replace(prepared, spec=replaced(spec, args=runs[0].args)).check_script()
        # a description may be submitted as several groups, and as a job
        key = f"{self._key}-{group}"
        return Group(client, group, partial(Job.of, client), prepared.submit_group(order, key))

    def render(self, *, python: str | None = None) -> Manifest:
        """The objects that the server would create (locally worker plans), secrets masked.

        Before the submit this is a dry run: nothing is created, and a second call gives the same
        answer (a name that the submit would choose is shown as `...-xxxxx`). Raises what `submit`
        would raise for the same job.
        """
        if self._last:
            return self.client.job_manifest(self._last.name)
        return self._prepared(self._spec.name, python).render()

    def _prepared(self, name: str | None, python: str | None) -> request.Submission:
        spec = replaced(self._spec, name=name)
        return request.prepare(self.client, spec, self._script, python, self._call)

    # --- the platform's verbs

    def status(self) -> str:
        """The platform's sentence: `Job status=Running` (Pending, Running,
        Completed, Failed, Deleted).
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
        """Print the job's lines and follow until it is final. Notices, and the reason of a wait, go
        to stderr.

        `tail`: number of last lines to begin with. `since`: `10m`, `2h` or a time. `rank`,
        `stream`: one or several. `attempt`: None prints all attempts in order. Messages of the
        launcher go to stderr, unless `stream` names it. `collapse`: identical lines that several
        ranks print within 0.3 s become one line, `[0-3] loading`. `verbose`: the platform's name
        for `timestamps`. `follow=False` prints the lines so far, for a pending job the platform's
        sentence. Ctrl-C stops following; the job keeps running. `file` None: sys.stdout; a
        notebook's cell shows the state and progress bars above the lines, and only the first and
        last lines of a long log.
        """
        info = self.info()
        if follow is False and info.state is State.PENDING:
            (sys.stdout if file is None else file).write(f"{mlspace.in_queue(info.name)}\n")
            return
        from client_lib.log_reading import reader

        follow = follow is not False
        params = reader.log_params(
            follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt
        )
        with_times = timestamps or bool(verbose)
        self._print(
            info,
            params,
            file,
            one_rank=isinstance(rank, int),
            timestamps=with_times,
            collapse=collapse,
        )

    def kill(self) -> str:
        """Cancel the job and return the platform's sentence. The logs stay."""
        return mlspace.deleted(self.cancel().name)

    # --- typed

    def info(self) -> JobInfo:
        """Everything about the job as it is now. Raises NotFound if it was deleted."""
        self._last = self.client.job_info(self._submitted)
        return self._last

    @property
    def state(self) -> State:
        """The state as it is now; asks the server until it is final."""
        if self._last and self._last.state.final:
            return self._last.state
        return self.info().state

    if not TYPE_CHECKING:  # a checker keeps finding misspelt names

        def __getattr__(self, name: str) -> Any:
            """A field of JobInfo as last seen: `list_jobs()` once had a JobInfo for each job."""
            if name != "_last" and (name in JobInfo.model_fields or name == "warm") and self._last:
                return getattr(self._last, name)
            if name in JobInfo.model_fields:
                raise AttributeError(f"{self!r} has no {name} yet; call submit() first")
            raise AttributeError(f"Job has no attribute {name!r}")

    def wait(self, timeout: float | None = None, *, follow: bool = False) -> JobInfo:
        """Block until the job is final; return its last info if it SUCCEEDED. `follow`: print the
        logs meanwhile.

        Raises:
            JobFailed: with the report: the first failing rank, its exit code with the meaning, and
                its last lines (left out with `follow`, which has printed them).
            JobCancelled: it was cancelled.
            WaitTimeout: it is not final after `timeout` seconds; the message names its state.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        info = self.info()
        if follow:
            from client_lib.log_reading import reader

            self._print(info, reader.log_params(follow=True), deadline=deadline)
            info = self.info()
        while not info.state.final:
            left = LONG_POLL_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                why = f": {info.message}" if info.message else ""
                raise WaitTimeout(
                    f"job {info.name} is not final yet, but {info.state} ({info.reason}){why}"
                )
            wait_s = min(left, LONG_POLL_S)
            self._last = info = self.client.job_info(
                info.name, after_version=info.version, wait_s=wait_s
            )
        if info.state is not State.SUCCEEDED:
            raise explanation.ended(info, printed=follow)
        return info

    def result(self, rank: int = 0, timeout: float | None = None, *, trust: bool = False) -> R:
        """Wait for the end of the job and return the value of its function in this rank.

        The value is unpickled here, which runs code of the job's owner: another owner's job needs
        `trust=True`.

        Raises:
            the function's exception, from a JobFailed with the remote traceback; RemoteError, if
            its class can't be rebuilt here.
            NoResult: no readable value exists (or this is no job of a function); the message
                explains why.
            NotFound: the job has no such rank; the message lists the ranks.
            JobFailed, JobCancelled, WaitTimeout: as `wait`.
        """
        value: R = self._outcome(timeout, trust).value(rank)
        return value

    def results(self, timeout: float | None = None, *, trust: bool = False) -> list[R]:
        """The function's values, one per rank, in order of ranks. Raises as `result` does."""
        return self._outcome(timeout, trust).values()

    def _outcome(self, timeout: float | None, trust: bool) -> Outcome:
        """Wait for the end of the job. Raises the exception of its function."""
        from client_lib.functions.results import Outcome

        try:
            info = self.wait(timeout)
        except JobFailed as failed:
            raised = Outcome(self.client, failed.info, trust).failure(failed)
            raise raised from raised.__cause__
        return Outcome(self.client, info, trust)

    def download(
        self,
        folder: str | os.PathLike[str] | None = None,
        pattern: str | None = None,
        *,
        checkpoint: str | int | None = None,
        on_download: downloads.OnDownload | None = None,
    ) -> list[Path]:
        """Fetch the files that ranks left (`outputs`), or a checkpoint, into `folder` and return
        their paths; also while the job runs.

        `folder` None: `./<job name>`. `pattern`: a glob such as `*.pt` or `out/**`; None: all.
        Files that are complete in `folder` are not fetched again, and an interrupted download
        continues; the download of a checkpoint starts anew. `on_download`: called with the
        progress. A job that runs in place leaves its files in its folder: only the files that match
        its `outputs` are fetched, and a warning names the folder.

        `checkpoint`: in place of the outputs the checkpoint of this step, `last`, `best` by
        `checkpoint_params.keep_best`, or `best:METRIC`; with all files of its step. Only where the
        server sees the checkpoints, so not from pods.

        Raises InvalidRequest: something in `folder` is in the way; NotFound: a running job keeps
        replacing a file, or there is no such checkpoint; NotSupported: the server does not see it.
        """
        from client_lib.transport import checkpoint_download, download as downloads

        info = self.info()
        target = Path(info.name if folder is None else folder)
        if checkpoint is not None:
            if pattern is not None:
                raise InvalidRequest("pattern is for outputs: give it without checkpoint")
            return checkpoint_download.download(self.client, info, str(checkpoint), target)
        return downloads.download(self.client, info, target, pattern, on_download)

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
        """The job's own lines without their ends, as they arrive; filters as in `logs`. A progress
        bar is one line.

        Messages of the launcher are left out; `stream="launcher"` selects them.
        """
        from client_lib.log_reading import reader

        params = reader.log_params(
            follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt
        )
        opened = partial(self.client.open_logs, self._submitted)
        return reader.log_lines(opened, params, retry_s=self.client.config.patience_s())

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
        """The lines with their time, worker, rank, stream and so on, at once; filters as in `logs`.

        A line that has no end yet, or is long, comes in several entries; a progress bar comes in
        one entry for each of its states: see `LogEntry.kind`. `log_lines` gives whole lines. All
        streams are included, also `launcher`: messages of the launcher about the job.
        """
        from client_lib.log_reading import reader

        params = reader.log_params(
            follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt
        )
        opened = partial(self.client.open_logs, self._submitted)
        return reader.log_entries(opened, params, retry_s=self.client.config.patience_s())

    def stacks(self) -> JobStacks:
        """The stacks of all processes of the running job: what each rank does now. `str()` groups
        ranks with equal stacks; a process that cannot tell its stacks has a `problem` instead.

        Raises Conflict: the job does not run, or has `observe=False`; NotSupported: by an older
        server.
        """
        return self.client.job_stacks(self._submitted)

    def metrics(
        self, rank: int | Literal["all", "workers"] = 0, *, points: int = 1000
    ) -> JobMetrics:
        """The losses and other metrics that the job has printed so far, and its progress; also of
        an ended job.

        The values are read from the lines of the job (dicts as Trainer prints them, bars of tqdm,
        JSON, `step 40/200 loss=0.12`) and from files of TensorBoard and Lightning.

        `rank`: a number for the curves of that rank and of train.log; "all" for the curves of every
        rank; "workers" for the CPU cores, the memory and the GPUs that each worker used
        (`worker/cpu_cores`), with the worker's number in place of the rank. `points`: largest
        number of values of each curve; the smallest and the largest of each part are kept.

        Raises Conflict: the job has `observe=False`; Forbidden: it is another user's; NotSupported:
        by an older server.
        """
        return self.client.job_metrics(self._submitted, rank=rank, points=points)

    def goodput(self) -> JobGoodput:
        """The use of the job's time: waiting, starting, steps, lag of a slow rank, checkpoints,
        repeated steps.

        Steps are found by the collectives of the ranks, or by the steps that rank 0 prints. Raises
        what `metrics` raises.
        """
        return self.client.job_goodput(self._submitted)

    def checkpoints(self) -> list[JobCheckpoint]:
        """The checkpoints of the job, ordered by step, each with its format, size, attempt, and
        whether it is complete.

        The launcher recognises them by their format in the directory for checkpoints and in the
        working directory: files of PyTorch and safetensors, folders of torch.distributed,
        Hugging Face and DeepSpeed. Raises what `metrics` raises.
        """
        return self.client.job_checkpoints(self._submitted)

    def cancel(self) -> JobInfo:
        """Order the end of the job, whether it waits or runs. The job ends later (`wait`). A final
        job stays as it is."""
        self._last = self.client.cancel_job(self._submitted)
        return self._last

    def delete(self, *, force: bool = False) -> str:
        """Remove the job with its logs; return the server's message. `force`: stop it first if it
        runs.

        Raises Conflict: it is not final and `force` is False.
        """
        return self.client.delete_job(self._submitted, force=force)

    def events(self) -> list[Event]:
        """The job's events, oldest first; every change of its state is one."""
        return self.client.job_events(self._submitted)

    def provenance(self) -> JobProvenance:
        """Return what the job ran: commit and uncommitted changes as the submit saw them, packages,
        hardware, images.

        Raises Forbidden: it belongs to another user; NotSupported: the server's version does not
        record it.
        """
        return self.client.job_provenance(self._submitted)

    def code(self, folder: str | os.PathLike[str]) -> str:
        """Write the code that the job ran into a new folder, and return a sentence about it: the
        snapshot; of a job in place the uncommitted changes as `changes.diff`, with the commit in
        the sentence.

        Raises InvalidRequest: the folder is not empty; NotFound: the code was not kept; and as
        `provenance`.
        """
        from client_lib.transport import code_download

        return code_download.fetch_code(
            self.client, self.info(), self.provenance(), Path(folder).absolute()
        )

    def diff(self, other: Job[Any] | str) -> JobDiff:
        """Compare this job with another: code, arguments, variables, packages, hardware,
        metrics; see `provenance`.
        """
        return self._diff(
            other if isinstance(other, Job) else Job.of(self.client, self.client.job_info(other))
        )

    def _diff(self, second: Job[Any], *, is_brief: bool = False) -> JobDiff:
        """`is_brief`: without metrics, and of large snapshots only their digests."""
        from client_lib.reports import difference
        from client_lib.transport import code_download

        ran = [difference.Ran(job.info(), job.provenance()) for job in (self, second)]
        with suppress(ClientLibError):  # one was submitted with observe=False
            if not is_brief:
                ran = [
                    each._replace(metrics=self.client.job_metrics(each.info.name)) for each in ran
                ]
        packed = [each.info.code for each in ran if isinstance(each.info.code, CodeSnapshot)]
        is_read = not is_brief or sum(code.size for code in packed) <= _COMPARED_MAX
        with suppress(ClientLibError):  # the snapshot of another user: only its digest is compared
            if is_read and len({code.sha256 for code in packed}) == 2:
                texts = [code_download.texts_of_code(self.client, code) for code in packed]
                ran = [each._replace(texts=found) for each, found in zip(ran, texts, strict=True)]
        return difference.compare(*ran)

    def changed_since_success(self) -> str:
        """Say what has changed since the script of a failed job last succeeded, in a
        sentence; "": nothing is known.
        """
        # an older server, the job of another user, no room for its code
        with suppress(ClientLibError, OSError):
            before = self.provenance().last_success if self.state is State.FAILED else None
            if before:
                return (
                    Job.of(self.client, self.client.job_info(before))
                    ._diff(self, is_brief=True)
                    .sentence()
                )
        return ""

    def explain(self) -> str:
        """Explain on some lines why the job waits, runs or failed: the reason, the last events, the
        next step, and what has changed since the script of a failed job last succeeded."""
        why = explanation.explain(self.info(), self.events(), datetime.now(timezone.utc))
        return f"{explanation.as_text(why)}\n{self.changed_since_success()}".rstrip()

    def explanation(self) -> Explanation:
        """The explanation as data, for programs. `docs/explanation.schema.json` describes it."""
        found = explanation.explained(self.info(), self.events(), datetime.now(timezone.utc))
        return replaced(found, changed=self.changed_since_success())

    def __repr__(self) -> str:
        state = f"{self._last.state} when last asked" if self._last else "not submitted"
        return f"Job({functions.short_repr(self.name or self._script)}, {state})"

    def _repr_html_(self) -> str:
        """A table for notebooks: the job as it is now, or as it was if the server does not answer
        at once. It has the last lines of the failing rank, else of the whole job."""
        import html

        from client_lib.reports import display

        if self._last is None:
            return f"<code>{html.escape(repr(self))}</code>"
        try:
            self._last = self.client.job_info(self._last.name, retry_s=0)
        except ClientLibError as problem:
            return display.as_html(self._last, note=problem.message)
        info = self._last
        lines = self._last.failure.last_lines if self._last.failure else []
        if not lines:
            from client_lib.log_reading import reader

            # the wait is short: every display fetches them
            stream = partial(
                self.client.open_logs, info.name, deadline=time.monotonic() + _TABLE_PATIENCE_S
            )
            with suppress(ClientLibError):  # the table is useful without them
                lines = list(
                    reader.log_lines(stream, reader.log_params(tail=_TABLE_LINES), retry_s=0)
                )
        return display.as_html(info, lines=lines[-_TABLE_LINES:])

    @property
    def client(self) -> Api:
        """The job's server; before the submit, the server that would receive the job."""
        return self._client or configured()

    @property
    def _submitted(self) -> str:
        """The job's name. Raises Conflict before the submit."""
        if self._last is None:
            raise Conflict(f"{self!r} is no job of a server yet", hint="call submit() first")
        return self._last.name

    def _print(
        self,
        info: JobInfo,
        params: Mapping[str, str | list[str]],
        file: TextOut | None = None,
        *,
        one_rank: bool = False,
        **look: Any,
    ) -> None:
        """`file` None: print to stdout, or to the cell of a notebook. `one_rank`: lines need no
        number of their rank. `look`: see LogOutput. Notices about fields that the server interprets
        differently are printed once."""
        from client_lib.log_reading.cell import in_cell_or_terminal
        from client_lib.log_reading.text_output import LogOutput, several_ranks, waits_for

        spec = info.spec.model_dump()
        prefix = not one_rank and several_ranks(spec)
        silence = waits_for(spec, info.started_at) if params.keys() == {"follow"} else ""
        new = [notice for notice in info.notices if notice not in self._shown_notices]
        self._shown_notices.update(new)
        with in_cell_or_terminal(info, file) as cell:
            out = cell or (sys.stdout if file is None else file)
            retry_s = self.client.config.patience_s()
            output = LogOutput(
                info.name, out, prefix, retry_s=retry_s, beside=cell, waits_for=silence, **look
            )
            for notice in new:
                output.say(f"{notice}\n")
            output.write(partial(self.client.open_logs, info.name), params)
            if cell:
                cell.end(self.info())


def submitted(job: Job[T]) -> Job[T]:
    """Submit the job and return it. Unlike `Job.submit` it always raises errors."""
    job._accepted(None, None, check=True)
    return job


def with_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec with the names of the jobs and groups in `after` and `checkpoint_from`.
    Raises Conflict: a job is not submitted yet."""

    def name_of(entry: object) -> Any:
        return entry._submitted if isinstance(entry, Job) else getattr(entry, "name", entry)

    named = dict(fields)
    if named.get("checkpoint_from") is not None:
        named["checkpoint_from"] = name_of(named["checkpoint_from"])
    if (after := named.get("after")) is not None:
        is_one = isinstance(after, str) or hasattr(after, "name") or not isinstance(after, Iterable)
        named["after"] = [name_of(entry) for entry in ([after] if is_one else after)]
    return named
