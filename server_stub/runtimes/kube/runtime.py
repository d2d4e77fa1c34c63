"""The Kubernetes runtime: watches one namespace and runs each attempt as a gang of pods.

server_stub.runtimes.Runtime documents the methods. They run on the event loop's thread; the watches and all requests
run in threads of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from client_lib.spec.job import MASK, JobSpec
from client_lib.spec.wire import Check, InstanceType, Manifest, Submitter, WarmPoolInfo
from server_stub.runtimes import Attempt, Observation, Sink, attempt_dir
from server_stub.runtimes.kube import doctor, names, record
from server_stub.runtimes.kube.api import Api, ApiError, call_in_thread
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.api.pod_log import PodLogs
from server_stub.runtimes.kube.api.watch import Change, Listed, ObjectWatch
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.check import check
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.gang import Gang
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe import parse
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.observe.parse import Workload
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.removal import RemovalQueue
from server_stub.runtimes.kube.render import masked, render, storage
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.runtimes.tasks import Tasks
from server_stub.worker_gateway import WorkerRegistry

_OURS = {"labelSelector": f"{names.MANAGED_BY}={names.OURS}"}
_EVENTS = {  # events have no labels; those that the status of a pod shows are left out
    "fieldSelector": ",".join(
        f"reason!={reason}"
        for reason in ("Scheduled", "Created", "Started", "Killing", "SuccessfulCreatePod", "SuccessfulCreateService")
    )
}

DISK_PAUSE_S = 5.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of the runtime, made by `assembly`."""

    api: Api
    kind: WorkloadKind
    settings: ClusterSettings
    catalogue: ClusterCatalogue
    registry: WorkerRegistry
    job_dir: Callable[[str], Path]
    """Directory of a job by its id."""


class KubeRuntime:
    """Runs attempts as objects of one kind in one namespace."""

    name = "kubernetes"

    def __init__(self, parts: Parts) -> None:
        self._parts, self._inventory = parts, Inventory()
        objects = ObjectsApi(parts.api, parts.settings.namespace, parts.kind)
        self._cluster = Cluster(
            kind=parts.kind,
            settings=parts.settings,
            catalogue=parts.catalogue,
            objects=objects,
            inventory=self._inventory,
            registry=parts.registry,
            logs=PodLogs(parts.api, objects, parts.registry),
            removals=RemovalQueue(),
        )
        self._gangs: dict[AttemptKey, Gang] = {}
        self._tasks = Tasks(_log, "a task of the Kubernetes runtime failed")
        self._watches: list[ObjectWatch] = []
        self._sink: Sink | None = None

    # --- before anything runs

    def check(self, spec: JobSpec, submitter: Submitter) -> list[str]:
        cluster = self._cluster
        return check(spec, submitter, cluster.kind, cluster.settings, cluster.catalogue)

    def workers_see(self, spec: JobSpec, folder: str) -> bool:
        return storage.is_mounted(folder, storage.claims(spec, self._cluster.catalogue))

    def render(self, attempt: Attempt) -> Manifest:
        cluster = self._cluster
        objects = render(attempt, cluster.kind, cluster.settings, cluster.catalogue, MASK)
        return Manifest(runtime=self.name, objects=masked(objects))

    # --- life cycle

    async def start(self, sink: Sink) -> None:
        self._sink = sink
        await self._look_for_kueue()
        core = f"/api/v1/namespaces/{self._parts.settings.namespace}"
        loop = asyncio.get_running_loop()
        kinds: list[tuple[str, dict[str, str], Callable[[Change], Callable[[], None]]]] = [
            (self._cluster.objects.workloads, _OURS, self._workload_changed),
            (f"{core}/pods", _OURS, self._pod_changed),
            (f"{core}/events", _EVENTS, self._event_changed),
        ]
        for path, query, read in kinds:
            self._watches.append(ObjectWatch(self._parts.api, path, query, _on(loop, read)))
        for watch in self._watches:
            watch.start()

    async def _look_for_kueue(self) -> None:
        """Find out if jobs may name a queue. Repeated, as a Kueue may be installed later."""
        try:
            settings, kind = self._cluster.settings, self._cluster.kind
            found = await call_in_thread(kind.is_queued, self._parts.api, settings.namespace)
            self._cluster = replace(self._cluster, settings=replace(settings, kueue=found))
        except ApiError as error:
            _log.warning("can't find out whether a Kueue takes %ss: %s", self._parts.kind.name, error)

    async def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        await self._tasks.close()

    # --- changes from the watches: parsed in their threads, applied on the event loop

    def _workload_changed(self, change: Change) -> Callable[[], None]:
        inventory, kind = self._inventory, self._parts.kind
        if isinstance(change, Listed):
            found = _parsed(parse.workload, change.objects, kind)
            return lambda: self._workloads_listed(found)
        workload = parse.workload(change.object, kind)
        if workload is None:
            return _ignore
        return lambda: inventory.workload_gone(workload) if change.gone else inventory.put_workload(workload)

    def _pod_changed(self, change: Change) -> Callable[[], None]:
        inventory, kind = self._inventory, self._parts.kind
        if isinstance(change, Listed):
            found = _parsed(parse.pod, change.objects, kind)
            return lambda: inventory.list_pods(found)
        pod = parse.pod(change.object, kind)
        if pod is None:
            return _ignore
        return lambda: inventory.pod_gone(pod) if change.gone else inventory.put_pod(pod)

    def _event_changed(self, change: Change) -> Callable[[], None]:
        inventory = self._inventory
        if isinstance(change, Listed):
            found = [parse.event(raw) for raw in change.objects]
            return lambda: inventory.list_events(found)
        event = parse.event(change.object)
        return lambda: inventory.event_gone(event) if change.gone else inventory.put_event(event)

    def _workloads_listed(self, workloads: Sequence[Workload]) -> None:
        """Take the list over, and remove those that an earlier server process recorded as ended but did not remove."""
        self._inventory.list_workloads(workloads)
        self._tasks.begin(self._look_for_kueue())
        for workload in workloads:
            if workload.key not in self._gangs and not workload.deleting:
                self._tasks.begin(self._remove_if_ended(workload))

    async def _remove_if_ended(self, workload: Workload) -> None:
        folder = attempt_dir(self._parts.job_dir(workload.key.job_id), workload.key.attempt)
        known = await asyncio.to_thread(record.read, folder)
        if known.uid == workload.uid and known.end is not None:
            try:
                await call_in_thread(self._cluster.objects.delete_workload, workload.name, workload.uid)
            except ApiError as error:  # the next list contains it again
                _log.warning("%s %s can't be removed: %s", self._parts.kind.name, workload.name, error)

    # --- attempts

    def submit(self, attempt: Attempt) -> None:
        key = AttemptKey(attempt.job_id, attempt.number)
        if key in self._gangs:
            return
        self._gangs[key] = Gang(attempt, self._cluster, self._report)
        self._tasks.begin(self._to_its_end(key, attempt))

    async def _to_its_end(self, key: AttemptKey, attempt: Attempt) -> None:
        """Run the gang, again after each OSError: a full disk must not end a job that runs on the cluster."""
        try:
            while True:
                gang = self._gangs[key]
                try:
                    await gang.run()
                    return
                except OSError as error:
                    _log.error("job %s, attempt %d: %s", attempt.job_name, attempt.number, error)
                await asyncio.sleep(DISK_PAUSE_S)
                self._gangs[key] = Gang(replace(attempt, never_started=False), self._cluster, self._report)
                if gang.stopped:
                    self._gangs[key].stop(attempt.spec.grace_s)
        finally:
            del self._gangs[key]

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        gang = self._gangs.get(AttemptKey(job_id, attempt))
        if gang is not None:
            gang.stop(grace_s)

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        return tuple((view.log_length, view.signs_of_life) for view in self._parts.registry.view(job_id, attempt))

    def instance_types(self) -> Sequence[InstanceType]:
        return self._cluster.catalogue.shown()

    def warm_pools(self) -> list[WarmPoolInfo]:
        return []

    async def doctor(self) -> list[Check]:
        problems = [watch.problem for watch in self._watches if watch.problem]
        cluster, found = self._cluster, list[Check]()
        try:
            found = await call_in_thread(
                doctor.checks, self._parts.api, cluster.kind, cluster.settings, cluster.catalogue
            )
        except ApiError as error:
            problems.append(error.message)
        fix = "check the API server, and the rights of this server's user"
        return [*found, *(Check(name="cluster", ok=False, message=problem, fix=fix) for problem in problems)]

    def _report(self, seen: Observation) -> None:
        if self._sink is not None:
            self._sink(seen)


def _on(loop: asyncio.AbstractEventLoop, read: Callable[[Change], Callable[[], None]]) -> Callable[[Change], None]:
    """A function for the watch's thread that parses a change and has it applied on the event loop."""

    def take(change: Change) -> None:
        try:
            loop.call_soon_threadsafe(read(change))
        except RuntimeError:
            pass  # the loop is closed: the server is stopping

    return take


def _parsed(
    read: Callable[[Mapping[str, Any], WorkloadKind], T | None], objects: Sequence[Any], kind: WorkloadKind
) -> list[T]:
    return [found for raw in objects if (found := read(raw, kind)) is not None]


def _ignore() -> None:
    """Do nothing: the object belongs to no attempt."""
