"""One namespace of a cluster: the parts that all attempts share, and the watches that keep its inventory up to date."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from client_lib.errors import ClientLibError
from client_lib.spec.job import JobSpec
from server_stub.runtimes import Attempt, attempt_dir, plan, worker_dir
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import Api
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.api.pod_log import PodLogs
from server_stub.runtimes.kube.api.watch import Change, Listed, ObjectWatch
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.catalogue.needs import needs
from server_stub.runtimes.kube.observe import ending, parse
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.removal import RemovalQueue
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.worker_gateway import WorkerGroup, WorkerRegistry

_OURS = {"labelSelector": f"{names.MANAGED_BY}={names.OURS}"}
_EVENTS = {  # events have no labels; those that the status of a pod shows are left out
    "fieldSelector": ",".join(
        f"reason!={reason}"
        for reason in ("Scheduled", "Created", "Started", "Killing", "SuccessfulCreatePod", "SuccessfulCreateService")
    )
}

T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    """One namespace of a cluster, and the rules for jobs in it."""

    api: Api
    kind: WorkloadKind
    settings: ClusterSettings
    catalogue: ClusterCatalogue
    registry: WorkerRegistry
    objects: ObjectsApi
    inventory: Inventory
    logs: PodLogs
    removals: RemovalQueue

    @classmethod
    def of(
        cls,
        api: Api,
        kind: WorkloadKind,
        settings: ClusterSettings,
        catalogue: ClusterCatalogue,
        registry: WorkerRegistry,
    ) -> Cluster:
        """Make the parts. Makes no request."""
        objects = ObjectsApi(api, settings.namespace, kind)
        logs = PodLogs(api, objects, registry)
        return cls(api, kind, settings, catalogue, registry, objects, Inventory(), logs, RemovalQueue())

    def watches(self, workloads_listed: Callable[[list[parse.Workload]], None]) -> list[ObjectWatch]:
        """Watches that keep the inventory up to date; each list of workloads goes to `workloads_listed` instead."""
        core, inventory = f"/api/v1/namespaces/{self.settings.namespace}", self.inventory
        read_workload, read_pod = partial(parse.workload, kind=self.kind), partial(parse.pod, kind=self.kind)
        workload_changes = workloads_listed, inventory.put_workload, inventory.workload_gone
        pod_changes = inventory.list_pods, inventory.put_pod, inventory.pod_gone
        event_changes = inventory.list_events, inventory.put_event, inventory.event_gone
        return [
            ObjectWatch(self.api, self.objects.workloads, _OURS, _applied(read_workload, *workload_changes)),
            ObjectWatch(self.api, f"{core}/pods", _OURS, _applied(read_pod, *pod_changes)),
            ObjectWatch(self.api, f"{core}/events", _EVENTS, _applied(parse.event, *event_changes)),
        ]

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
            log_limit_bytes=plan.log_share(attempt, self.settings.log_limit_bytes),
            may_return=ending.may_return(attempt.spec),
        )
        self.registry.open(group, changed)

    def _processes(self, spec: JobSpec) -> int:
        """Processes per worker; 1 if the catalogue has lost the instance type, for then none is started."""
        try:
            return needs(spec, self.catalogue).processes
        except ClientLibError:
            return 1


def _applied(
    read: Callable[[Any], T | None],
    take_list: Callable[[list[T]], None],
    put: Callable[[T], None],
    gone: Callable[[T], None],
) -> Callable[[Change], None]:
    """A function for a watch's thread, which parses a change there and has it applied on the event loop.

    `read` returns None for an object that belongs to no attempt.
    """
    loop = asyncio.get_running_loop()

    def take(change: Change) -> None:
        if isinstance(change, Listed):
            apply = partial(take_list, [found for raw in change.objects if (found := read(raw)) is not None])
        elif (found := read(change.object)) is not None:
            apply = partial(gone if change.gone else put, found)
        else:
            return
        try:
            loop.call_soon_threadsafe(apply)
        except RuntimeError:
            pass  # the loop is closed: the server is stopping

    return take
