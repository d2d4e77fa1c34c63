"""PyTorchJob of the Kubeflow training operator as a kind of workload.

Sources: training-operator v1.9.4, pkg/apis/kubeflow.org/v1/common_types.go and pkg/controller.v1/pytorch/envvar.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes import checked
from server_stub.runtimes.elastic import Bounds
from server_stub.runtimes.kube.api import Api, ApiError, get_if_visible, serves
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.workload import Made, Meaning, Object, WorkloadKind, WorkloadPlan, rank_variables

DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
OLDEST = (1, 9)
INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"
CONTAINER = "pytorch"  # the operator's webhook refuses a replica without a container of this name
ELASTIC = "client-lib.io/elastic"
"""Label of the pods of an elastic job: to the operator all of them are workers, and none is a master."""
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"


def manifest(plan: WorkloadPlan) -> Made:
    run: Object = {"cleanPodPolicy": "Running"}  # the default leaves other pods running after the end; All deletes logs
    if plan.bounds is None:
        run["backoffLimit"] = 0
    if QUEUE in plan.metadata["labels"]:
        run["suspend"] = True  # until Kueue admits it
    if plan.gang_scheduler != "none":  # the operator names the scheduler in the pods
        least = plan.bounds.least if plan.bounds else plan.spec.n_workers
        queue = {"queue": plan.volcano_queue} if plan.volcano_queue else {}
        run["schedulingPolicy"] = {"minAvailable": least, **queue}
    spec = {
        "nprocPerNode": str(plan.processes),  # "auto" would be a process for each core of the host
        **({"elasticPolicy": _elastic_policy(plan, plan.bounds)} if plan.bounds else {}),
        "runPolicy": run,
        "pytorchReplicaSpecs": _replicas(plan),
    }
    return Made(PYTORCHJOB.object(plan.metadata, spec))


def probe(_: str, labels: Mapping[str, str]) -> Object:
    """The smallest PyTorchJob."""
    replica = _replica(1, "Never", {"spec": {"containers": [{"name": CONTAINER, "image": "none"}]}})
    spec = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Master": replica}}
    return PYTORCHJOB.object({"name": PROBE, "labels": dict(labels)}, spec)


def _elastic_policy(plan: WorkloadPlan, bounds: Bounds) -> dict[str, Any]:
    """The policy for readers of the manifest, and for the operator, which then takes the first success of a worker for
    the success of the job. The agents in the pods read the plan instead."""
    return {
        "rdzvBackend": "c10d",
        "minReplicas": bounds.least,
        "maxReplicas": plan.spec.n_workers,
        "maxRestarts": bounds.returns,
    }


def _replicas(plan: WorkloadPlan) -> Object:
    """Worker 0 is the master, because the operator announces no master in a job with workers only.

    An elastic job has workers only: the operator replaces a lost one, and the end of one is not the end of all.
    """
    if plan.bounds is not None:
        template = plan.template({ELASTIC: "true"}, rank_variables(REPLICA_INDEX, pod_name(plan.name, 0, elastic=True)))
        return {"Worker": _replica(plan.spec.n_workers, "OnFailure", template)}
    workers = plan.spec.n_workers - 1
    master = {"Master": _replica(1, "Never", plan.template({}, ()))}
    return master | ({"Worker": _replica(workers, "Never", plan.template({}, ()))} if workers else {})


def _replica(count: int, restart: str, template: Object) -> Object:
    return {"replicas": count, "restartPolicy": restart, "template": template}


def pod_name(name: str, worker: int, *, elastic: bool = False) -> str:
    """Name of the pod of a worker; worker 0 is the operator's master, except in an elastic job."""
    if elastic:
        return f"{name}-worker-{worker}"
    return f"{name}-master-0" if worker == 0 else f"{name}-worker-{worker - 1}"


def worker_of(labels: Mapping[str, str]) -> int | None:
    """Index of the worker whose pod has these labels; None: the pod belongs to no PyTorchJob."""
    index = labels.get(REPLICA_INDEX, "")
    if not index.isdigit():
        return None
    masters = 0 if ELASTIC in labels else 1
    return {"master": 0, "worker": int(index) + masters}.get(labels.get(REPLICA_TYPE, "").lower())


# --- questions to the operator, which create nothing


def _is_queued(api: Api, namespace: str) -> bool:
    """True if Kueue queues PyTorchJobs. Its presence alone is not enough: its integration kubeflow.org/pytorchjob
    is off by default since 0.19, and a suspended job would then never start."""
    return bool(PYTORCHJOB.dry_run(api, namespace, {QUEUE: PROBE})["spec"]["runPolicy"].get("suspend"))


def _check(api: Api, namespace: str) -> Check:
    """The operator is installed, new enough and ready, and accepts a PyTorchJob."""
    kind, result = PYTORCHJOB, partial(checked, PYTORCHJOB.operator)
    if not serves(api, kind.api_version, kind.plural):
        return result(f"the cluster has no resource type {kind.name}", INSTALL)
    deployment = get_if_visible(api, DEPLOYMENT)
    version = _version(deployment)
    if version and _numbers(version) < OLDEST:
        return result(f"{version} runs; 1.9 or newer is needed", INSTALL)
    if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
        return result("none of its pods is ready", "kubectl -n kubeflow describe pods")
    try:
        kind.dry_run(api, namespace)
    except ApiError as error:
        return result(f"it refuses a {kind.name}: {error.message}", "kubectl -n kubeflow get pods")
    return result(f"{version or 'one of an unknown version'} runs and takes a {kind.name}")


def _restricted_problem(api: Api) -> tuple[str, str] | None:
    """Problem and fix if the operator adds its default init container, which is not admitted by `restricted`."""
    deployment = get_if_visible(api, DEPLOYMENT)
    if deployment is None or _has_own_init_container(deployment):
        return None
    problem = "the operator puts its own init container before workers, which a `restricted` namespace refuses"
    return problem, f"{INSTALL}, which gives it another one"


def _gang_problem(api: Api) -> tuple[str, str] | None:
    """Problem and fix if the operator makes no PodGroups."""
    deployment = get_if_visible(api, DEPLOYMENT)
    if deployment is None or any("gang-scheduler-name" in flag for flag in _flags(deployment)):
        return None
    return "the operator makes no PodGroups", "start it with --gang-scheduler-name and the name of the scheduler"


def _version(deployment: Any) -> str | None:
    """Version in the deployment's label, or in the tag of its image."""
    if deployment is None:
        return None
    label = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    tag = _container(deployment).get("image", "").partition("@")[0].rpartition(":")[2]
    return label or (tag if _numbers(tag) else None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _has_own_init_container(deployment: Any) -> bool:
    """True if the operator is configured with a template for its init container."""
    mounts = [mount.get("mountPath", "") for mount in _container(deployment).get("volumeMounts") or []]
    return "/etc/config" in mounts or any("init-container-template-file" in flag for flag in _flags(deployment))


def _flags(deployment: Any) -> list[str]:
    container = _container(deployment)
    return [*(container.get("command") or []), *(container.get("args") or [])]


def _container(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]["containers"][0]


PYTORCHJOB = WorkloadKind(
    name="PyTorchJob",
    group="kubeflow.org",
    version="v1",
    plural="pytorchjobs",
    container=CONTAINER,
    operator="training operator",
    kueue_framework="kubeflow.org/pytorchjob",
    conditions={
        "Created": Meaning(Reason.QUEUED),
        "Suspended": Meaning(Reason.QUEUED),
        "Running": Meaning(Reason.STARTING),  # its master runs; the reports of the workers show whether the ranks run
        "Restarting": Meaning(Reason.STARTING),
        "Succeeded": Meaning(Reason.COMPLETED),
        "Failed": Meaning(Reason.LAUNCHER_LOST, permanent=True),
    },
    manifest=manifest,
    probe=probe,
    worker_of=worker_of,
    is_queued=_is_queued,
    check=_check,
    restricted_problem=_restricted_problem,
    gang_problem=_gang_problem,
    parts=lambda name: (f"PodGroup/{name}",),
)
