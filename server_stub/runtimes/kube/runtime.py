"""The Kubernetes runtime: watches one namespace, and runs each attempt as a gang of pods.

See server_stub.runtimes.Runtime for the promises. All methods run on the event loop's thread; the watches and every
request run in threads of their own.
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
from server_stub.runtimes.kube import doctor, facts, fields, names, probe, record, storage
from server_stub.runtimes.kube.acts import Acts
from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.asking import asked
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.gang import Cluster, Gang
from server_stub.runtimes.kube.inventory import Inventory
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import masked
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.pod_log import PodLogs
from server_stub.runtimes.kube.removals import Removals
from server_stub.runtimes.kube.render import render
from server_stub.runtimes.kube.watch import Change, Listed, Watch
from server_stub.tasks import Tasks
from server_stub.workers import WorkerDesk

_OURS = {"labelSelector": f"{names.MANAGED_BY}={names.OURS}"}
_NEWS = {  # events carry no labels; most of a pod's normal life is told by its status already
    "fieldSelector": ",".join(
        f"reason!={reason}"
        for reason in ("Scheduled", "Created", "Started", "Killing", "SuccessfulCreatePod", "SuccessfulCreateService")
    )
}

DISK_PAUSE_S = 5.0

Fact = TypeVar("Fact")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What the runtime is made of; `connect` makes it."""

    api: Api
    settings: ClusterSettings
    catalogue: Catalogue
    desk: WorkerDesk
    job_dir: Callable[[str], Path]
    """Where the files of a job are, by its id."""


class KubeRuntime:
    """Runs attempts as PyTorchJobs of one namespace."""

    name = "kubernetes"

    def __init__(self, parts: Parts) -> None:
        self._parts, self._settings, self._catalogue = parts, parts.settings, parts.catalogue
        self._acts = Acts(parts.api, parts.settings.namespace)
        self._inventory = Inventory()
        self._logs = PodLogs(parts.api, self._acts, parts.desk)
        self._gangs: dict[AttemptKey, Gang] = {}
        self._removals = Removals()
        self._tasks = Tasks(_log, "a task of the Kubernetes runtime failed")
        self._watches: list[Watch] = []
        self._sink: Sink | None = None

    # --- before anything runs

    def check(self, spec: JobSpec, submitter: Submitter) -> list[str]:
        return fields.check(spec, submitter, self._settings, self._catalogue)

    def workers_see(self, spec: JobSpec, folder: str) -> bool:
        return storage.is_mounted(folder, storage.claims(spec, self._catalogue))

    def render(self, attempt: Attempt) -> Manifest:
        made = render(attempt, self._settings, self._catalogue, MASK)
        return Manifest(runtime=self.name, objects=masked(made))

    # --- its life

    async def start(self, sink: Sink) -> None:
        self._sink = sink
        await self._look_for_kueue()
        core = f"/api/v1/namespaces/{self._settings.namespace}"
        loop = asyncio.get_running_loop()
        kinds: list[tuple[str, dict[str, str], Callable[[Change], Callable[[], None]]]] = [
            (self._acts.jobs, _OURS, self._job_changed),
            (f"{core}/pods", _OURS, self._pod_changed),
            (f"{core}/events", _NEWS, self._event_changed),
        ]
        for path, query, read in kinds:
            self._watches.append(Watch(self._parts.api, path, query, _on(loop, read)))
        for watch in self._watches:
            watch.start()

    async def _look_for_kueue(self) -> None:
        """Now and then, for one may come later, and the cluster may be away at the start."""
        try:
            found = await asked(probe.is_queued, self._parts.api, self._settings.namespace)
            self._settings = replace(self._settings, kueue=found)
        except ApiError as error:
            _log.warning("whether a Kueue takes PyTorchJobs is not known: %s", error)

    async def close(self) -> None:
        for watch in self._watches:
            watch.stop()
        await self._tasks.close()

    # --- what the watches bring: read in their threads, taken in on the loop

    def _job_changed(self, change: Change) -> Callable[[], None]:
        inventory = self._inventory
        if isinstance(change, Listed):
            found = _facts(facts.training_job, change.objects)
            return lambda: self._jobs_listed(found)
        job = facts.training_job(change.object)
        if job is None:
            return _nothing
        return lambda: inventory.job_gone(job) if change.gone else inventory.put_job(job)

    def _pod_changed(self, change: Change) -> Callable[[], None]:
        inventory = self._inventory
        if isinstance(change, Listed):
            found = _facts(facts.pod, change.objects)
            return lambda: inventory.list_pods(found)
        pod = facts.pod(change.object)
        if pod is None:
            return _nothing
        return lambda: inventory.pod_gone(pod) if change.gone else inventory.put_pod(pod)

    def _event_changed(self, change: Change) -> Callable[[], None]:
        inventory = self._inventory
        if isinstance(change, Listed):
            found = [facts.event(raw) for raw in change.objects]
            return lambda: inventory.list_events(found)
        event = facts.event(change.object)
        return lambda: inventory.event_gone(event) if change.gone else inventory.put_event(event)

    def _jobs_listed(self, jobs: Sequence[facts.TrainingJob]) -> None:
        """Those whose end was written down by a server process that had no time to remove them are removed."""
        self._inventory.list_jobs(jobs)
        self._tasks.begin(self._look_for_kueue())
        for job in jobs:
            if job.key not in self._gangs and not job.deleting:
                self._tasks.begin(self._remove_if_ended(job))

    async def _remove_if_ended(self, job: facts.TrainingJob) -> None:
        folder = attempt_dir(self._parts.job_dir(job.key.job_id), job.key.attempt)
        known = await asyncio.to_thread(record.read, folder)
        if known.uid == job.uid and known.end is not None:
            try:
                await asked(self._acts.delete_job, job.name, job.uid)
            except ApiError as error:  # the next listing finds it again
                _log.warning("PyTorchJob %s can't be removed: %s", job.name, error)

    # --- attempts

    def submit(self, attempt: Attempt) -> None:
        key = AttemptKey(attempt.job_id, attempt.number)
        if key in self._gangs:
            return
        self._gangs[key] = self._gang(attempt)
        self._tasks.begin(self._to_its_end(key, attempt))

    def _gang(self, attempt: Attempt) -> Gang:
        desk, settings, catalogue = self._parts.desk, self._settings, self._catalogue
        shared = Cluster(self._acts, self._inventory, desk, settings, catalogue, self._logs, self._removals)
        return Gang(attempt, shared, self._tell)

    async def _to_its_end(self, key: AttemptKey, attempt: Attempt) -> None:
        """However often it takes: a full disk must not end a job that runs on the cluster."""
        try:
            while True:
                gang = self._gangs[key]
                try:
                    await gang.run()
                    return
                except OSError as error:
                    _log.error("job %s, attempt %d: %s", attempt.job_name, attempt.number, error)
                await asyncio.sleep(DISK_PAUSE_S)
                self._gangs[key] = self._gang(replace(attempt, fresh=False))
                if gang.stopped:
                    self._gangs[key].stop(attempt.spec.grace_s)
        finally:
            del self._gangs[key]

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        gang = self._gangs.get(AttemptKey(job_id, attempt))
        if gang is not None:
            gang.stop(grace_s)

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        return tuple((view.log_length, view.signs_of_life) for view in self._parts.desk.view(job_id, attempt))

    def instance_types(self) -> Sequence[InstanceType]:
        return self._catalogue.shown()

    def warm_pools(self) -> list[WarmPoolInfo]:
        return []

    async def doctor(self) -> list[Check]:
        problems = [watch.problem for watch in self._watches if watch.problem]
        looked: list[Check] = []
        try:
            looked = await asked(doctor.checks, self._parts.api, self._settings, self._catalogue)
        except ApiError as error:
            problems.append(error.message)
        fix = "check the API server, and the rights of this server's user"
        return [*looked, *(Check(name="cluster", ok=False, message=problem, fix=fix) for problem in problems)]

    def _tell(self, seen: Observation) -> None:
        if self._sink is not None:
            self._sink(seen)


def _on(loop: asyncio.AbstractEventLoop, read: Callable[[Change], Callable[[], None]]) -> Callable[[Change], None]:
    """In the watch's thread: make facts of what it brings, and have them taken in on the loop."""

    def take(change: Change) -> None:
        try:
            loop.call_soon_threadsafe(read(change))
        except RuntimeError:
            pass  # the loop is closed: the server has ended

    return take


def _facts(read: Callable[[Mapping[str, Any]], Fact | None], objects: Sequence[Any]) -> list[Fact]:
    return [fact for raw in objects if (fact := read(raw)) is not None]


def _nothing() -> None:
    """An object that is none of ours."""
