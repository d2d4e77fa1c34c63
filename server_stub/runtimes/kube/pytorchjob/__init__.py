"""PyTorchJob of the Kubeflow training operator as a kind of workload; `manifest` has its pure part.

`check`, `is_queued` and `restricted_problem` ask a cluster about the operator. They create nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from client_lib.spec.wire import Check
from server_stub.runtimes.kube.api import Api, ApiError, get_if_visible
from server_stub.runtimes.kube.names import QUEUE
from server_stub.runtimes.kube.pytorchjob import manifest
from server_stub.runtimes.kube.workload import Object, WorkloadKind, WorkloadPlan

DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
OLDEST = (1, 9)
INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"
_PROBE = "client-lib-probe"


class PyTorchJob(WorkloadKind):
    name, group, version, plural = manifest.NAME, manifest.GROUP, manifest.VERSION, manifest.PLURAL
    container = manifest.CONTAINER
    operator = "training operator"
    kueue_framework = "kubeflow.org/pytorchjob"
    own_variables = ("MASTER_ADDR", "MASTER_PORT")
    conditions = manifest.CONDITIONS

    def manifest(self, plan: WorkloadPlan) -> Object:
        return manifest.manifest(plan)

    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        return manifest.worker_of(labels)

    def is_queued(self, api: Api, namespace: str) -> bool:
        """True if Kueue queues PyTorchJobs. Its presence alone is not enough: its integration kubeflow.org/pytorchjob
        is off by default since 0.19, and a suspended job would then never start."""
        return bool(self.dry_run(api, namespace, {QUEUE: _PROBE})["spec"]["runPolicy"].get("suspend"))

    def check(self, api: Api, namespace: str) -> Check:
        """The operator is installed, new enough and ready, and accepts a PyTorchJob."""
        served = get_if_visible(api, f"/apis/{self.api_version}")
        if served is None or self.plural not in [each.get("name") for each in served.get("resources", [])]:
            return _bad(f"the cluster knows no {self.name}", INSTALL)
        deployment = get_if_visible(api, DEPLOYMENT)
        version = _version(deployment)
        if version and _numbers(version) < OLDEST:
            return _bad(f"{version} runs; 1.9 or newer is needed", INSTALL)
        if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
            return _bad("none of its pods is ready", "kubectl -n kubeflow describe pods")
        try:
            self.dry_run(api, namespace)
        except ApiError as error:
            return _bad(f"it refuses a {self.name}: {error.message}", "kubectl -n kubeflow get pods")
        message = f"{version or 'one of an unknown version'} runs and takes a {self.name}"
        return Check(name=self.operator, ok=True, message=message)

    def restricted_problem(self, api: Api) -> tuple[str, str] | None:
        """Problem and fix if the operator adds its default init container, which is not admitted by `restricted`."""
        deployment = get_if_visible(api, DEPLOYMENT)
        if deployment is None or _has_own_init_container(deployment):
            return None
        problem = "the operator puts its own init container before workers, which a `restricted` namespace refuses"
        return problem, f"{INSTALL}, which gives it another one"

    def dry_run(self, api: Api, namespace: str, labels: dict[str, str] | None = None) -> Object:
        """The smallest PyTorchJob after all webhooks, not created. Raises ApiError if it would be refused."""
        template = {"spec": {"containers": [{"name": self.container, "image": "none"}]}}
        job = {
            "apiVersion": self.api_version,
            "kind": self.name,
            "metadata": {"name": _PROBE, "labels": labels or {}},
            "spec": {
                "runPolicy": {"suspend": False},
                "pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}},
            },
        }
        answer: Object = api.request(
            "POST", self.collection(namespace), job, {"dryRun": "All", "fieldValidation": "Strict"}
        )
        return answer


def _version(deployment: Any) -> str | None:
    """Version in the deployment's label, or in the tag of its image."""
    if deployment is None:
        return None
    label = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
    tag = image.partition("@")[0].rpartition(":")[2]
    return label or (tag if _numbers(tag) else None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _has_own_init_container(deployment: Any) -> bool:
    """True if the operator is configured with a template for its init container."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    mounts = [mount.get("mountPath", "") for mount in container.get("volumeMounts") or []]
    flags = [*(container.get("command") or []), *(container.get("args") or [])]
    return "/etc/config" in mounts or any("init-container-template-file" in flag for flag in flags)


def _bad(message: str, fix: str) -> Check:
    return Check(name=PyTorchJob.operator, ok=False, message=message, fix=fix)


PYTORCHJOB = PyTorchJob()
