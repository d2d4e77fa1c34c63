"""Renders the plan of an attempt's workers, which its agents read from a ConfigMap. Pure.

The plan is the same for all workers; each agent (client_lib.worker.pod) adds its worker number, the address of the
master and the folder of the code.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeSnapshot
from client_lib.worker import function_runner
from client_lib.worker.plan import WorkerPlan
from server_stub.runtimes import Attempt
from server_stub.runtimes import plan as common
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.catalogue.needs import Needs
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import storage

PROTOCOL = 1
GATE_PORT = 23455
"""Port of worker 0 for a gang that can't reach the server; the operator's MASTER_PORT is the next one."""
FUNCTION_RUNNER = "function_runner.py"
"""Placeholder for the file of the function runner, whose path the agent knows."""


def worker_plan(attempt: Attempt, needs: Needs, cluster: ClusterOptions) -> WorkerPlan:
    """The plan of any worker, without `worker`, the address of the master and `snapshot`, which the agent adds.

    In place only worker 0 tails the log file and keeps outputs: the agents of the others remove these fields.
    """
    spec, catalogue = attempt.spec, cluster.catalogue
    environment = plain_environment(spec) | _function(attempt, cluster)
    return common.worker_plan(attempt, environment, FUNCTION_RUNNER, storage.HOME)._replace(
        processes_per_worker=needs.processes,
        python=_python(attempt, catalogue),
        gpus=None if needs.gpus else [],  # the device plugin shows a container its own
        cores=needs.cores,
        checkpoint_dir=storage.checkpoint_dir(attempt, catalogue),
        checkpoints_from=storage.checkpoints_from(attempt, catalogue),
        outputs=common.output_globs(attempt, worker=0) if cluster.settings.worker_server_url is not None else [],
        outputs_limit_bytes=cluster.settings.outputs_limit_bytes,
        observe=spec.observe,
        log_limit_bytes=common.log_share(attempt, cluster.settings.log_limit_bytes),
    )


def order(attempt: Attempt, needs: Needs, cluster: ClusterOptions) -> dict[str, Any]:
    """Content of plan.json: the protocol and the fields of the plan that differ from their defaults."""
    full, usual = worker_plan(attempt, needs, cluster)._asdict(), WorkerPlan._field_defaults
    return {key: value for key, value in full.items() if key == "protocol" or key not in usual or value != usual[key]}


def for_agent(attempt: Attempt, cluster: ClusterOptions) -> dict[str, Any]:
    """Content of pod.json: what an agent needs in addition to the plan."""
    snapshot = attempt.code.sha256 if isinstance(attempt.code, CodeSnapshot) else None
    return {
        "protocol": PROTOCOL,
        "server_url": cluster.settings.worker_server_url,
        "job": attempt.job_name,
        "job_id": attempt.job_id,
        "attempt": attempt.number,
        "n_workers": attempt.spec.n_workers,
        "code": {"mode": attempt.code.mode, "sha256": snapshot},
        "function": attempt.function is not None,
        "conda_prefix": conda_prefix(attempt.spec, cluster.catalogue),
        "spool_bytes": storage.SPOOL_BYTES,
        "gang_timeout_s": cluster.settings.gang_timeout_s,
        "gate_port": GATE_PORT,
    }


def identity(attempt: Attempt) -> str:
    """Hash that distinguishes the objects of this attempt from others of the same name. An upgrade of the server, which
    may render the objects differently, does not change it."""
    spec = attempt.spec.model_dump(mode="json", exclude_defaults=True)
    code = attempt.code.model_dump(mode="json", exclude={"proof"})
    content = json.dumps([attempt.job_id, attempt.number, spec, code], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def plain_environment(spec: JobSpec) -> dict[str, str]:
    """The user's variables that are no secrets."""
    given, shown = spec.environment(), spec.masked().environment()
    return {name: value for name, value in given.items() if shown[name] == value}


def secret_environment(attempt: Attempt) -> dict[str, str]:
    """The user's variables that only the job may read: its secrets, and those with the name of a secret."""
    given, plain = attempt.spec.environment(), plain_environment(attempt.spec)
    return {name: value for name, value in given.items() if name not in plain} | attempt.secret_values


def conda_prefix(spec: JobSpec, catalogue: ClusterCatalogue) -> str | None:
    """Path of the job's conda environment in the image, which the job gives by name or by path."""
    if spec.conda_env is None:
        return None
    root = PurePosixPath(catalogue.defaults.conda_root)
    if spec.conda_env in ("base", "root"):
        return str(root)
    return str(root / "envs" / spec.conda_env)  # an absolute path stays what it is


def _function(attempt: Attempt, cluster: ClusterOptions) -> dict[str, str]:
    return {function_runner.LIMIT: str(cluster.settings.max_snapshot_bytes)} if attempt.function is not None else {}


def _python(attempt: Attempt, catalogue: ClusterCatalogue) -> str | None:
    """Interpreter in the image, as the submitter's is on another machine; None: the job starts a command."""
    if not common.runs_python(attempt):
        return None
    prefix = conda_prefix(attempt.spec, catalogue)
    return "python3" if prefix is None else f"{prefix}/bin/python"
