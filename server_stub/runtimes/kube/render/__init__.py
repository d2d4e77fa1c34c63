"""Renders the objects of an attempt on a cluster. Pure: no client, clock, random number or
environment variable.

The same arguments give the same objects, so a submit that is repeated after a crash creates nothing
twice, and `render` shows exactly what a submit would create. The plan is the same for all workers;
each agent (client_lib.worker.pod) adds its worker number, the address of the master and the folder
of the code.
"""

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath

from client_lib.errors import TooLarge
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.secrets import MASK
from client_lib.worker import function_runner
from server_stub.runtimes import Attempt, plan as common
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, Needs
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import network_policy, pod, storage
from server_stub.runtimes.kube.workload import Object, WorkloadPlan

CODE_MAX = 700 * 2**10
"""Largest code in a ConfigMap, in bytes: it holds 1 MiB, and base64 adds a third."""
PROTOCOL = 1
GATE_PORT = 23455
"""Port of worker 0 for a gang that can't reach the server; the operator's
MASTER_PORT is the next one.
"""
FUNCTION_RUNNER = "function_runner.py"
"""Placeholder for the file of the function runner, whose path the agent knows."""


@dataclass(frozen=True)
class Objects:
    launcher: Object
    """Immutable ConfigMap with the launcher. Its name has the hash of the launcher, and jobs with
    equal launchers share it.
    """
    own: Mapping[str, Object] = field(repr=False)
    """Objects that are deleted with the workload: `plan` (plan.json and pod.json), `secret` (the
    workers' token and the server's CA), `environment` (a Secret with variables of the ranks, if
    there are any), `code` (if pods can't fetch it from the server) and `policy` (if their network
    is restricted)."""
    base: Object | None
    """Object that the workload is based on and shares with others, such as a
    TrainingRuntime; None: there is none.
    """
    workload: Object
    """The workload, such as a PyTorchJob. It owns all others; the launcher is owned by
    every workload that uses it.
    """

    def all(self) -> list[Object]:
        """All objects, in the order of `kubectl apply`: no pod waits for a missing object."""
        return [
            self.launcher,
            *([self.base] if self.base is not None else []),
            *self.own.values(),
            self.workload,
        ]


def _of_team(cluster: ClusterOptions, attempt: Attempt) -> ClusterOptions:
    """The options with the account and the Secrets for registries of the owner's team."""
    catalogue = cluster.catalogue
    account = attempt.service_account or catalogue.defaults.service_account
    secrets = dict.fromkeys([*catalogue.images.pull_secrets, *attempt.pull_secrets])
    of_team = replaced(
        catalogue,
        defaults=replaced(catalogue.defaults, service_account=account),
        images=replaced(catalogue.images, pull_secrets=list(secrets)),
    )
    return replace(cluster, catalogue=of_team)


def payload_files(attempt: Attempt, cluster: ClusterOptions) -> dict[str, Path]:
    """The files of the code, by their names in a ConfigMap, if pods can't reach
    the server to fetch them.
    """
    files = {"snapshot.tar.gz": attempt.snapshot, "function": attempt.function}
    reached = cluster.settings.worker_server_url is not None
    return {} if reached else {name: path for name, path in files.items() if path is not None}


def render(
    attempt: Attempt,
    cluster: ClusterOptions,
    worker_token: str,
    payload: Mapping[str, bytes] | None = None,
    name: str | None = None,
) -> Objects:
    """Render the objects of one attempt.

    `payload` has the contents of `payload_files`; without it their ConfigMap is empty. `name`: the
    name of the workload; None: the first choice.

    Raises InvalidRequest, NotSupported, NeverFits as `check.check`; TooLarge: the code is too large
    for a ConfigMap.
    """
    spec = attempt.spec
    cluster = _of_team(cluster, attempt)
    name_max = cluster.kind.name_max
    need = cluster.catalogue.needs(spec)
    own_name = name or names.object_name(attempt.job_name, attempt.number, longest=name_max)
    labels = names.labels(attempt.job_id, attempt.number, attempt.job_name)
    keys = cluster.catalogue.defaults.job_labels
    costs = names.costs(attempt.owner, attempt.team, spec.labels, keys)
    mounted_name = names.mounted_name(own_name, attempt.job_id)

    def metadata(name: str) -> Object:
        return {"name": name, "namespace": cluster.namespace, "labels": {**costs, **labels}}

    def immutable(kind: str, metadata: Object, **content: object) -> Object:
        return {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": metadata,
            "immutable": True,
            **content,
        }

    shared_name = names.launcher_name(cluster.launcher, attempt.job_id)
    shared_labels = {names.MANAGED_BY: names.OURS}
    shared = {"name": shared_name, "namespace": cluster.namespace, "labels": shared_labels}
    launcher = immutable("ConfigMap", shared, binaryData=_encoded({"worker.pyz": cluster.launcher}))
    agents = {"token": worker_token} | (
        {"ca.crt": cluster.server_ca} if cluster.server_ca is not None else {}
    )
    own = {
        "plan": immutable(
            "ConfigMap",
            metadata(mounted_name + names.PLAN),
            data=_plan_files(attempt, need, cluster),
        ),
        "secret": immutable(
            "Secret", metadata(mounted_name + names.SECRET), type="Opaque", stringData=agents
        ),
    }
    _, variables = environment(attempt)
    if variables:
        own["environment"] = immutable(
            "Secret",
            metadata(mounted_name + names.ENVIRONMENT),
            type="Opaque",
            stringData=variables,
        )
    if payload_files(attempt, cluster):
        if (size := sum(map(len, (payload or {}).values()))) > CODE_MAX:
            raise TooLarge(
                f"the code has {size / 2**10:.0f} KiB; where pods don't reach the server, at most "
                f"{CODE_MAX // 2**10} KiB travel to them",
                hint="the server's setting worker_server_url says how pods reach it; or put the "
                "code on a volume",
            )
        own["code"] = immutable(
            "ConfigMap", metadata(mounted_name + names.CODE), binaryData=_encoded(payload or {})
        )
    if (rules := network_policy.rules(spec, labels, cluster)) is not None:
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(own_name + names.POLICY),
        }
        own["policy"] = {**policy, "spec": rules}

    gang = cluster.catalogue.gang.scheduler
    of_workload = metadata(own_name)
    if spec.queue_name is not None and gang != "volcano":  # whose queue it is then
        of_workload["labels"][names.QUEUE] = spec.queue_name
    folders = storage.own_folders(need, shared_name, mounted_name, has_code="code" in own)
    folders += storage.asked_folders(attempt, cluster.catalogue)
    secret = mounted_name + names.ENVIRONMENT if variables else None
    template = partial(pod.template, spec, need, cluster, {**costs, **labels}, folders, secret)
    plan = WorkloadPlan(
        own_name, of_workload, spec, need.processes, template, gang, tuple(variables)
    )
    workload, base = cluster.kind.manifest(plan)
    objects = {"launcher": launcher, "own": own, "base": base, "workload": workload}
    return Objects(**json.loads(json.dumps(objects)))  # a copy, in which no two parts share a value


def masked(objects: Objects) -> list[Object]:
    """All objects as they may be shown: without the values of Secrets, with
    digests instead of binary data.
    """
    shown = []
    for each in objects.all():
        if each["kind"] == "Secret":
            each = each | {"stringData": dict.fromkeys(each["stringData"], MASK)}
        elif "binaryData" in each:
            contents = {name: b64decode(text) for name, text in each["binaryData"].items()}
            digests = {
                name: hashlib.sha256(content).hexdigest() for name, content in contents.items()
            }
            texts = {
                name: f"{len(contents[name])} bytes, sha256 {digest}"
                for name, digest in digests.items()
            }
            each = each | {"binaryData": texts}
        shown.append(each)
    return shown


def environment(attempt: Attempt) -> tuple[dict[str, str], dict[str, str]]:
    """Split the user's variables: variables that everybody may read, and variables that only the
    job may read (its secrets, and variables with the name of a secret)."""
    given = attempt.spec.environment()
    shown = attempt.spec.masked().environment()
    plain = {name: value for name, value in given.items() if shown[name] == value}
    return plain, {
        name: value for name, value in given.items() if name not in plain
    } | attempt.secret_values


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: b64encode(content).decode() for name, content in files.items()}


# --- the plan of the workers


def _plan_files(attempt: Attempt, needs: Needs, cluster: ClusterOptions) -> dict[str, str]:
    """plan.json, which has the fields of the plan that differ from their defaults, and pod.json
    with what an agent needs in addition to the plan."""
    full = worker_plan(attempt, needs, cluster)._asdict()
    usual = WorkerPlan._field_defaults
    plan = {
        key: value
        for key, value in full.items()
        if key == "protocol" or key not in usual or value != usual[key]
    }
    digest = attempt.code.sha256 if isinstance(attempt.code, CodeSnapshot) else None
    agent = {
        "protocol": PROTOCOL,
        "server_url": cluster.settings.worker_server_url,
        "job": attempt.job_name,
        "job_id": attempt.job_id,
        "attempt": attempt.number,
        "n_workers": attempt.spec.n_workers,
        "code": {"mode": attempt.code.mode, "sha256": digest},
        "function": attempt.function is not None,
        "conda_prefix": _conda_prefix(attempt.spec, cluster.catalogue),
        "spool_bytes": storage.SPOOL_BYTES,
        "gang_timeout_s": cluster.catalogue.gang.timeout_s,
        "gate_port": GATE_PORT,
    }
    return {"plan.json": json.dumps(plan, indent=2), "pod.json": json.dumps(agent, indent=2)}


def worker_plan(attempt: Attempt, needs: Needs, cluster: ClusterOptions) -> WorkerPlan:
    """The plan of any worker, without `worker`, the address of the master and `snapshot`, which the
    agent adds.

    In place only worker 0 tails the log file and keeps outputs: the agents of the others remove
    these fields.
    """
    spec = attempt.spec
    catalogue = cluster.catalogue
    variables, _ = environment(attempt)
    if attempt.function is not None:
        variables[function_runner.LIMIT] = str(cluster.settings.max_snapshot_bytes)
    prefix = _conda_prefix(spec, catalogue)
    # in the image: the submitter's is elsewhere
    python = "python3" if prefix is None else f"{prefix}/bin/python"
    return common.worker_plan(attempt, variables, FUNCTION_RUNNER, storage.HOME)._replace(
        processes_per_worker=needs.processes,
        python=python if common.runs_python(attempt) else None,
        gpus=None if needs.gpus else [],  # the device plugin shows a container its own
        cores=needs.cores,
        checkpoint_dir=storage.checkpoint_dir(attempt, catalogue),
        checkpoints_from=storage.checkpoints_from(attempt, catalogue),
        outputs=common.output_globs(attempt, worker=0)
        if cluster.settings.worker_server_url is not None
        else [],
        outputs_limit_bytes=cluster.settings.outputs_limit_bytes,
        observe=spec.observe,
        log_limit_bytes=common.log_share(attempt, cluster.settings.log_limit_bytes),
    )


def _conda_prefix(spec: JobSpec, catalogue: ClusterCatalogue) -> str | None:
    """Path of the job's conda environment in the image, which the job gives by name or by path."""
    if spec.conda_env is None:
        return None
    root = PurePosixPath(catalogue.defaults.conda_root)
    if spec.conda_env in ("base", "root"):
        return str(root)
    return str(root / "envs" / spec.conda_env)  # an absolute path stays what it is
