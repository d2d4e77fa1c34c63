"""The parts of a worker's plan that are the same for all runtimes:
command, folders, options. Pure.
"""

import os.path
from typing import NamedTuple

from client_lib.launcher_protocol.output_globs import ALL
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.metric_names import wanted
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.wire import LastGood
from server_stub.runtimes import Attempt, fields
from server_stub.runtimes.verdict import elastic_bounds

RANK_RUNNER = "CLIENT_LIB_RANK_RUNNER"
"""Environment variable of a job; with 0 its ranks start as plain `python script`."""


def worker_plan(
    attempt: Attempt, environment: dict[str, str], function_runner: str, default_dir: str
) -> WorkerPlan:
    """The part of a worker's plan that does not depend on the runtime. The runtime sets the other
    fields: the worker's number, the interpreter, the folders, the address of the master, the
    resources and the limits. `environment`: of the ranks. `function_runner`: path of the script
    that calls a function. `default_dir`: see `working_dir`."""
    spec = attempt.spec
    bounds = elastic_bounds(attempt.spec)
    option = local_rank(spec)
    return WorkerPlan(
        job=attempt.job_name,
        attempt=attempt.number,
        worker=-1,
        n_workers=spec.n_workers,
        processes_per_worker=1,
        type=str(spec.type),
        command=[function_runner] if attempt.function is not None else command(attempt),
        python=None,
        environment=environment,
        user_variables=sorted(spec.environment().keys() | attempt.secret_values.keys()),
        working_dir=working_dir(attempt, default_dir),
        master_addr="",
        master_port=0,
        gpus=[],
        cores=1,
        checkpoint_dir="",
        moves_damaged=_moves_damaged(spec),
        keep_checkpoints=spec.checkpoint_params.keep if spec.checkpoint_params else None,
        keep_best=keep_best(spec),
        from_step=spec.checkpoint_params.from_step if spec.checkpoint_params else None,
        last_good=_last_good(attempt.last_good),
        log_file=spec.log_file,
        local_rank_argument=option.argument,
        local_rank_auto=option.auto,
        elastic_min_workers=None if bounds is None else bounds.least,
        elastic_max_restarts=5 if bounds is None else bounds.returns,
        max_restarts=spec.max_retry or 0,
        rank_runner=environment.get(RANK_RUNNER, "1") != "0",
        observe=spec.observe,
        metrics=spec.metrics,
        grace_s=spec.grace_s,
        setup=spec.setup,
        setup_limit_s=spec.stop_timer * 60.0 if spec.stop_timer else None,
        preflight=fields.has_preflight(spec),
        inputs=[str(number) for number in range(len(spec.after))],
        requirements=spec.requirements or [],
        secrets=sorted(attempt.secret_values),
    )


def _last_good(point: LastGood | None) -> list[float | None] | None:
    return None if point is None else [point.step, point.time.timestamp()]


def keep_best(spec: JobSpec) -> str | None:
    """The metric of the best checkpoint with the direction that its name tells."""
    if spec.checkpoint_params is None or spec.checkpoint_params.keep_best is None:
        return None
    metric, is_larger = wanted(spec.checkpoint_params.keep_best)
    return f"{'max' if is_larger else 'min'}:{metric}"


def _moves_damaged(spec: JobSpec) -> bool:
    """True if a damaged newest checkpoint is moved aside."""
    wanted = spec.checkpoint_params.damaged if spec.checkpoint_params else None
    return wanted == "aside" or (wanted is None and spec.checkpoint_dir is None)


def runs_python(attempt: Attempt) -> bool:
    """True if the job starts a Python script or calls a function; False: it starts a command."""
    return attempt.spec.python_script is not None or attempt.function is not None


def from_caller(attempt: Attempt, path: str) -> str:
    """Absolute path; relative ones start at the submitter's working directory,
    `~/` is the submitter's home.
    """
    if path.startswith("~/") and "HOME" in attempt.submitter.environment:
        path = attempt.submitter.environment["HOME"] + path[1:]
    return os.path.normpath(os.path.join(attempt.submitter.working_dir or "/", path))


def command(attempt: Attempt) -> list[str]:
    """Words of the script or command; the path of a script is absolute, or relative
    to the root of a snapshot.
    """
    words = attempt.spec.command()
    if attempt.spec.python_script is None:
        return words
    if isinstance(attempt.code, CodeSnapshot):
        return [attempt.code.script or words[0], *words[1:]]
    return [from_caller(attempt, words[0]), *words[1:]]


def working_dir(attempt: Attempt, default: str) -> str:
    """Working directory of the ranks. In a snapshot: the directory that the client chose. In place:
    the directory in the spec, else the submitter's, else the script's folder, else `default`."""
    if isinstance(attempt.code, CodeSnapshot):
        return attempt.code.working_dir
    if attempt.spec.working_dir is not None:
        return from_caller(attempt, attempt.spec.working_dir)
    if attempt.submitter.working_dir is not None:
        return attempt.submitter.working_dir
    script = attempt.spec.python_script
    return os.path.dirname(script) if script else default


def output_globs(attempt: Attempt, worker: int) -> list[str]:
    """The globs for `client_lib.launcher_protocol.output_globs`; []: nothing is kept. In place all
    workers share their files, and the files stay there: worker 0 alone keeps the files that the job
    names."""
    snapshot = isinstance(attempt.code, CodeSnapshot)
    if attempt.spec.outputs is None:
        return [ALL] if snapshot else []
    return list(attempt.spec.outputs) if snapshot or worker == 0 else []


class LocalRank(NamedTuple):
    """Fields of a plan about the option for the local rank."""

    argument: str | None
    """`local_rank_argument`: the option; None: see `auto`."""
    auto: bool
    """`local_rank_auto`: the script is searched for the option."""


def local_rank(spec: JobSpec) -> LocalRank:
    """Decide about the option for the local rank. Scripts of type `pytorch` always get the option,
    as from torch.distributed.launch, even if they declare none. Ranks of an elastic job never get
    it: their agent starts all of them with one command line."""
    if spec.pytorch_use_env or spec.type is JobType.PYTORCH_ELASTIC:
        return LocalRank(None, auto=False)
    if spec.pytorch_use_env is None and spec.type is not JobType.PYTORCH:
        return LocalRank(None, auto=True)
    return LocalRank("--local_rank", auto=True)


def log_share(attempt: Attempt, limit_bytes: int) -> int:
    """Log limit of one worker in this attempt, in bytes, if the whole job has `limit_bytes`.

    Attempts that the spec allows in any case share one half of the limit. The other half is for
    attempts that are added after the loss of a machine, if the spec allows such attempts. Where
    retries may be counted from 0 again, both kinds of attempts share one half, and the other half
    is for any number of further attempts, by the series 1/n(n+1).
    """
    spec = attempt.spec
    planned = 1 + (spec.max_retry or 0)
    added = spec.max_infrastructure_retry
    if spec.retry_reset_steps:
        limit_bytes //= 2
    more = attempt.number - planned - added
    if spec.retry_reset_steps and more > 0:
        shares = more * (more + 1)
    elif not added:
        shares = planned
    elif attempt.number <= planned:
        shares = 2 * planned
    else:
        shares = 2 * added
    return max(1, limit_bytes // (spec.n_workers * shares))
