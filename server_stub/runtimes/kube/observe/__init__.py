"""Interprets the state of an attempt on the cluster: how far each worker is, and what blocks the start. Pure.

The reports of the workers take precedence over their pods. Conditions of the workload count only while there are no
pods: they are late and contain nothing about ranks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from client_lib.worker.outcome import OUT_OF_MEMORY_BELOW
from client_lib.worker.report import Report
from server_stub.runtimes.kube.catalogue import GangScheduler
from server_stub.runtimes.kube.observe import messages as messages
from server_stub.runtimes.kube.observe.inventory import Container, Event, StatusReason, WorkerPod, Workload, read_digest
from server_stub.runtimes.kube.observe.messages import StatusField, meaning
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.kube.workload import Meaning
from server_stub.runtimes.verdict import Stage, WorkerStatus
from server_stub.worker_gateway import WorkerView

_NOT_CREATED = ("FailedCreatePod", "FailedCreateService", "FailedCreate", "TrainJobResourcesCreationFailed")
_BLOCKING = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "NetworkNotReady")
_FIRST_TROUBLE_S = 15
_WORST_FIRST = (
    Reason.START_FAILED,
    Reason.UNSCHEDULABLE,
    Reason.IMAGE_PULL,
    Reason.CODE_FETCH,
    Reason.STARTING,
    Reason.QUEUED,
)


@dataclass(frozen=True)
class ClusterState:
    n_workers: int
    workload: Workload | None
    pods: tuple[WorkerPod, ...] = ()
    """Its pods, with the last state of those that are gone."""
    events: tuple[Event, ...] = ()
    views: tuple[WorkerView, ...] = ()
    """The reports of the workers by number; () if pods can't reach this server."""
    queue_place: str = ""
    """The place of its suspended workload in a queue, in words; empty: not known."""
    gang_scheduler: GangScheduler = "none"
    """Scheduler that places all of its pods or none."""


class Blocker(NamedTuple):
    """The reason why a gang does not run yet."""

    reason: Reason
    message: str
    permanent: bool = False
    counts_toward_timeout: bool = True
    """False while an image is pulled or the job waits in a queue: the gang then holds no place in vain."""


@dataclass(frozen=True)
class Interpretation:
    workers: tuple[WorkerStatus, ...]
    """The workers by number."""
    infos: tuple[WorkerInfo, ...]
    blocker: Blocker
    """Reason why the attempt does not run yet, if it does not."""
    unknown: tuple[str, ...] = ()
    """Messages about status words that the table lacks."""
    images: tuple[str, ...] = ()
    """Digests of the images that the workers run."""


def observe(state: ClusterState) -> Interpretation:
    """Interpret a state; every state has an interpretation."""
    events = defaultdict[str, list[Event]](list)
    for event in state.events:
        events[event.about].append(event)
    pods = [_pod_of(state, number) for number in range(state.n_workers)]
    workers = tuple(_worker(state, number, pod) for number, pod in enumerate(pods))
    blockers = [_blocker_of(worker, pod, events) for worker, pod in zip(workers, pods, strict=True)]
    if state.gang_scheduler != "none":
        blockers = [_in_group(each, pod, state) for each, pod in zip(blockers, pods, strict=True)]
    return Interpretation(
        workers=workers,
        infos=tuple(_info(*each) for each in zip(workers, pods, blockers, strict=True)),
        blocker=_worst(state, workers, pods, blockers, events),
        unknown=tuple(dict.fromkeys(_unknown(state))),
        images=tuple(sorted({pod.main.digest for pod in pods if pod is not None and pod.main.digest})),
    )


# --- one worker


def _pod_of(state: ClusterState, number: int) -> WorkerPod | None:
    """The pod of the worker: the one that reported first, else the newest."""
    mine = [pod for pod in state.pods if pod.worker == number]
    owner = state.views[number].pod_uid if number < len(state.views) else None
    return max(mine, key=lambda pod: (pod.uid == owner, not pod.gone, pod.created_at, pod.uid), default=None)


def _worker(state: ClusterState, number: int, pod: WorkerPod | None) -> WorkerStatus:
    view = state.views[number] if number < len(state.views) else WorkerView(number)
    host = (pod.node if pod else None) or ""
    if view.report is not None:
        return WorkerStatus(number, Stage.ENDED, host, _judged(view.report, number, pod))
    if pod is not None and pod.over:
        return _over(number, pod, host, claimed=view.pod_uid == pod.uid or not state.views)
    if pod is not None and view.pod_uid not in (None, pod.uid):
        why = f"the pod of worker {number} was replaced: a worker that ran can't start again within an attempt"
        return WorkerStatus(number, Stage.LOST, host, None, why, Reason.PREEMPTED)
    if view.displaced or (view.pod_uid is not None and pod is not None and pod.main.crashes):
        return WorkerStatus(number, Stage.LOST, host, None, *_restarted(number, pod))
    if not state.views and pod is not None and pod.main.running_since is not None:
        return WorkerStatus(number, Stage.STARTED, host)
    stage = _STAGES.get(view.state or "preparing", Stage.STARTING)
    return WorkerStatus(number, stage, host, quiet=view.quiet)


_STAGES = {"ready": Stage.READY, "started": Stage.STARTED, "ended": Stage.STARTED}


def _restarted(number: int, pod: WorkerPod | None) -> tuple[str, Reason]:
    """Message and reason for a container that ended and was restarted, or is about to be."""
    before = pod.main.before if pod is not None else None
    if pod is None or before is None:
        return f"worker {number} was lost: another pod has replaced it", Reason.PREEMPTED
    word, why = _cause(number, replace(pod, main=replace(pod.main, ended=before)))
    return why, word.reason


def _over(number: int, pod: WorkerPod, host: str, *, claimed: bool) -> WorkerStatus:
    """The worker of a pod that ended or went away without a report, by the digest in its termination message."""
    ended = pod.main.ended
    digest = read_digest(ended.message) if ended else None
    if digest is not None:
        return WorkerStatus(number, Stage.ENDED, host, _judged(digest, number, pod))
    if ended is None and pod.gone and not claimed and pod.disruption is None and pod.refused is None:
        return WorkerStatus(number, Stage.STARTING, host)  # it never reported: another one replaces it
    word, why = _cause(number, pod)
    return WorkerStatus(number, Stage.LOST, host, None, why, word.reason)


def _cause(number: int, pod: WorkerPod) -> tuple[Meaning, str]:
    """Meaning and message for a worker that ended without a report."""
    ended = pod.main.ended
    if pod.disruption is not None:
        word = meaning(StatusField.DISRUPTION, pod.disruption.word)
        return word, f"worker {number} was taken away{_from(pod)}: {_words(pod.disruption)}"
    if pod.refused is not None:
        excess = messages.disk_excess(pod.refused.text, storage.EMPTY_DIRS)
        word = Meaning(Reason.STORAGE_FULL) if excess else meaning(StatusField.REFUSED, pod.refused.word)
        return word, f"worker {number} was ended{_from(pod, 'on')}: {excess or _words(pod.refused)}"
    if ended is not None:
        word = meaning(StatusField.ENDED, ended.reason)
        return word, _container_end(number, pod, word)
    if pod.unanswered:
        return Meaning(Reason.NODE_LOST), f"worker {number} was lost{_from(pod, 'with')}: its pod can't be ended there"
    failed = next((each for each in pod.init if each.ended and each.ended.exit_code), None)
    if failed is not None and failed.ended is not None:
        why = messages.shortened(failed.ended.message) or "it waits there for worker 0's name in the cluster's DNS"
        text = f"worker {number}: its init container {failed.name} ended with {failed.ended.exit_code}: {why}"
        return Meaning(Reason.START_FAILED), text
    return Meaning(Reason.DELETED_EXTERNALLY), f"the pod of worker {number} was deleted by someone else"


def _container_end(number: int, pod: WorkerPod, word: Meaning) -> str:
    ended = pod.main.ended
    assert ended is not None
    if word.reason is Reason.OUT_OF_MEMORY:
        return messages.out_of_memory(number, pod.memory_limit)
    if word.reason is Reason.START_FAILED:
        return messages.no_program(ended.message, pod.image) or messages.shortened(
            f"worker {number} could not be started: {ended.message or ended.reason}"
        )
    said = f": {messages.shortened(ended.message)}" if ended.message else ""
    return f"worker {number} ended with exit code {ended.exit_code} and left no report{said}"


def _judged(report: Report, number: int, pod: WorkerPod | None) -> Report:
    """The report, with OutOfMemory as its reason if a rank was killed and the container ran out of memory."""
    if pod is None:
        return report
    killed = pod.main.ended is not None and pod.main.ended.reason == "OOMKilled"
    reason, message = report.get("reason"), str(report.get("message"))
    if (killed and reason == Reason.SIGNAL) or (pod.memory_limit and reason == Reason.OUT_OF_MEMORY):
        text = messages.out_of_memory(number, pod.memory_limit)
        return {**report, "reason": Reason.OUT_OF_MEMORY.value, "message": text}
    if killed and reason == Reason.EXIT_CODE and OUT_OF_MEMORY_BELOW not in message:
        return {**report, "message": f"{message}; {OUT_OF_MEMORY_BELOW}"}  # the launcher could not read the counter
    return report


def _info(worker: WorkerStatus, pod: WorkerPod | None, blocker: Blocker | None) -> WorkerInfo:
    host = worker.host or None
    if worker.stage is not Stage.STARTING:
        return worker.info(host=host)
    state = "starting" if pod is not None and pod.scheduled else "waiting"
    return worker.info(host=host, state=state, message=blocker.message if blocker else None)


def taken_away(state: ClusterState, workload_name: str) -> tuple[Reason, str]:
    """Reason and message for workers that this server did not stop; evaluate it when the first of them stops.

    `workload_name` has the kind: `PyTorchJob train`.
    """
    for pod in state.pods:
        if pod.disruption is not None or pod.refused is not None:
            word, why = _cause(pod.worker, pod)
            return word.reason, why
    if state.workload is None or state.workload.deleting:
        return Reason.DELETED_EXTERNALLY, f"{workload_name} was deleted by someone else"
    if state.workload.suspended and state.workload.queue is not None:
        uid = state.workload.uid
        event = _newest(state.events, lambda event: event.about == uid and event.reason == "Stopped")
        text = f"Kueue has taken its place in queue {state.workload.queue} back"
        return Reason.PREEMPTED, messages.shortened(f"{text}: {event.message}" if event else text)
    deleted = [pod for pod in state.pods if pod.gone or pod.deleting]
    if deleted:  # the operator removes the other pods after the first has failed
        first = min(pod.ends_by for pod in deleted)
        which = messages.listed(sorted({pod.worker for pod in deleted if pod.ends_by == first}), state.n_workers)
        return Reason.DELETED_EXTERNALLY, f"the pod of {which} was deleted by someone else"
    return Reason.DELETED_EXTERNALLY, "its processes were stopped from outside"


# --- what blocks the start


def _blocker_of(worker: WorkerStatus, pod: WorkerPod | None, events: Mapping[str, Sequence[Event]]) -> Blocker | None:
    """The blocker of one worker that does not run yet; None: there is none, or it has no pod."""
    if worker.stage is not Stage.STARTING or pod is None or pod.over:
        return None
    about = events.get(pod.uid, ())
    if pod.scheduling is not None and not pod.scheduled:
        text = messages.unschedulable(pod.scheduling.text, dict(pod.requests), pod.created_at)
        return Blocker(meaning(StatusField.SCHEDULING, pod.scheduling.word).reason, text or _words(pod.scheduling))
    if not pod.scheduled:
        return Blocker(Reason.QUEUED, "waits for a node")
    held = next((each for each in (*pod.init, pod.main) if each.waiting is not None), None)
    if held is not None and held.waiting is not None:
        return _held_up(pod, held, held.waiting, about)
    return None


def _in_group(blocker: Blocker | None, pod: WorkerPod | None, state: ClusterState) -> Blocker | None:
    """The blocker of a worker of a PodGroup: one that waits for a node holds no place."""
    if blocker is None or pod is None or pod.scheduled or blocker.permanent:
        return blocker
    text = f"its PodGroup waits until {state.gang_scheduler} finds places for all workers: {blocker.message}"
    return blocker._replace(message=messages.shortened(text), counts_toward_timeout=False)


def _held_up(pod: WorkerPod, container: Container, waiting: StatusReason, about: Sequence[Event]) -> Blocker:
    word = meaning(StatusField.WAITING, waiting.word)
    if word.reason is Reason.IMAGE_PULL or word.permanent:
        secrets = _newest(about, lambda event: event.reason == "FailedToRetrieveImagePullSecret")
        image = pod.image if container is pod.main else container.image
        text = messages.cannot_pull(image, waiting.text, secrets.message if secrets else "")
        if container is not pod.main:
            text += f"; the training operator's container {container.name} is to run it"
        return Blocker(word.reason, text, word.permanent)
    if waiting.word in ("ContainerCreating", "PodInitializing", ""):
        return _being_made(pod, about)
    return Blocker(word.reason, f"worker {pod.worker}, container {container.name}: {_words(waiting)}")


def _being_made(pod: WorkerPod, about: Sequence[Event]) -> Blocker:
    blocked = _newest(about, lambda event: event.reason in _BLOCKING)
    if blocked is not None:
        begun, seen = messages.moment(pod.created_at), messages.moment(blocked.at)
        lasts = begun is None or seen is None or (seen - begun).total_seconds() > _FIRST_TROUBLE_S
        if lasts:  # a mounted object may be created a moment after the pod
            return Blocker(Reason.STARTING, messages.shortened(f"worker {pod.worker}: {blocked.message}"))
    pulling = _newest(about, lambda event: event.reason in ("Pulling", "Pulled"))
    if pulling is not None and pulling.reason == "Pulling":
        image = messages.pulled_image(pulling.message) or pod.image
        text = f"image '{image}' is being pulled{_from(pod, 'on')}{messages.waits_since(pulling.at)}"
        return Blocker(Reason.IMAGE_PULL, text, counts_toward_timeout=False)
    return Blocker(Reason.STARTING, f"worker {pod.worker} is being started{_from(pod, 'on')}")


def _worst(
    state: ClusterState,
    workers: Sequence[WorkerStatus],
    pods: Sequence[WorkerPod | None],
    blockers: Sequence[Blocker | None],
    events: Mapping[str, Sequence[Event]],
) -> Blocker:
    """The worst blocker, which a human wants to read first."""
    found = [each for each in blockers if each is not None]
    missing = sum(pod is None for pod in pods)
    if missing:
        found.append(_no_pods(state, missing, events))
    if not found:
        return Blocker(Reason.STARTING, _prepared(workers))
    worst = min(found, key=_severity)
    if worst.reason is not Reason.STARTING or worst.permanent:
        return worst
    return worst._replace(message=f"{_prepared(workers)}; {worst.message}")


def _severity(blocker: Blocker) -> tuple[bool, int, bool]:
    place = _WORST_FIRST.index(blocker.reason) if blocker.reason in _WORST_FIRST else len(_WORST_FIRST)
    return not blocker.permanent, place, not blocker.counts_toward_timeout


def _prepared(workers: Sequence[WorkerStatus]) -> str:
    prepared = sum(worker.stage is not Stage.STARTING for worker in workers)
    return f"{prepared} of {len(workers)} workers are prepared"


def _no_pods(state: ClusterState, missing: int, events: Mapping[str, Sequence[Event]]) -> Blocker:
    workload = state.workload
    if workload is None:
        return Blocker(Reason.QUEUED, "")
    for condition, meant in workload.conditions:
        if meant.permanent:
            text = f"the operator has given the {workload.kind} up: {_words(condition)}"
            return Blocker(meant.reason, text, permanent=True)
    if workload.suspended:
        queue = f"waits for queue {workload.queue}" if workload.queue else "waits for being resumed"
        since = next((each.at for each, _ in workload.conditions if each.word == "Suspended"), workload.created_at)
        text = f"{state.queue_place or queue}{messages.waits_since(since)}"
        return Blocker(Reason.QUEUED, text, counts_toward_timeout=False)
    failed = _newest(events.get(workload.uid, ()), lambda event: event.reason in _NOT_CREATED)
    if failed is not None:
        text, permanent = messages.not_created(failed.message, state.n_workers, state.n_workers - missing)
        return Blocker(Reason.START_FAILED if permanent else Reason.UNSCHEDULABLE, text, permanent)
    since = messages.waits_since(workload.created_at)
    if state.gang_scheduler != "none":
        waits = _newest(events.get(workload.uid, ()), lambda event: event.part == f"PodGroup/{workload.name}")
        text = f"its PodGroup waits for {state.gang_scheduler}{f': {waits.message}' if waits else ''}"
        return Blocker(Reason.QUEUED, messages.shortened(text) + since, counts_toward_timeout=False)
    return Blocker(Reason.QUEUED, f"the operator has made no pod yet{since}")


# --- small


def _unknown(state: ClusterState) -> Iterator[str]:
    """Messages about unknown words in the state."""
    workload = state.workload
    if workload is not None:
        for condition, meant in workload.conditions:
            if not meant.known:
                yield _unknown_word(condition.word, "job", workload.kind)
    for pod in state.pods:
        found = [(StatusField.WAITING, each.waiting) for each in (*pod.init, pod.main)]
        found += [(StatusField.SCHEDULING, pod.scheduling), (StatusField.REFUSED, pod.refused)]
        found.append((StatusField.DISRUPTION, pod.disruption))
        found.append((StatusField.ENDED, StatusReason(pod.main.ended.reason) if pod.main.ended else None))
        for field_, reason in found:
            if reason is not None and not meaning(field_, reason.word).known:
                yield _unknown_word(reason.word, field_.name.lower(), "pod")


def _unknown_word(word: str, where: str, what: str) -> str:
    return f"Kubernetes says '{word}' ({where}) of a {what}, a word that this server does not know"


def _newest(events: Sequence[Event], wanted: Callable[[Event], bool]) -> Event | None:
    return max((event for event in events if wanted(event)), key=lambda event: event.at, default=None)


def _words(said: StatusReason) -> str:
    return messages.shortened(said.text or said.word)


def _from(pod: WorkerPod, word: str = "from") -> str:
    return f" {word} node {pod.node}" if pod.node else ""
