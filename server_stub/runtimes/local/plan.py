"""From an attempt and what it was granted to the orders of its launchers. Pure: no file, no clock, no environment.

`render` shows the same orders without what must not be seen, and before anything is chosen.
"""

from __future__ import annotations

import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.spec.job import MASK, JobSpec
from client_lib.spec.wire import Manifest
from client_lib.worker import function_runner
from client_lib.worker.plan import WorkerPlan
from server_stub.outputs import folder
from server_stub.runtimes import CHECKPOINTS, Attempt, orders, outputs
from server_stub.runtimes.local import conda, warm_rules
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.local.needs import VISIBLE, Needs
from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.scheduling import Grant

MASTER_ADDR, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"


@dataclass(frozen=True)
class Setting:
    """What is chosen for one attempt when it starts."""

    grant: Grant
    master_port: int
    conda_prefix: Path | None
    """Of `spec.conda_env`; None: none was asked for."""


def worker_plans(
    attempt: Attempt, needs: Needs, setting: Setting, machine: Machine, options: LocalOptions
) -> list[WorkerPlan]:
    """One plan per worker, worker 0 first. `len(result) == attempt.spec.n_workers`."""
    first = _first_plan(attempt, needs, setting, machine, options)
    return [
        first._replace(
            worker=worker,
            gpus=[str(index) for index in gpus],
            processes_per_worker=needs.processes_with(len(gpus)),
            record_imports=first.record_imports and worker == 0,
            log_file=first.log_file if worker == 0 or first.snapshot else None,  # in place all write to one file
            outputs=(kept := outputs.globs(attempt, worker)),
            outputs_to=str(folder(attempt.job_dir, attempt.number, worker)) if kept else None,
        )
        for worker, gpus in enumerate(setting.grant)
    ]


def _first_plan(
    attempt: Attempt, needs: Needs, setting: Setting, machine: Machine, options: LocalOptions
) -> WorkerPlan:
    spec = attempt.spec
    given = spec.environment()
    environment = _environment(attempt, setting.conda_prefix, machine, options)
    argument, auto = orders.local_rank(spec)
    return WorkerPlan(
        job=attempt.job_name,
        owner=attempt.owner,
        attempt=attempt.number,
        worker=0,
        n_workers=spec.n_workers,
        processes_per_worker=1,
        type=str(spec.type),
        command=_command(attempt),
        python=_python(attempt, setting.conda_prefix, options),
        environment=environment,
        user_variables=sorted((given.keys() | attempt.secret_values.keys()) - {VISIBLE}),
        working_dir=orders.working_dir(attempt, "/"),
        master_addr=given.get(MASTER_ADDR, "127.0.0.1"),
        master_port=setting.master_port,
        gpus=[],
        cores=needs.cores,
        checkpoint_dir=str(checkpoint_dir(attempt)),
        snapshot=str(attempt.snapshot) if attempt.snapshot else None,
        log_file=spec.log_file,
        local_rank_argument=argument,
        local_rank_auto=auto,
        elastic_min_workers=spec.elastic_min_workers if isinstance(spec.elastic_min_workers, int) else None,
        elastic_max_restarts=5 if spec.elastic_max_restarts is None else spec.elastic_max_restarts,
        rank_runner=options.rank_runner and environment.get(orders.RANK_RUNNER, "1") != "0",
        record_imports=warm_rules.wanted(spec, attempt.function is not None, default=options.warm),
        grace_s=spec.grace_s,
        requirements=spec.requirements or [],
        requirements_python=_interpreter(attempt, setting.conda_prefix, options) if spec.requirements else None,
        environments_dir=str(options.data_dir.absolute() / "environments") if spec.requirements else None,
        environments_limit_bytes=options.environments_limit_bytes,
        outputs_every_s=options.outputs_every_s,
        outputs_limit_bytes=options.outputs_limit_bytes,
        log_limit_bytes=orders.log_share(spec, options.log_limit_bytes),
        segment_bytes=options.segment_bytes,
    )


def own_port(spec: JobSpec) -> int | None:
    """The MASTER_PORT that the user gave, or None.

    Raises InvalidRequest: it is no port.
    """
    text = spec.variable(MASTER_PORT)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise InvalidRequest(f"env_variables: MASTER_PORT={text!r} is no port (1 to 65535)")
    return int(text)


def checkpoint_dir(attempt: Attempt) -> Path:
    """Of the whole job, the same in each attempt."""
    if attempt.spec.checkpoint_dir is None:
        return attempt.job_dir / CHECKPOINTS
    return Path(orders.from_caller(attempt, attempt.spec.checkpoint_dir))


def _environment(
    attempt: Attempt, conda_prefix: Path | None, machine: Machine, options: LocalOptions
) -> dict[str, str]:
    """The submitter's, as with torchrun, then the user's own words. The launcher takes out what is stale."""
    inherited = {"GLOO_SOCKET_IFNAME": machine.loopback}  # else gloo asks DNS for this host's name, and may hang on it
    inherited |= attempt.submitter.environment
    inherited["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the order in which nvidia-smi counts, and so our indices
    if conda_prefix is not None:
        inherited = conda.activated(conda_prefix, inherited)
    given = {k: v for k, v in attempt.spec.environment().items() if k != VISIBLE}  # it bounds what is granted
    return inherited | given | attempt.secret_values | _function(attempt, options)


def _function(attempt: Attempt, options: LocalOptions) -> dict[str, str]:
    if attempt.function is None:
        return {}
    return {
        function_runner.PAYLOAD: str(attempt.function),
        function_runner.LIMIT: str(options.max_result_bytes),
    }


def _command(attempt: Attempt) -> list[str]:
    if attempt.function is not None:
        return [os.path.abspath(function_runner.__file__)]
    return orders.command(attempt)


def _python(attempt: Attempt, conda_prefix: Path | None, options: LocalOptions) -> str | None:
    if attempt.spec.python_script is None and attempt.function is None:
        return None
    return _interpreter(attempt, conda_prefix, options)


def _interpreter(attempt: Attempt, conda_prefix: Path | None, options: LocalOptions) -> str:
    if conda_prefix is not None:
        return str(conda_prefix / "bin" / "python")
    return attempt.submitter.python or options.server_python


def manifest(plans: Sequence[WorkerPlan], attempt: Attempt, needs: Needs) -> Manifest:
    """The plans as they are shown: no value of a secret, nothing of the submitter's own environment."""
    shown = attempt.spec.masked().environment()
    return Manifest(runtime="local", objects=[_shown(plan, attempt, needs, shown) for plan in plans])


def _shown(plan: WorkerPlan, attempt: Attempt, needs: Needs, masked: dict[str, str]) -> dict[str, Any]:
    secret = dict.fromkeys(attempt.secret_values, MASK)
    inherited = attempt.submitter.environment
    ours = {k: v for k, v in plan.environment.items() if k not in inherited}
    shown = plan._asdict() | {
        "environment": dict(sorted((ours | masked | secret).items())),
        "inherited_variables": f"{len(inherited)} of the submitter's own environment, not shown",
    }
    if needs.wants_gpus:
        shown["gpus"] = f"{len(plan.gpus or ())} of GPU {', '.join(map(str, needs.allowed))}, chosen at the start"
    if own_port(attempt.spec) is None:
        shown["master_port"] = "a free one, chosen at the start"
    return shown
