"""The workloads, pods and events of all attempts: parsed from the API's JSON, and kept as the
watches report them.

The JSON of a pod has 15 kB, too much to keep for thousands of pods, so that only the few values are
kept that decisions need. Parsing never fails: a field that a status lacks is None or empty, for
every field of a status is optional.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from client_lib.launcher_protocol.report import Report, storable
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.worker_gateway import report

Json = Mapping[str, Any]
EVENTS_MAX = 30
"""Number of events kept of one object, the newest."""
PARTS = ("Job/", "JobSet/", "PodGroup/")
"""Objects that an operator makes for a workload: they are not watched, so their events
are known by their names.
"""


@dataclass(frozen=True, slots=True)
class StatusReason:
    """A reason (one word) in the status of an object, with its message and time (RFC 3339)."""

    word: str
    text: str = ""
    """Termination message of a container: the digest of a report, or a text
    of the container runtime.
    """
    at: str = ""
    exit_code: int = 0
    """Exit code of a container that ended."""


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod; without a state if `waiting`, `running_since`
    and `ended` are all None.
    """

    name: str
    waiting: StatusReason | None = None
    running_since: str | None = None
    ended: StatusReason | None = None
    image: str = ""
    """Image of a container that waits."""
    before: StatusReason | None = None
    """End of the container before its last restart."""
    digest: str = ""
    """Name of the image with its digest; "": the image was not pulled yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object of an attempt."""

    key: AttemptKey
    name: str
    uid: str
    created_at: str
    ends_by: str = ""
    """Time at which its time to end is over, as the cluster writes it; "": nobody deleted it."""

    gone: bool = False
    """It was deleted, and this is its last known state."""

    @property
    def deleting(self) -> bool:
        return bool(self.ends_by)

    @property
    def kind_name(self) -> str:
        """The object's kind in manifests, by which `take_list` finds the objects that are gone."""
        return "Pod"

    @property
    def known_by(self) -> tuple[str, ...]:
        """The object's UID, and the objects that its operator made for it, as `Kind/name`. An event
        about any of these is an event of the object.
        """
        return (self.uid,)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPod(Found):
    worker: int
    phase: str
    refused: StatusReason | None
    """Reason why the kubelet or a controller ended the whole pod (status.reason)."""
    node: str
    """Name of the pod's node; "": the pod has no node."""
    scheduled: bool
    scheduling: StatusReason | None
    """Reason why the pod has no node; None: the scheduler has not tried yet, or the pod has a
    node."""
    disruption: StatusReason | None
    """Reason why the cluster evicts it (condition DisruptionTarget)."""
    image: str
    requests: Mapping[str, str]
    """Requests of its main container by resource."""
    memory_limit: str | None
    init: tuple[Container, ...]
    main: Container
    grace_s: float = 0.0
    """Time to end after its deletion."""
    unanswered: bool = False
    """Its time to end is over and no kubelet has ended it, see `ending.StuckPods`."""

    @property
    def over(self) -> bool:
        """True if it runs nothing now and never will again."""
        return (
            self.gone
            or self.unanswered
            or self.phase in ("Failed", "Succeeded")
            or self.main.ended is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Found):
    """The object that runs the pods of an attempt, such as a PyTorchJob."""

    kind: WorkloadKind
    queue: str | None = None
    """Queue of Kueue."""
    suspended: bool = False
    """True while Kueue, or a user of the cluster, keeps it without pods."""
    conditions: tuple[StatusReason, ...] = ()
    """Conditions with status True, by their types."""

    @property
    def kind_name(self) -> str:
        return self.kind.name

    @property
    def known_by(self) -> tuple[str, ...]:
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
    meta = _of(raw, "metadata")
    spec = _of(raw, "spec")
    status = _of(raw, "status")
    workers = ((kind, kind.worker_of(_of(meta, "labels"))) for kind in kinds)
    kind, worker = next((each for each in workers if each[1] is not None), (None, None))
    known = _parse_metadata(meta)
    if known is None or kind is None or worker is None:
        return None
    conditions = {str(each.get("type")): each for each in status.get("conditions") or ()}
    placed = conditions.get("PodScheduled", {})
    evicted = conditions.get("DisruptionTarget", {})
    declared = _called(kind.container, spec.get("containers"))
    resources = _of(declared, "resources")
    main = _container(_called(kind.container, status.get("containerStatuses")))
    return WorkerPod(
        **known,
        worker=worker,
        phase=_text(status, "phase"),
        refused=_reason(status) if status.get("reason") is not None else None,
        node=_text(spec, "nodeName"),
        scheduled=bool(spec.get("nodeName")) or placed.get("status") == "True",
        scheduling=_reason(placed) if placed.get("status") == "False" else None,
        disruption=_reason(evicted) if evicted.get("status") == "True" else None,
        image=_text(declared, "image"),
        requests=_of(resources, "requests"),
        memory_limit=_of(resources, "limits").get("memory"),
        init=tuple(map(_container, status.get("initContainerStatuses") or ())),
        main=replace(main, name=kind.container),
        grace_s=float(meta.get("deletionGracePeriodSeconds") or 0),
    )


def parse_workload(raw: Json, kind: WorkloadKind) -> Workload | None:
    """The workload; None: it belongs to no attempt."""
    meta = _of(raw, "metadata")
    spec = _of(raw, "spec")
    known = _parse_metadata(meta)
    if known is None:
        return None
    conditions = [
        each for each in _of(raw, "status").get("conditions") or () if each.get("status") == "True"
    ]
    return Workload(
        **known,
        kind=kind,
        queue=_of(meta, "labels").get(names.QUEUE),
        suspended=_of(spec, "runPolicy").get("suspend", spec.get("suspend")) is True,
        conditions=tuple(_reason(each, "type") for each in conditions),
    )


def parse_event(raw: Json) -> Event:
    """The event, in either form: with a count and the first and last time, or with a series."""
    meta = _of(raw, "metadata")
    about = _of(raw, "involvedObject")
    at = (
        _text(_of(raw, "series"), "lastObservedTime")
        or _text(raw, "lastTimestamp")
        or _text(raw, "eventTime")
    )
    return Event(
        uid=_text(meta, "uid"),
        about=_text(about, "uid"),
        part=f"{_text(about, 'kind')}/{_text(about, 'name')}",
        reason=_text(raw, "reason"),
        message=_text(raw, "message"),
        at=at or _text(meta, "creationTimestamp"),
    )


def _parse_metadata(meta: Json) -> dict[str, Any] | None:
    """The fields of Found; None: the object belongs to no attempt."""
    key = names.attempt_of(_of(meta, "labels"))
    sources = {
        "name": "name",
        "uid": "uid",
        "created_at": "creationTimestamp",
        "ends_by": "deletionTimestamp",
    }
    return key and {"key": key} | {field: _text(meta, source) for field, source in sources.items()}


def _called(name: str, containers: Sequence[Json] | None) -> Json:
    return next((each for each in containers or () if each.get("name") == name), {})


def _container(status: Json) -> Container:
    state = _of(status, "state")
    before = _of(_of(status, "lastState"), "terminated")
    waiting = _of(state, "waiting")
    ended = _of(state, "terminated")
    return Container(
        name=_text(status, "name"),
        waiting=_reason(waiting) if waiting else None,
        running_since=_text(_of(state, "running"), "startedAt") if "running" in state else None,
        ended=_reason(ended) if ended else None,
        image=_text(status, "image"),
        before=_reason(before) if before else None,
        digest=_text(status, "imageID").rpartition("://")[2],
    )


def _reason(status: Json, word: str = "reason") -> StatusReason:
    text = storable(_text(status, "message"))  # of a container: its ranks may write anything there
    return StatusReason(
        _text(status, word), text, _text(status, "lastTransitionTime"), status.get("exitCode") or 0
    )


def _of(raw: Json, key: str) -> Json:
    return raw.get(key) or {}


def _text(raw: Json, key: str) -> str:
    return raw.get(key) or ""


def read_digest(message: str) -> Report | None:
    """The report in a termination message, as far as it fits there; None: it is
    damaged, or another message.
    """
    try:
        return report.parse(message)
    except ValueError:
        return None


class Inventory:
    """Objects by attempt. For a followed attempt it reports changes, and keeps pods that are gone.

    Used on the event loop only.
    """

    def __init__(self) -> None:
        self._found: defaultdict[type[Found], dict[AttemptKey, dict[str, Any]]] = defaultdict(dict)
        """Workloads and pods by attempt and UID."""
        self._events: dict[str, dict[str, Event]] = {}
        self._key_of: dict[str, AttemptKey] = {}
        """The attempt of a workload or a pod, by what an event is about."""
        self._followers: dict[AttemptKey, Callable[[], None]] = {}
        self._listed: set[str] = set()
        """Kinds whose list is known."""

    def follow(self, key: AttemptKey, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of an object of this attempt."""
        self._followers[key] = changed

    def forget(self, key: AttemptKey) -> None:
        """Stop reporting changes, and forget the pods that are gone."""
        self._followers.pop(key, None)
        self.drop_gone(key)

    def drop_gone(self, key: AttemptKey) -> None:
        for pod in self.pods(key):
            if pod.gone:
                self._remove(pod)

    def workload(self, key: AttemptKey, uid: str | None) -> Workload | None:
        """The workload of an attempt with this UID. Others are being removed, or are
        copies that somebody has made.
        """
        return self._found[Workload].get(key, {}).get(uid or "")

    def workloads(self) -> Iterable[Workload]:
        """The workloads of all attempts."""
        return (
            each for of_attempt in self._found[Workload].values() for each in of_attempt.values()
        )

    def pods(self, key: AttemptKey) -> tuple[WorkerPod, ...]:
        """The pods of an attempt, with the pods that have gone while this server followed it."""
        return tuple(self._found[WorkerPod].get(key, {}).values())

    def events(self, key: AttemptKey, uid: str | None) -> tuple[Event, ...]:
        """Events about the pods of an attempt and about its workload of this UID. Events about
        objects that the operator made for the workload are shown as events of the workload, except
        events of an earlier workload with the same name."""
        found = [
            event for pod in self.pods(key) for event in self._events.get(pod.uid, {}).values()
        ]
        if workload := self.workload(key, uid):
            for known_by in workload.known_by:
                about = self._events.get(known_by, {}).values()
                since = "" if known_by == workload.uid else workload.created_at
                found += [
                    replace(event, about=workload.uid) for event in about if event.at >= since
                ]
        return tuple(found)

    def is_listed(self, kind: str) -> bool:
        """True after the first list of this kind: a missing one does not exist, or
        was created a moment ago.
        """
        return kind in self._listed

    # --- changes from the watches

    def take_list(self, kind: str, found: Iterable[Found]) -> None:
        """Take over all workloads, or pods, of this kind."""
        there = {each.uid: each for each in found}
        self._listed.add(kind)
        for old in [
            old
            for by_key in self._found.values()
            for known in by_key.values()
            for old in known.values()
        ]:
            if old.kind_name == kind and old.uid not in there and not old.gone:
                self.gone(old)
        for each in there.values():
            self.put(each)
        for changed in [*self._followers.values()]:
            changed()

    def put(self, found: Found) -> None:
        self._found[type(found)].setdefault(found.key, {})[found.uid] = found
        self._key_of.update(dict.fromkeys(found.known_by, found.key))
        self._report_change(found.key)

    def gone(self, found: Found) -> None:
        if isinstance(found, WorkerPod) and found.key in self._followers:
            self.put(replace(found, gone=True))
        else:
            self._remove(found)
            self._report_change(found.key)

    def _remove(self, found: Found) -> None:
        known = self._found[type(found)].get(found.key, {})
        known.pop(found.uid, None)
        # with a workload of the same name
        shared = {each for other in known.values() for each in other.known_by}
        for each in set(found.known_by) - shared:
            self._key_of.pop(each, None)
            self._events.pop(each, None)
        if not known:
            self._found[type(found)].pop(found.key, None)

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
        # the next list drops what is empty
        self._events.get(event.known_by, {}).pop(event.uid, None)

    def _report_change(self, key: AttemptKey) -> None:
        if changed := self._followers.get(key):
            changed()
