"""PyTorchJob of the Kubeflow training operator as a kind of workload."""

from __future__ import annotations

from collections.abc import Mapping

from client_lib.spec.wire import Check
from server_stub.runtimes.kube.api import Api
from server_stub.runtimes.kube.pytorchjob import manifest, operator
from server_stub.runtimes.kube.workload import Object, WorkloadKind, WorkloadPlan


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
        return operator.is_queued(api, namespace)

    def check(self, api: Api, namespace: str) -> Check:
        return operator.check(api, namespace)

    def restricted_problem(self, api: Api) -> tuple[str, str] | None:
        return operator.restricted_problem(api)


PYTORCHJOB = PyTorchJob()
