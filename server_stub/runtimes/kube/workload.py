"""The interface of a kind of Kubernetes object that runs the pods of an attempt, such as
PyTorchJob.

Everything that differs between such kinds is a member of `WorkloadKind`. The rest of the runtime
works with any kind; `assemble` in `runtime` chooses one.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from client_lib.spec.command_line import NAME_MAX
from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.kube.api import Api
from server_stub.runtimes.kube.catalogue import GangScheduler

Object = dict[str, Any]
"""A Kubernetes object, as in its JSON."""
Problem = tuple[str, str]
"""A problem of the cluster, and its fix."""
MASTER_PORT = 23456
"""Default of the training operator for its container port `pytorchjob-port`."""
SCHEDULERS: Mapping[GangScheduler, str] = {
    "volcano": "volcano",
    "coscheduling": "scheduler-plugins-scheduler",
}
"""Default names of the schedulers, in `schedulerName` of pods."""
POD_GROUPS: Mapping[GangScheduler, str] = {
    "volcano": "scheduling.volcano.sh/v1beta1",
    "coscheduling": "scheduling.x-k8s.io/v1alpha1",
}
"""API versions of their PodGroups."""


@dataclass(frozen=True)
class WorkloadPlan:
    """The parts from which a kind makes its manifest."""

    name: str
    metadata: Object
    spec: JobSpec
    processes: int
    """Processes per worker."""
    template: Callable[[Mapping[str, str], Sequence[Object]], Object]
    """Makes the pod template with more labels and more environment variables."""
    gang_scheduler: GangScheduler
    secret_variables: Sequence[str]
    """Names of the variables that the container takes from its Secret (`envFrom`)."""

    @property
    def volcano_queue(self) -> str | None:
        """Queue of Volcano; None: its default, or another scheduler."""
        return self.spec.queue_name if self.gang_scheduler == "volcano" else None


def rank_variables(index_label: str, master: str) -> list[Object]:
    """The variables with the index and the master, for pods that get
    neither from their operator.
    """
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{index_label}']"}}
    return [
        {"name": "RANK", "valueFrom": index},
        {"name": "MASTER_ADDR", "value": master},
        {"name": "MASTER_PORT", "value": str(MASTER_PORT)},
    ]


def is_missing(base: Object, message: str) -> bool:
    """True if a workload was refused with this message because its base is missing. The webhooks of
    Trainer and of Kueue quote the name of the base in their own ways."""
    return re.search(rf"{base['metadata']['name']}[\"'] not found", message) is not None


class Applied(NamedTuple):
    """The object that an operator makes for a workload, under the same name."""

    group: str
    version: str
    plural: str
    label: str
    """Label of its pods, whose value is that name."""


class WorkloadKind(ABC):
    """A kind of object whose operator creates the pods of an attempt.

    The methods that take an Api ask a cluster: they block, and raise ApiError. The others are pure.
    """

    name: str
    """Kind in manifests, such as PyTorchJob."""
    group: str
    version: str
    plural: str
    container: str
    """Name of the main container of its pods."""
    operator: str
    """Name of its operator in messages."""
    kueue_framework: str
    """Name of its integration in the configuration of Kueue."""
    conditions: Mapping[str, Reason | None]
    """Its conditions, by type: reason why the attempt has ended, or None
    if the condition ends none.
    """
    pods_failed: tuple[str, ...]
    """Words of the condition `Failed` if pods have failed; with others there may have been none."""
    name_max: int = NAME_MAX
    """Longest name of one of its objects; the names of pods and services that its
    operator makes are longer.
    """
    applied: Applied | None = None
    """The object that the operator applies under the name of the workload, again and again, even
    while the workload waits for the deletion of its pods. So the workload is deleted before its
    pods, and the name is free only when nothing is left of an earlier workload. None: the operator
    applies none."""
    bases: Mapping[str, str] = {}
    """Kinds of the objects on which its objects are based, with their plurals."""

    @abstractmethod
    def manifest(self, plan: WorkloadPlan) -> tuple[Object, Object | None]:
        """Make the object for an attempt, and the object on which it is based. The base must exist
        before, is named by its content, and is shared by other workloads. None: the object has no
        base."""

    @abstractmethod
    def probe(self, namespace: str, labels: Mapping[str, str]) -> Object:
        """Make the smallest object, with these labels."""

    @abstractmethod
    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        """Index of the worker whose pod has these labels; None: the pod belongs
        to no object of this kind.
        """

    @abstractmethod
    def parts(self, name: str) -> tuple[str, ...]:
        """Objects that the operator creates for the workload with this name, as `Kind/name`; events
        about them are events of the job.
        """

    def probe_base(self, _namespace: str) -> Object | None:
        """Make the object on which the probe is based; None: it is based on nothing."""
        return None

    @abstractmethod
    def is_suspended(self, workload: Object) -> bool:
        """True if the operator makes no pods of this object until someone resumes it."""

    @abstractmethod
    def check(self, api: Api, namespace: str) -> Check:
        """The check of the operator for `doctor`."""

    def restricted_problem(self, _api: Api) -> Problem | None:
        """Problem if a `restricted` namespace refuses pods of the operator."""
        return None

    def gang_problem(self, _api: Api) -> Problem | None:
        """Problem if the operator makes no PodGroups; None: it does, or it is not known."""
        return None

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    def object(self, metadata: Object, spec: Object, kind: str | None = None) -> Object:
        """An object of this kind, or of another kind of its group."""
        return {
            "apiVersion": self.api_version,
            "kind": kind or self.name,
            "metadata": metadata,
            "spec": spec,
        }

    def collection(self, namespace: str, plural: str | None = None) -> str:
        """Path in the API of the objects of this kind, or of the objects with another plural of its
        group."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{plural or self.plural}"

    def applied_collection(self, namespace: str) -> str | None:
        """Path of the objects that its operator applies."""
        if self.applied is None:
            return None
        group = f"/apis/{self.applied.group}/{self.applied.version}"
        return f"{group}/namespaces/{namespace}/{self.applied.plural}"

    def dry_run(self, api: Api, namespace: str, labels: Mapping[str, str] | None = None) -> Object:
        """The probe after all webhooks, not created. Raises ApiError if it would be refused."""
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        answer: Object = api.request(
            "POST", self.collection(namespace), self.probe(namespace, labels or {}), query
        )
        return answer
