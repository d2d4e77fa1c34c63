"""What is known of the cluster: our PyTorchJobs, pods and events as the watches tell, found by attempt.

Event loop only. The watches' threads bring facts, not JSON, so that little is done here and little is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from server_stub.runtimes.kube.facts import Event, Pod, TrainingJob
from server_stub.runtimes.kube.names import AttemptKey

EVENTS_MAX = 30
"""Kept of one object; the newest."""


class Inventory:
    """`follow` an attempt to be told of it, and to keep what is gone of it."""

    def __init__(self) -> None:
        self._jobs: dict[AttemptKey, TrainingJob] = {}
        self._pods: dict[AttemptKey, dict[str, Pod]] = {}
        self._events: dict[str, dict[str, Event]] = {}
        self._key_of: dict[str, AttemptKey] = {}
        """By UID of a job or a pod."""
        self._followers: dict[AttemptKey, Callable[[], None]] = {}
        self.jobs_known = False
        """They were listed: one that is not here is not there, or was made a moment ago."""

    def follow(self, key: AttemptKey, changed: Callable[[], None]) -> None:
        self._followers[key] = changed

    def forget(self, key: AttemptKey) -> None:
        """Nobody is told any more; what is gone is forgotten."""
        self._followers.pop(key, None)
        self.drop_gone(key)

    def drop_gone(self, key: AttemptKey) -> None:
        for pod in [pod for pod in self._pods.get(key, {}).values() if pod.gone]:
            self._remove_pod(pod)

    def job(self, key: AttemptKey) -> TrainingJob | None:
        return self._jobs.get(key)

    def pods(self, key: AttemptKey) -> tuple[Pod, ...]:
        """Those that are gone, too, since the attempt is followed."""
        return tuple(self._pods.get(key, {}).values())

    def events(self, key: AttemptKey) -> tuple[Event, ...]:
        job = self._jobs.get(key)
        uids = ([job.uid] if job else []) + list(self._pods.get(key, ()))
        return tuple(event for uid in uids for event in self._events.get(uid, {}).values())

    # --- what the watches bring

    def list_jobs(self, found: Iterable[TrainingJob]) -> None:
        there = {job.uid: job for job in found}
        self.jobs_known = True
        for job in [job for job in self._jobs.values() if job.uid not in there]:
            self.job_gone(job)
        for job in there.values():
            self.put_job(job)
        for changed in list(self._followers.values()):
            changed()

    def put_job(self, job: TrainingJob) -> None:
        self._jobs[job.key] = job
        self._key_of[job.uid] = job.key
        self._tell(job.key)

    def job_gone(self, job: TrainingJob) -> None:
        self._key_of.pop(job.uid, None)
        self._events.pop(job.uid, None)
        known = self._jobs.get(job.key)
        if known is not None and known.uid == job.uid:
            del self._jobs[job.key]
            self._tell(job.key)

    def list_pods(self, found: Iterable[Pod]) -> None:
        there = {pod.uid: pod for pod in found}
        for pods in list(self._pods.values()):
            for pod in [pod for pod in pods.values() if pod.uid not in there and not pod.gone]:
                self.pod_gone(pod)
        for pod in there.values():
            self.put_pod(pod)

    def put_pod(self, pod: Pod) -> None:
        self._pods.setdefault(pod.key, {})[pod.uid] = pod
        self._key_of[pod.uid] = pod.key
        self._tell(pod.key)

    def pod_gone(self, pod: Pod) -> None:
        if pod.key in self._followers:
            self._pods.setdefault(pod.key, {})[pod.uid] = replace(pod, gone=True)
            self._tell(pod.key)
        else:
            self._remove_pod(pod)

    def _remove_pod(self, pod: Pod) -> None:
        self._key_of.pop(pod.uid, None)
        self._events.pop(pod.uid, None)
        pods = self._pods.get(pod.key, {})
        pods.pop(pod.uid, None)
        if not pods:
            self._pods.pop(pod.key, None)

    def list_events(self, found: Iterable[Event]) -> None:
        self._events.clear()
        for event in found:
            self.put_event(event)

    def put_event(self, event: Event) -> None:
        about = self._events.setdefault(event.about, {})
        about[event.uid] = event
        if len(about) > EVENTS_MAX:
            del about[min(about, key=lambda uid: about[uid].at)]
        if event.about in self._key_of:
            self._tell(self._key_of[event.about])

    def event_gone(self, event: Event) -> None:
        about = self._events.get(event.about, {})
        about.pop(event.uid, None)
        if not about:
            self._events.pop(event.about, None)

    def _tell(self, key: AttemptKey) -> None:
        changed = self._followers.get(key)
        if changed is not None:
            changed()
