"""The interface of a kind of Kubernetes object that runs the pods of an attempt, such as PyTorchJob.

Everything that differs between such kinds is a method or a constant of `WorkloadKind`. The rest of the runtime works
with any kind; `assembly` chooses one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.elastic import Bounds

if TYPE_CHECKING:
    from server_stub.runtimes.kube.api import Api

Object = dict[str, Any]
"""A Kubernetes object, as in its JSON."""


class Meaning(NamedTuple):
    """The meaning of a status word of Kubernetes or of an operator."""

    reason: Reason
    """Reason why the job waits, or why the attempt ended."""
    permanent: bool = False
    """True if the job waits for something that will not change by itself, so that the attempt ends."""
    known: bool = True


@dataclass(frozen=True)
class WorkloadPlan:
    """The parts from which a kind makes its manifest."""

    name: str
    metadata: Object
    spec: JobSpec
    processes: int
    """Processes per worker."""
    bounds: Bounds | None
    """Bounds of an elastic job; None: the loss of any worker ends the attempt."""
    template: Callable[[Mapping[str, str], Sequence[Object]], Object]
    """Makes the pod template with more labels and more environment variables."""


class WorkloadKind(ABC):
    """A kind of object whose operator creates the pods of an attempt."""

    name: ClassVar[str]
    """Kind in manifests, such as PyTorchJob."""
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    container: ClassVar[str]
    """Name of the main container of its pods."""
    operator: ClassVar[str]
    """Name of its operator in messages."""
    kueue_framework: ClassVar[str]
    """Name of its integration in the configuration of Kueue."""
    own_variables: ClassVar[Sequence[str]]
    """Environment variables that its operator sets and a job can't."""
    conditions: ClassVar[Mapping[str, Meaning]]
    """Meanings of its conditions, by type."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"

    def collection(self, namespace: str) -> str:
        """Path of its objects in the API."""
        return f"/apis/{self.api_version}/namespaces/{namespace}/{self.plural}"

    @abstractmethod
    def manifest(self, plan: WorkloadPlan) -> Object:
        """The object for an attempt. Pure."""

    @abstractmethod
    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        """Index of the worker whose pod has these labels; None: the pod belongs to no object of this kind. Pure."""

    @abstractmethod
    def is_queued(self, api: Api, namespace: str) -> bool:
        """True if a Kueue takes objects of this kind: it suspends each that names a queue, until its turn.

        Blocks. Raises ApiError.
        """

    @abstractmethod
    def check(self, api: Api, namespace: str) -> Check:
        """The check of the operator for `doctor`. Blocks. Raises ApiError."""

    @abstractmethod
    def restricted_problem(self, api: Api) -> tuple[str, str] | None:
        """Problem and fix if a `restricted` namespace refuses pods of the operator; None: it does not. Blocks."""
