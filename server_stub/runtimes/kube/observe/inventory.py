"""The workloads, pods and events of all attempts, as the watches report them. Used on the event loop only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.parse import Event, WorkerPod, Workload

EVENTS_MAX = 30
"""Number of events kept of one object, the newest."""
PARTS = ("Job/", "JobSet/", "PodGroup/")
"""Objects that an operator makes for a workload: they are not watched, so their events are known by their names."""


class Inventory:
    """Objects by attempt. For a followed attempt it reports changes, and keeps pods that are gone."""

    def __init__(self) -> None:
        self._workloads: dict[AttemptKey, Workload] = {}
        self._pods: dict[AttemptKey, dict[str, WorkerPod]] = {}
        self._events: dict[str, dict[str, Event]] = {}
        self._key_of: dict[str, AttemptKey] = {}
        """The attempt of a workload or a pod, by UID."""
        self._followers: dict[AttemptKey, Callable[[], None]] = {}
        self._listed: set[str] = set()
        """Kinds of workloads whose list is known."""

    def follow(self, key: AttemptKey, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of an object of this attempt."""
        self._followers[key] = changed

    def forget(self, key: AttemptKey) -> None:
        """Stop reporting changes, and forget the pods that are gone."""
        self._followers.pop(key, None)
        self.drop_gone(key)

    def drop_gone(self, key: AttemptKey) -> None:
        for pod in [pod for pod in self._pods.get(key, {}).values() if pod.gone]:
            self._remove_pod(pod)

    def workload(self, key: AttemptKey) -> Workload | None:
        return self._workloads.get(key)

    def workloads(self) -> Iterable[Workload]:
        """Those of all attempts."""
        return self._workloads.values()

    def pods(self, key: AttemptKey) -> tuple[WorkerPod, ...]:
        """The pods of an attempt, with those that are gone since it is followed."""
        return tuple(self._pods.get(key, {}).values())

    def events(self, key: AttemptKey) -> tuple[Event, ...]:
        workload = self._workloads.get(key)
        uids = ([workload.uid] if workload else []) + list(self._pods.get(key, ()))
        own = [event for uid in uids for event in self._events.get(uid, {}).values()]
        return (*own, *(self._events_of_parts(workload) if workload else ()))

    def _events_of_parts(self, workload: Workload) -> Iterator[Event]:
        """Events about what the operator made for the workload, without those of an earlier one with its name."""
        for part in workload.parts:
            for event in self._events.get(part, {}).values():
                if event.at >= workload.created_at:
                    yield replace(event, about=workload.uid)

    def workloads_known(self, kind: str) -> bool:
        """True after the first list of this kind: a missing one does not exist, or was created a moment ago."""
        return kind in self._listed

    # --- changes from the watches

    def list_workloads(self, kind: str, found: Iterable[Workload]) -> None:
        there = {workload.uid: workload for workload in found}
        self._listed.add(kind)
        known = [workload for workload in self._workloads.values() if workload.kind == kind]
        for workload in [workload for workload in known if workload.uid not in there]:
            self.workload_gone(workload)
        for workload in there.values():
            self.put_workload(workload)
        for changed in list(self._followers.values()):
            changed()

    def put_workload(self, workload: Workload) -> None:
        self._workloads[workload.key] = workload
        for each in (workload.uid, *workload.parts):
            self._key_of[each] = workload.key
        self._report_change(workload.key)

    def workload_gone(self, workload: Workload) -> None:
        for each in (workload.uid, *workload.parts):
            self._key_of.pop(each, None)
            self._events.pop(each, None)
        known = self._workloads.get(workload.key)
        if known is not None and known.uid == workload.uid:
            del self._workloads[workload.key]
            self._report_change(workload.key)

    def list_pods(self, found: Iterable[WorkerPod]) -> None:
        there = {pod.uid: pod for pod in found}
        for pods in list(self._pods.values()):
            for pod in [pod for pod in pods.values() if pod.uid not in there and not pod.gone]:
                self.pod_gone(pod)
        for pod in there.values():
            self.put_pod(pod)

    def put_pod(self, pod: WorkerPod) -> None:
        self._pods.setdefault(pod.key, {})[pod.uid] = pod
        self._key_of[pod.uid] = pod.key
        self._report_change(pod.key)

    def pod_gone(self, pod: WorkerPod) -> None:
        if pod.key in self._followers:
            self._pods.setdefault(pod.key, {})[pod.uid] = replace(pod, gone=True)
            self._report_change(pod.key)
        else:
            self._remove_pod(pod)

    def _remove_pod(self, pod: WorkerPod) -> None:
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
        known_by = _known_by(event)
        about = self._events.setdefault(known_by, {})
        about[event.uid] = event
        if len(about) > EVENTS_MAX:
            del about[min(about, key=lambda uid: about[uid].at)]
        if known_by in self._key_of:
            self._report_change(self._key_of[known_by])

    def event_gone(self, event: Event) -> None:
        about = self._events.get(_known_by(event), {})
        about.pop(event.uid, None)
        if not about:
            self._events.pop(_known_by(event), None)

    def _report_change(self, key: AttemptKey) -> None:
        changed = self._followers.get(key)
        if changed is not None:
            changed()


def _known_by(event: Event) -> str:
    return event.part if event.part.startswith(PARTS) else event.about
