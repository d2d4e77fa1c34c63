"""The parts of the runtime that all attempts on a cluster share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_lib.errors import ClientLibError
from client_lib.spec.job import JobSpec
from server_stub.runtimes import Attempt, attempt_dir, plan, worker_dir
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.api.pod_log import PodLogs
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.catalogue.needs import needs
from server_stub.runtimes.kube.observe import losses
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.removal import RemovalQueue
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.worker_gateway import WorkerGroup, WorkerRegistry


@dataclass(frozen=True)
class Cluster:
    """One namespace of a cluster, and the rules for jobs in it."""

    kind: WorkloadKind
    settings: ClusterSettings
    catalogue: ClusterCatalogue
    objects: ObjectsApi
    inventory: Inventory
    registry: WorkerRegistry
    logs: PodLogs
    removals: RemovalQueue

    def register(self, attempt: Attempt, changed: Callable[[], None]) -> None:
        """Let the workers of an attempt connect. `changed` is called after each of their reports."""
        group = WorkerGroup(
            job_id=attempt.job_id,
            job_name=attempt.job_name,
            attempt=attempt.number,
            folder=attempt_dir(attempt.job_dir, attempt.number),
            workers=tuple(worker_dir(attempt.job_dir, attempt.number, each) for each in range(attempt.spec.n_workers)),
            processes_per_worker=self._processes(attempt.spec),
            snapshot=attempt.snapshot,
            function=attempt.function,
            log_limit_bytes=plan.log_share(attempt.spec, self.settings.log_limit_bytes),
            may_return=losses.may_return(attempt.spec),
        )
        self.registry.open(group, changed)

    def _processes(self, spec: JobSpec) -> int:
        """Processes per worker; 1 if the catalogue has lost the instance type, for then none is started."""
        try:
            return needs(spec, self.catalogue).processes
        except ClientLibError:
            return 1
