"""Makes the plans of an attempt's workers from the attempt and its granted resources. Pure."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.spec.job import JobSpec
from client_lib.spec.secrets import MASK
from client_lib.spec.wire import Manifest
from client_lib.worker import function_runner
from server_stub.files.job_dirs import inputs_dir
from server_stub.files.outputs import folder
from server_stub.runtimes import CHECKPOINTS, Attempt, plan as common
from server_stub.runtimes.local import LocalOptions
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.local.scheduling import VISIBLE, Grant, Needs

MASTER_ADDR = "MASTER_ADDR"
MASTER_PORT = "MASTER_PORT"


def worker_plans(
    attempt: Attempt,
    needs: Needs,
    grant: Grant,
    master_port: int,
    machine: Machine,
    options: LocalOptions,
    *,
    conda_prefix: Path | None = None,
    account: Account | None = None,
) -> list[WorkerPlan]:
    """One plan per worker, worker 0 first. `account`: runs the job; None: the server's account."""
    spec = attempt.spec
    settings = options.settings
    interpreter = (
        str(conda_prefix / "bin" / "python")
        if conda_prefix
        else attempt.submitter.python or options.python
    )
    environments = settings.data_dir.absolute() / "environments"
    if account is not None:  # no account runs what another one has installed
        environments /= str(account.uid)
    environment = _environment(attempt, conda_prefix, account, machine, options)
    plan = common.worker_plan(attempt, environment, os.path.abspath(function_runner.__file__), "/")
    plan = plan._replace(
        owner=attempt.owner,
        python=interpreter if common.runs_python(attempt) else None,
        user_variables=[name for name in plan.user_variables if name != VISIBLE],
        master_addr=spec.environment().get(MASTER_ADDR, "127.0.0.1"),
        master_port=master_port,
        cores=needs.cores,
        checkpoint_dir=str(checkpoint_dir(attempt)),
        snapshot=str(attempt.snapshot) if attempt.snapshot else None,
        keep_free_bytes=settings.min_free_bytes,
        no_new_privileges=account is not None,
        requirements_python=interpreter if spec.requirements else None,
        inputs=[str(inputs_dir(attempt.job_dir, attempt.number) / each) for each in plan.inputs],
        environments_dir=str(environments) if spec.requirements else None,
        outputs_limit_bytes=settings.outputs_limit_bytes,
        log_limit_bytes=common.log_share(attempt, settings.log_limit_bytes),
    )
    warm = wants_warm(spec, attempt.function is not None, default=options.warm)
    return [
        plan._replace(
            worker=worker,
            gpus=[str(index) for index in gpus],
            processes_per_worker=needs.processes_with(len(gpus)),
            record_imports=warm and worker == 0,
            log_file=plan.log_file
            if worker == 0 or plan.snapshot
            else None,  # in place all share one file
            outputs=(kept := common.output_globs(attempt, worker)),
            outputs_to=str(folder(attempt.job_dir, attempt.number, worker)) if kept else None,
        )
        for worker, gpus in enumerate(grant)
    ]


def own_port(spec: JobSpec) -> int | None:
    """The MASTER_PORT that the user gave, or None. Raises InvalidRequest: it is no port."""
    text = spec.environment().get(MASTER_PORT)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise InvalidRequest(f"env_variables: MASTER_PORT={text[:50]!r} is no port (1 to 65535)")
    return int(text)


def wants_warm(spec: JobSpec, is_function: bool, *, default: bool) -> bool:
    """The job may have warm ranks. `default`: the server's setting; without it no job may."""
    return default and spec.warm is not False and never_warm(spec, is_function) is None


def never_warm(spec: JobSpec, is_function: bool) -> str | None:
    """The reason why a job of this kind cannot have warm ranks; None: it can."""
    if not is_function and spec.python_script is None:
        return "the command is no Python script"
    if spec.conda_env is not None:
        return f"conda_env={spec.conda_env!r} has an interpreter of its own"
    if spec.requirements:
        return "requirements=[...] makes an environment of its own"
    return None


def checkpoint_dir(attempt: Attempt) -> Path:
    """The checkpoint directory of the job, the same in each attempt."""
    if attempt.spec.checkpoint_dir is None:
        return attempt.job_dir / CHECKPOINTS
    return Path(common.from_caller(attempt, attempt.spec.checkpoint_dir))


def _environment(
    attempt: Attempt,
    conda_prefix: Path | None,
    account: Account | None,
    machine: Machine,
    options: LocalOptions,
) -> dict[str, str]:
    """The submitter's environment, as with torchrun, then the spec's. The
    launcher removes stale variables.
    """
    # otherwise gloo resolves this host's name, and may hang
    inherited = {"GLOO_SOCKET_IFNAME": machine.loopback}
    inherited |= attempt.submitter.environment
    inherited["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # nvidia-smi's numbering, which our indices use
    if account is not None:
        inherited |= account.environment
    if conda_prefix is not None:  # as after its activation
        inherited = {
            key: value
            for key, value in inherited.items()
            if key not in ("VIRTUAL_ENV", "PYTHONHOME")
        }
        inherited["PATH"] = os.pathsep.join(
            filter(None, [str(conda_prefix / "bin"), inherited.get("PATH", "")])
        )
        inherited |= {"CONDA_PREFIX": str(conda_prefix), "CONDA_DEFAULT_ENV": conda_prefix.name}
    # applied when GPUs are granted
    given = {k: v for k, v in attempt.spec.environment().items() if k != VISIBLE}
    payload = attempt.function
    limit = options.settings.max_snapshot_bytes
    function = (
        {function_runner.PAYLOAD: str(payload), function_runner.LIMIT: str(limit)}
        if payload
        else {}
    )
    return inherited | given | attempt.secret_values | function


def manifest(plans: Sequence[WorkerPlan], attempt: Attempt, needs: Needs) -> Manifest:
    """The plans without values of secrets, without the submitter's own environment, and with
    placeholders for values that are chosen at the start."""
    inherited = attempt.submitter.environment
    masked = attempt.spec.masked().environment() | dict.fromkeys(attempt.secret_values, MASK)
    objects = []
    for plan in plans:
        ours = {k: v for k, v in plan.environment.items() if k not in inherited}
        shown = plan._asdict() | {
            "environment": dict(sorted((ours | masked).items())),
            "inherited_variables": (
                f"{len(inherited)} of the submitter's own environment, not shown"
            ),
        }
        if needs.wants_gpus:
            shown["gpus"] = (
                f"{len(plan.gpus or ())} of GPU {', '.join(map(str, needs.allowed))}, chosen at "
                "the start"
            )
        if own_port(attempt.spec) is None:
            shown["master_port"] = "a free one, chosen at the start"
        objects.append(shown)
    return Manifest(runtime="local", objects=objects)
