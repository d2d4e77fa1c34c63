"""The workloads, pods and events of all attempts: parsed from the API's JSON, and kept as the watches report them.

The JSON of a pod has 15 kB, too much to keep for thousands of pods, so that only the few values are kept that decisions
need. Parsing never fails: a field that a status lacks is None or empty, for every field of a status is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from client_lib.worker.report import Report
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.worker_gateway import report

Json = Mapping[str, Any]
EVENTS_MAX = 30
"""Number of events kept of one object, the newest."""
PARTS = ("Job/", "JobSet/", "PodGroup/")
"""Objects that an operator makes for a workload: they are not watched, so their events are known by their names."""


@dataclass(frozen=True, slots=True)
class StatusReason:
    """A reason (one word) in the status of an object, with its message and time (RFC 3339)."""

    word: str
    text: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    exit_code: int
    reason: str
    message: str
    """Its termination message: the digest of a report, or a message of the container runtime."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod; without a state if `waiting`, `running_since` and `ended` are all None."""

    name: str
    waiting: StatusReason | None = None
    running_since: str | None = None
    ended: ContainerEnd | None = None
    image: str = ""
    """Image of a container that waits."""
    before: ContainerEnd | None = None
    """End of the container before its last restart."""
    digest: str = ""
    """Name of the image with its digest; "": the image was not pulled yet."""


@dataclass(frozen=True, slots=True)
class WorkerPod:
    key: AttemptKey
    worker: int
    name: str
    uid: str
    created_at: str
    deleting: bool
    phase: str
    refused: StatusReason | None
    """Reason why the kubelet or a controller ended the whole pod (status.reason)."""
    node: str
    """Name of its node; "": it has none."""
    scheduled: bool
    scheduling: StatusReason | None
    """Reason why it has no node; None: the scheduler has not tried yet, or it has one."""
    disruption: StatusReason | None
    """Reason why the cluster evicts it (condition DisruptionTarget)."""
    image: str
    requests: tuple[tuple[str, str], ...]
    """Requests of its main container: resource and quantity."""
    memory_limit: str | None
    init: tuple[Container, ...]
    main: Container
    grace_s: float = 0.0
    """Time to end after its deletion."""
    ends_by: str = ""
    """Time at which that is over, as the cluster writes it; "": nobody deleted it."""
    gone: bool = False
    """It was deleted, and this is its last known state."""
    unanswered: bool = False
    """Its time to end is over and no kubelet has ended it, see `ending.StuckPods`."""

    @property
    def over(self) -> bool:
        """True if it runs nothing now and never will again."""
        return self.gone or self.unanswered or self.phase in ("Failed", "Succeeded") or self.main.ended is not None


@dataclass(frozen=True, slots=True)
class Workload:
    """The object that runs the pods of an attempt, such as a PyTorchJob."""

    kind: WorkloadKind
    key: AttemptKey
    name: str
    uid: str
    created_at: str
    deleting: bool
    queue: str | None
    """Queue of Kueue."""
    suspended: bool
    """True while Kueue, or a user of the cluster, keeps it without pods."""
    conditions: tuple[StatusReason, ...]
    """Conditions with status True, by their types."""

    @property
    def known_by(self) -> tuple[str, ...]:
        """Its UID, and what its operator made for it, as `Kind/name`: an event is about one of them."""
        return (self.uid, *self.kind.parts(self.name))


@dataclass(frozen=True, slots=True)
class Event:
    uid: str
    about: str
    """UID of the object that it is about."""
    reason: str
    message: str
    at: str
    """Time of its last occurrence."""
    part: str = ""
    """The object that it is about, as `Kind/name`."""

    @property
    def known_by(self) -> str:
        return self.part if self.part.startswith(PARTS) else self.about


def parse_pod(raw: Json, kinds: Sequence[WorkloadKind]) -> WorkerPod | None:
    """The pod of a workload of any of these kinds; None: it belongs to no attempt."""
    meta, spec, status = _of(raw, "metadata"), _of(raw, "spec"), _of(raw, "status")
    labels = _of(meta, "labels")
    key = names.attempt_of(labels)
    found = next(((kind, worker) for kind in kinds if (worker := kind.worker_of(labels)) is not None), None)
    if key is None or found is None:
        return None
    kind, worker = found
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    placed, evicted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    declared: Json = next((each for each in spec.get("containers") or () if each["name"] == kind.container), {})
    resources = _of(declared, "resources")
    main = next((each for each in status.get("containerStatuses") or () if each["name"] == kind.container), None)
    return WorkerPod(
        key=key,
        worker=worker,
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        created_at=_text(meta, "creationTimestamp"),
        deleting=meta.get("deletionTimestamp") is not None,
        phase=_text(status, "phase"),
        refused=_reason(status) if status.get("reason") is not None else None,
        node=_text(spec, "nodeName"),
        scheduled=bool(spec.get("nodeName")) or placed.get("status") == "True",
        scheduling=_reason(placed) if placed.get("status") == "False" else None,
        disruption=_reason(evicted) if evicted.get("status") == "True" else None,
        image=_text(declared, "image"),
        requests=tuple(sorted(_of(resources, "requests").items())),
        memory_limit=_of(resources, "limits").get("memory"),
        init=tuple(_container(each) for each in status.get("initContainerStatuses") or ()),
        main=_container(main) if main is not None else Container(kind.container),
        grace_s=float(meta.get("deletionGracePeriodSeconds") or 0),
        ends_by=_text(meta, "deletionTimestamp"),
    )


def parse_workload(raw: Json, kind: WorkloadKind) -> Workload | None:
    """The workload; None: it belongs to no attempt."""
    meta, spec = _of(raw, "metadata"), _of(raw, "spec")
    labels = _of(meta, "labels")
    key = names.attempt_of(labels)
    if key is None:
        return None
    conditions = [each for each in _of(raw, "status").get("conditions") or () if each.get("status") == "True"]
    return Workload(
        kind=kind,
        key=key,
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        created_at=_text(meta, "creationTimestamp"),
        deleting=meta.get("deletionTimestamp") is not None,
        queue=labels.get(names.QUEUE),
        suspended=_of(spec, "runPolicy").get("suspend", spec.get("suspend")) is True,
        conditions=tuple(_reason(each, "type") for each in conditions),
    )


def parse_event(raw: Json) -> Event:
    """The event, in either form: with a count and the first and last time, or with a series."""
    meta, about = _of(raw, "metadata"), _of(raw, "involvedObject")
    at = _text(_of(raw, "series"), "lastObservedTime") or _text(raw, "lastTimestamp") or _text(raw, "eventTime")
    return Event(
        uid=_text(meta, "uid"),
        about=_text(about, "uid"),
        part=f"{_text(about, 'kind')}/{_text(about, 'name')}",
        reason=_text(raw, "reason"),
        message=_text(raw, "message"),
        at=at or _text(meta, "creationTimestamp"),
    )


def _container(status: Json) -> Container:
    state, before = _of(status, "state"), _of(_of(status, "lastState"), "terminated")
    waiting, ended = _of(state, "waiting"), _of(state, "terminated")
    return Container(
        name=_text(status, "name"),
        waiting=_reason(waiting) if waiting else None,
        running_since=_text(_of(state, "running"), "startedAt") if "running" in state else None,
        ended=_ended(ended) if ended else None,
        image=_text(status, "image"),
        before=_ended(before) if before else None,
        digest=_text(status, "imageID").rpartition("://")[2],
    )


def _ended(state: Json) -> ContainerEnd:
    return ContainerEnd(int(state.get("exitCode") or 0), _text(state, "reason"), _text(state, "message"))


def _reason(status: Json, word: str = "reason") -> StatusReason:
    return StatusReason(_text(status, word), _text(status, "message"), _text(status, "lastTransitionTime"))


def _of(raw: Json, key: str) -> Json:
    return raw.get(key) or {}


def _text(raw: Json, key: str) -> str:
    return raw.get(key) or ""


def read_digest(message: str) -> Report | None:
    """The report in a termination message, as far as it fits there; None: it is damaged, or another message."""
    try:
        return report.parse(message)
    except ValueError:
        return None


class Inventory:
    """Objects by attempt. For a followed attempt it reports changes, and keeps pods that are gone.

    Used on the event loop only.
    """

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
        """Those about its pods and its workload, and about what the operator made for the workload: without those of an
        earlier workload with its name, and as if they were about the workload itself."""
        found = [event for uid in self._pods.get(key, ()) for event in self._events.get(uid, {}).values()]
        if workload := self._workloads.get(key):
            for known_by in workload.known_by:
                about = self._events.get(known_by, {}).values()
                since = "" if known_by == workload.uid else workload.created_at
                found += [replace(event, about=workload.uid) for event in about if event.at >= since]
        return tuple(found)

    def workloads_known(self, kind: str) -> bool:
        """True after the first list of this kind: a missing one does not exist, or was created a moment ago."""
        return kind in self._listed

    # --- changes from the watches

    def list_workloads(self, kind: str, found: Iterable[Workload]) -> None:
        there = {workload.uid: workload for workload in found}
        self._listed.add(kind)
        for workload in list(self._workloads.values()):
            if workload.kind.name == kind and workload.uid not in there:
                self.workload_gone(workload)
        for workload in there.values():
            self.put_workload(workload)
        for changed in list(self._followers.values()):
            changed()

    def put_workload(self, workload: Workload) -> None:
        self._workloads[workload.key] = workload
        for each in workload.known_by:
            self._key_of[each] = workload.key
        self._report_change(workload.key)

    def workload_gone(self, workload: Workload) -> None:
        for each in workload.known_by:
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
        about = self._events.setdefault(event.known_by, {})
        about[event.uid] = event
        if len(about) > EVENTS_MAX:
            del about[min(about, key=lambda uid: about[uid].at)]
        if event.known_by in self._key_of:
            self._report_change(self._key_of[event.known_by])

    def event_gone(self, event: Event) -> None:
        about = self._events.get(event.known_by, {})
        about.pop(event.uid, None)
        if not about:
            self._events.pop(event.known_by, None)

    def _report_change(self, key: AttemptKey) -> None:
        if changed := self._followers.get(key):
            changed()
