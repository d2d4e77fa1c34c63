"""PyTorchJob of the Kubeflow training operator as a kind of workload.

Sources: training-operator v1.9.4, pkg/apis/kubeflow.org/v1/common_types.go and
pkg/controller.v1/pytorch/envvar.go.
"""

import re
from collections.abc import Mapping
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.checks import checked
from server_stub.runtimes.kube.api import Api, ApiError, find, serves
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.workload import (
    Object,
    Problem,
    WorkloadKind,
    WorkloadPlan,
    rank_variables,
)
from server_stub.runtimes.verdict import elastic_bounds

DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
OLDEST = (1, 9)
INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"
ELASTIC = "client-lib.io/elastic"
"""Label of the pods of an elastic job, of which no pod is a master to the operator."""
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"


class PyTorchJob(WorkloadKind):
    name = "PyTorchJob"
    group = "kubeflow.org"
    version = "v1"
    plural = "pytorchjobs"
    # the operator's webhook refuses a replica without a container of this name
    container = "pytorch"
    operator = "training operator"
    kueue_framework = "kubeflow.org/pytorchjob"
    conditions: Mapping[str, Reason | None] = {
        **dict.fromkeys(("Created", "Suspended", "Running", "Restarting", "Succeeded")),
        "Failed": Reason.LAUNCHER_LOST,
    }

    pods_failed = ("replica(s) failed", "has reached the specified backoff limit")

    def manifest(self, plan: WorkloadPlan) -> tuple[Object, Object | None]:
        # the default leaves pods running after the end; All deletes logs
        run: Object = {"cleanPodPolicy": "Running"}
        # "auto" would be a process for each core of the host
        spec: Object = {"nprocPerNode": str(plan.processes)}
        bounds = elastic_bounds(plan.spec)
        least = n_workers = plan.spec.n_workers
        # worker 0 is the master: the operator announces none in a job with workers only
        if bounds is None:
            run["backoffLimit"] = 0
            replicas = {"Master": _replica(1, "Never", plan.template({}, ()))}
            if n_workers > 1:
                replicas["Worker"] = _replica(n_workers - 1, "Never", plan.template({}, ()))
        else:
            # workers only: the operator replaces a lost one, and the end of one is not the end of
            # all
            least = bounds.least
            template = plan.template(
                {ELASTIC: "true"}, rank_variables(REPLICA_INDEX, f"{plan.name}-worker-0")
            )
            replicas = {"Worker": _replica(n_workers, "OnFailure", template)}
            # For readers, and for the operator, which then takes the first success of a worker for
            # the success of the job. The agents in the pods read the plan instead.
            spec["elasticPolicy"] = {
                "rdzvBackend": "c10d",
                "minReplicas": least,
                "maxReplicas": n_workers,
                "maxRestarts": bounds.returns,
            }
        if QUEUE in plan.metadata["labels"]:
            run["suspend"] = True  # until Kueue admits it
        if plan.gang_scheduler != "none":  # the operator names the scheduler in the pods
            queue = {"queue": plan.volcano_queue} if plan.volcano_queue else {}
            run["schedulingPolicy"] = {"minAvailable": least, **queue}
        return self.object(
            plan.metadata, {**spec, "runPolicy": run, "pytorchReplicaSpecs": replicas}
        ), None

    def probe(self, _namespace: str, labels: Mapping[str, str]) -> Object:
        replica = _replica(
            1, "Never", {"spec": {"containers": [{"name": self.container, "image": "none"}]}}
        )
        spec = {"runPolicy": {"suspend": False}, "pytorchReplicaSpecs": {"Master": replica}}
        return self.object({"name": PROBE, "labels": dict(labels)}, spec)

    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        index = labels.get(REPLICA_INDEX, "")
        if not index.isdigit():
            return None
        masters = 0 if ELASTIC in labels else 1
        return {"master": 0, "worker": int(index) + masters}.get(
            labels.get(REPLICA_TYPE, "").lower()
        )

    def parts(self, name: str) -> tuple[str, ...]:
        return (f"PodGroup/{name}",)

    def is_suspended(self, workload: Object) -> bool:
        return bool(workload["spec"]["runPolicy"].get("suspend"))

    def check(self, api: Api, namespace: str) -> Check:
        """The operator is installed, new enough and ready, and accepts a PyTorchJob."""
        if not serves(api, self.api_version, self.plural):
            return checked(self.operator, f"the cluster has no resource type {self.name}", INSTALL)
        deployment = find(api, DEPLOYMENT, may_be_hidden=True)
        version = _version(deployment) if deployment is not None else None
        if version and _numbers(version) < OLDEST:
            return checked(self.operator, f"{version} runs; 1.9 or newer is needed", INSTALL)
        if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
            return checked(
                self.operator, "none of its pods is ready", "kubectl -n kubeflow describe pods"
            )
        try:
            self.dry_run(api, namespace)
        except ApiError as error:
            message = f"it refuses a {self.name}: {error.message}"
            return checked(self.operator, message, "kubectl -n kubeflow get pods")
        return checked(
            self.operator, f"{version or 'one of an unknown version'} runs and takes a {self.name}"
        )

    def restricted_problem(self, api: Api) -> Problem | None:
        """Problem if the operator adds its default init container, which is not
        admitted by `restricted`.
        """
        deployment = find(api, DEPLOYMENT, may_be_hidden=True)
        if deployment is None or _has_flag(deployment, "init-container-template-file"):
            return None
        if any(
            mount.get("mountPath") == "/etc/config"
            for mount in _container(deployment).get("volumeMounts") or []
        ):
            return None  # its template is there
        problem = (
            "the operator puts its own init container before workers, which a `restricted` "
            "namespace refuses"
        )
        return problem, f"{INSTALL}, which gives it another one"

    def gang_problem(self, api: Api) -> Problem | None:
        deployment = find(api, DEPLOYMENT, may_be_hidden=True)
        if deployment is None or _has_flag(deployment, "gang-scheduler-name"):
            return None
        return (
            "the operator makes no PodGroups",
            "start it with --gang-scheduler-name and the name of the scheduler",
        )


PYTORCHJOB = PyTorchJob()


def _replica(count: int, restart: str, template: Object) -> Object:
    return {"replicas": count, "restartPolicy": restart, "template": template}


def _version(deployment: Any) -> str | None:
    """Version in the deployment's label, or in the tag of its image."""
    if label := (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version"):
        return str(label)
    tag = _container(deployment).get("image", "").partition("@")[0].rpartition(":")[2]
    return tag if _numbers(tag) else None


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _has_flag(deployment: Any, flag: str) -> bool:
    container = _container(deployment)
    return any(
        flag in each for each in [*(container.get("command") or []), *(container.get("args") or [])]
    )


def _container(deployment: Any) -> Any:
    return deployment["spec"]["template"]["spec"]["containers"][0]
