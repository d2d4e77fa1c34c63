"""The manifest of a PyTorchJob, the names and labels of its pods, and the meanings of its conditions. Pure.

Sources: training-operator v1.9.4, pkg/apis/kubeflow.org/v1/common_types.go and pkg/controller.v1/pytorch/envvar.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_lib.spec.states import Reason
from server_stub.runtimes.elastic import Bounds
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.workload import Made, Meaning, Object, WorkloadPlan, rank_variables

NAME, GROUP, VERSION, PLURAL = "PyTorchJob", "kubeflow.org", "v1", "pytorchjobs"
CONTAINER = "pytorch"  # the operator's webhook refuses a replica without a container of this name
ELASTIC = "client-lib.io/elastic"
"""Label of the pods of an elastic job: to the operator all of them are workers, and none is a master."""
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"

CONDITIONS: Mapping[str, Meaning] = {
    "Created": Meaning(Reason.QUEUED),
    "Suspended": Meaning(Reason.QUEUED),
    "Running": Meaning(Reason.STARTING),  # its master runs; the reports of the workers show whether the ranks run
    "Restarting": Meaning(Reason.STARTING),
    "Succeeded": Meaning(Reason.COMPLETED),
    "Failed": Meaning(Reason.LAUNCHER_LOST, permanent=True),
}


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
    return Made(_job(plan.metadata, spec))


def probe(_: str, labels: Mapping[str, str]) -> Object:
    """The smallest PyTorchJob."""
    replica = _replica(1, "Never", {"spec": {"containers": [{"name": CONTAINER, "image": "none"}]}})
    spec = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Master": replica}}
    return _job({"name": PROBE, "labels": dict(labels)}, spec)


def _job(metadata: Object, spec: Object) -> Object:
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": NAME, "metadata": metadata, "spec": spec}


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
