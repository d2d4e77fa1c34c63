"""What we keep of a PyTorchJob, a pod and an event: the few facts that decisions need, read from the API's JSON. Pure.

A pod's JSON is 15 kB and most of it is of no use here; a server that watches thousands of pods keeps these instead.
Reading is total: whatever a status lacks is None or empty, for every field of it is optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.names import AttemptKey

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """A foreign word with the sentence beside it, and when it was said (RFC 3339)."""

    word: str
    text: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    exit_code: int
    reason: str
    message: str
    """Its termination message: our digest, or the words of the container runtime."""
    at: str


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod. None of the three: nothing is known of it yet."""

    name: str
    waiting: Said | None = None
    running_since: str | None = None
    ended: Ended | None = None
    image: str = ""
    """As it was asked for, while it waits."""
    before: Ended | None = None
    """How it ended before it was started again."""

    @property
    def crashes(self) -> bool:
        """It ended, and isn't started again yet, as it has ended too often."""
        return self.waiting is not None and self.waiting.word == "CrashLoopBackOff"


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of an attempt."""

    key: AttemptKey
    worker: int
    name: str
    uid: str
    created_at: str
    deleting: bool
    phase: str
    refused: Said | None
    """Why the kubelet or a controller ended the pod as a whole (status.reason)."""
    node: str | None
    scheduled: bool
    scheduling: Said | None
    """Why it has no node; None: nobody has looked at it, or it has one."""
    disruption: Said | None
    """Why the cluster takes it away (condition DisruptionTarget)."""
    image: str
    requests: tuple[tuple[str, str], ...]
    """Of its main container: resource and quantity."""
    memory_limit: str | None
    init: tuple[Container, ...]
    main: Container
    grace_s: float = 0.0
    """That it has to end, once it is being deleted."""
    gone: bool = False
    """It was deleted: this is what was seen of it last."""
    unanswered: bool = False
    """It was to end long ago, and nobody has ended it: see `leaving`."""

    @property
    def over(self) -> bool:
        """Nothing of it runs any more, or ever will."""
        return self.gone or self.unanswered or self.phase in ("Failed", "Succeeded") or self.main.ended is not None


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One PyTorchJob."""

    key: AttemptKey
    name: str
    uid: str
    created_at: str
    deleting: bool
    queue: str | None
    """Of Kueue."""
    conditions: tuple[Said, ...]
    """Those that are True."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event about a PyTorchJob or a pod."""

    uid: str
    about: str
    """UID of the object."""
    warning: bool
    reason: str
    message: str
    at: str
    """When it was seen last."""


def pod(raw: Json) -> Pod | None:
    """None: it is no worker of ours."""
    meta, spec, status = _of(raw, "metadata"), _of(raw, "spec"), _of(raw, "status")
    labels = _texts(meta.get("labels"))
    key, worker = names.attempt_of(labels), names.worker_of(labels)
    if key is None or worker is None:
        return None
    conditions = {str(each.get("type")): each for each in _list(status.get("conditions"))}
    placed = conditions.get("PodScheduled", {})
    declared = next((each for each in _list(spec.get("containers")) if each.get("name") == names.CONTAINER), {})
    resources = _of(declared, "resources")
    return Pod(
        key=key,
        worker=worker,
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        created_at=_text(meta, "creationTimestamp"),
        deleting=meta.get("deletionTimestamp") is not None,
        phase=_text(status, "phase"),
        refused=_said(status.get("reason"), status),
        node=_text(spec, "nodeName") or None,
        scheduled=bool(spec.get("nodeName")) or placed.get("status") == "True",
        scheduling=_condition(placed, "False"),
        disruption=_condition(conditions.get("DisruptionTarget", {}), "True"),
        image=_text(declared, "image"),
        requests=tuple(sorted(_texts(resources.get("requests")).items())),
        memory_limit=_texts(resources.get("limits")).get("memory"),
        init=tuple(_container(each) for each in _list(status.get("initContainerStatuses"))),
        main=_main(_list(status.get("containerStatuses"))),
        grace_s=_number(meta, "deletionGracePeriodSeconds"),
    )


def training_job(raw: Json) -> TrainingJob | None:
    """None: it is none of ours."""
    meta = _of(raw, "metadata")
    labels = _texts(meta.get("labels"))
    key = names.attempt_of(labels)
    if key is None:
        return None
    conditions = [each for each in _list(_of(raw, "status").get("conditions")) if each.get("status") == "True"]
    return TrainingJob(
        key=key,
        name=_text(meta, "name"),
        uid=_text(meta, "uid"),
        created_at=_text(meta, "creationTimestamp"),
        deleting=meta.get("deletionTimestamp") is not None,
        queue=labels.get(names.QUEUE),
        conditions=tuple(
            Said(_text(each, "type"), _text(each, "message"), _text(each, "lastTransitionTime")) for each in conditions
        ),
    )


def event(raw: Json) -> Event:
    """Either form: with a count and first and last time, or with a series."""
    series = _of(raw, "series")
    at = _text(series, "lastObservedTime") or _text(raw, "lastTimestamp") or _text(raw, "eventTime")
    return Event(
        uid=_text(_of(raw, "metadata"), "uid"),
        about=_text(_of(raw, "involvedObject"), "uid"),
        warning=raw.get("type") == "Warning",
        reason=_text(raw, "reason"),
        message=_text(raw, "message"),
        at=at or _text(_of(raw, "metadata"), "creationTimestamp"),
    )


def _main(statuses: Sequence[Json]) -> Container:
    found = next((each for each in statuses if each.get("name") == names.CONTAINER), None)
    return _container(found) if found is not None else Container(names.CONTAINER)


def _container(status: Json) -> Container:
    state = _of(status, "state")
    before = _of(_of(status, "lastState"), "terminated")
    waiting, running, ended = _of(state, "waiting"), _of(state, "running"), _of(state, "terminated")
    return Container(
        name=_text(status, "name"),
        waiting=_said(waiting.get("reason"), waiting) if waiting else None,
        running_since=_text(running, "startedAt") if "running" in state else None,
        ended=_ended(ended) if ended else None,
        image=_text(status, "image"),
        before=_ended(before) if before else None,
    )


def _ended(state: Json) -> Ended:
    code = state.get("exitCode")
    return Ended(
        exit_code=code if isinstance(code, int) else 0,
        reason=_text(state, "reason"),
        message=_text(state, "message"),
        at=_text(state, "finishedAt"),
    )


def _condition(condition: Json, status: str) -> Said | None:
    """Where it has this status."""
    return _said(condition.get("reason", ""), condition) if condition.get("status") == status else None


def _said(word: object, beside: Json) -> Said | None:
    return Said(word, _text(beside, "message"), _text(beside, "lastTransitionTime")) if isinstance(word, str) else None


def _of(raw: Json, key: str) -> Json:
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(raw: Json, key: str) -> str:
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _number(raw: Json, key: str) -> float:
    value = raw.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _texts(value: object) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items()} if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Json]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, Sequence) else []
