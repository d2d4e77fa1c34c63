"""Interprets the state of an attempt on the cluster: how far each worker is, and what blocks the
start. Pure.

The reports of the workers take precedence over their pods. Conditions of the workload count only
while there are no pods: they are late and contain nothing about ranks.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from client_lib.launcher_protocol.outcome import OUT_OF_MEMORY_BELOW
from client_lib.launcher_protocol.report import Report
from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.runtimes.kube.catalogue import GangScheduler
from server_stub.runtimes.kube.observe import messages as messages
from server_stub.runtimes.kube.observe.inventory import (
    Event,
    StatusReason,
    WorkerPod,
    Workload,
    read_digest,
)
from server_stub.runtimes.kube.observe.messages import Blocker
from server_stub.runtimes.kube.observe.reasons import NO_IMAGE_NAME, StatusField, is_known, meaning
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.verdict import Stage, WorkerStatus
from server_stub.worker_gateway.worker import WorkerView

_NOT_CREATED = (
    "FailedCreatePod",
    "FailedCreateService",
    "FailedCreate",
    "TrainJobResourcesCreationFailed",
)
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
_STAGES = {"ready": Stage.READY, "started": Stage.STARTED, "ended": Stage.STARTED}
"""Stages by the state that the agent has reported."""


@dataclass(frozen=True)
class ClusterState:
    n_workers: int
    workload: Workload | None
    pods: tuple[WorkerPod, ...] = ()
    """The pods of the attempt; a pod that is gone has its last state."""
    events: tuple[Event, ...] = ()
    views: tuple[WorkerView, ...] = ()
    """The reports of the workers by number; () if pods can't reach this server."""
    queue_place: str = ""
    """The place of its suspended workload in a queue, in words; empty: not known."""
    gang_scheduler: GangScheduler = "none"
    """Scheduler that places all of its pods or none."""

    @cached_property
    def events_about(self) -> Mapping[str, Sequence[Event]]:
        """The events by the UID of the object that they are about."""
        found = defaultdict[str, list[Event]](list)
        for event in self.events:
            found[event.about].append(event)
        return found

    def newest(self, uid: str, *reasons: str) -> Event | None:
        """The newest event about this object with one of these reasons."""
        found = [event for event in self.events_about.get(uid, ()) if event.reason in reasons]
        return max(found, key=lambda event: event.at, default=None)


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
    pods = [_pod_of(state, number) for number in range(state.n_workers)]
    workers = tuple(_worker(state, number, pod) for number, pod in enumerate(pods))
    blockers = [_blocker_of(worker, pod, state) for worker, pod in zip(workers, pods, strict=True)]
    infos = []
    for worker, pod, blocker in zip(workers, pods, blockers, strict=True):
        known: dict[str, Any] = {"host": worker.host or None}
        if worker.stage is Stage.STARTING:
            known["state"] = "starting" if pod is not None and pod.scheduled else "waiting"
            known["message"] = blocker.message if blocker else None
        infos.append(worker.info(**known))
    return Interpretation(
        workers=workers,
        infos=tuple(infos),
        blocker=_worst(state, workers, pods, blockers),
        unknown=tuple(dict.fromkeys(_unknown(state))),
        images=tuple(
            sorted({pod.main.digest for pod in pods if pod is not None and pod.main.digest})
        ),
    )


# --- one worker


def _pod_of(state: ClusterState, number: int) -> WorkerPod | None:
    """The pod of the worker: the pod that reported first, else the newest."""
    mine = [pod for pod in state.pods if pod.worker == number]
    owner = state.views[number].pod_uid if number < len(state.views) else None
    return max(
        mine,
        key=lambda pod: (pod.uid == owner, not pod.gone, pod.created_at, pod.uid),
        default=None,
    )


def _worker(state: ClusterState, number: int, pod: WorkerPod | None) -> WorkerStatus:
    view = state.views[number] if number < len(state.views) else WorkerView(number)
    host = pod.node if pod else ""

    def lost(reason: Reason, why: str) -> WorkerStatus:
        return WorkerStatus(number, Stage.LOST, host, None, why, reason)

    if view.report is not None:
        return WorkerStatus(number, Stage.ENDED, host, _judged(view.report, number, pod))
    if pod is not None and pod.over:
        ended = pod.main.ended
        if ended is not None and (digest := read_digest(ended.text)) is not None:
            return WorkerStatus(number, Stage.ENDED, host, _judged(digest, number, pod))
        claimed = view.pod_uid == pod.uid or not state.views
        if pod.gone and not (claimed or ended or pod.disruption or pod.refused):
            # it never reported: another one replaces it
            return WorkerStatus(number, Stage.STARTING, host)
        return lost(*_cause(number, pod))
    if pod is not None and view.pod_uid not in (None, pod.uid):
        why = (
            f"the pod of worker {number} was replaced: a worker that ran can't start again within "
            "an attempt"
        )
        return lost(Reason.PREEMPTED, why)
    if pod is not None and pod.main.before is not None and view.pod_uid is None:
        # of an elastic job: an agent that never reached this server is started again
        digest = read_digest(pod.main.before.text)
        if digest is not None:
            return WorkerStatus(number, Stage.ENDED, host, _judged(digest, number, pod))
    # a container that ended and was restarted, or is about to be: the kubelet delays a restart
    # after several
    crashes = (
        pod is not None
        and pod.main.waiting is not None
        and pod.main.waiting.word == "CrashLoopBackOff"
    )
    if view.displaced or (view.pod_uid is not None and crashes):
        if pod is None or pod.main.before is None:
            return lost(Reason.PREEMPTED, f"worker {number} was lost: another pod has replaced it")
        return lost(*_cause(number, replace(pod, main=replace(pod.main, ended=pod.main.before))))
    if not state.views and pod is not None and pod.main.running_since is not None:
        return WorkerStatus(number, Stage.STARTED, host)
    return WorkerStatus(
        number, _STAGES.get(view.state or "", Stage.STARTING), host, quiet=view.quiet
    )


def _cause(number: int, pod: WorkerPod) -> tuple[Reason, str]:
    """Reason and message for a worker that ended without a report."""
    ended = pod.main.ended
    if pod.disruption is not None:
        why = f"worker {number} was taken away{_from(pod)}: {_words(pod.disruption)}"
        return meaning("disruption", pod.disruption.word), why
    if pod.refused is not None:
        excess = messages.disk_excess(pod.refused.text, storage.EMPTY_DIRS)
        reason = Reason.STORAGE_FULL if excess else meaning("refused", pod.refused.word)
        return (
            reason,
            f"worker {number} was ended{_from(pod, 'on')}: {excess or _words(pod.refused)}",
        )
    if ended is not None:
        reason = meaning("ended", ended.word)
        if reason is Reason.OUT_OF_MEMORY:
            return reason, messages.out_of_memory(number, pod.memory_limit)
        if reason is Reason.START_FAILED:
            why = f"worker {number} could not be started: {_words(ended)}"
            return reason, messages.no_program(ended.text, pod.image) or why
        said = f": {messages.shortened(ended.text)}" if ended.text else ""
        return (
            reason,
            f"worker {number} ended with exit code {ended.exit_code} and left no report{said}",
        )
    if pod.unanswered:
        return (
            Reason.NODE_LOST,
            f"worker {number} was lost{_from(pod, 'with')}: its pod can't be ended there",
        )
    for init in pod.init:
        if init.ended is not None and init.ended.exit_code:
            why = (
                messages.shortened(init.ended.text)
                or "it waits there for worker 0's name in the cluster's DNS"
            )
            text = (
                f"worker {number}: its init container {init.name} ended with "
                f"{init.ended.exit_code}: {why}"
            )
            return Reason.START_FAILED, text
    return Reason.DELETED_EXTERNALLY, f"the pod of worker {number} was deleted by someone else"


def _judged(report: Report, number: int, pod: WorkerPod | None) -> Report:
    """The report, with OutOfMemory as its reason if a rank was killed and the
    container ran out of memory.
    """
    if pod is None:
        return report
    killed = pod.main.ended is not None and pod.main.ended.word == "OOMKilled"
    reason = report.get("reason")
    message = str(report.get("message"))
    tells_of_child = OUT_OF_MEMORY_BELOW in message
    if (killed and reason == Reason.SIGNAL) or (
        pod.memory_limit and reason == Reason.OUT_OF_MEMORY and not tells_of_child
    ):
        text = messages.out_of_memory(number, pod.memory_limit)
        return {**report, "reason": Reason.OUT_OF_MEMORY.value, "message": text}
    if killed and reason == Reason.EXIT_CODE:  # the launcher could not read the counter
        text = message if tells_of_child else f"{message}; {OUT_OF_MEMORY_BELOW}"
        return {**report, "reason": Reason.OUT_OF_MEMORY.value, "message": text}
    return report


def taken_away(state: ClusterState, workload_name: str) -> tuple[Reason, str]:
    """Reason and message for workers that this server did not stop; evaluate it when the first of
    them stops.

    `workload_name` has the kind: `PyTorchJob train`.
    """
    for pod in state.pods:
        if pod.disruption is not None or pod.refused is not None:
            return _cause(pod.worker, pod)
    workload = state.workload
    if workload is None or workload.deleting:
        return Reason.DELETED_EXTERNALLY, f"{workload_name} was deleted by someone else"
    if workload.suspended and workload.queue is not None:
        text = f"Kueue has taken its place in queue {workload.queue} back"
        event = state.newest(workload.uid, "Stopped")
        return Reason.PREEMPTED, messages.shortened(f"{text}: {event.message}" if event else text)
    deleted = [pod for pod in state.pods if pod.gone or pod.deleting]
    if deleted:  # the operator removes the other pods after the first has failed
        first = min(pod.ends_by for pod in deleted)
        which = messages.listed(
            sorted({pod.worker for pod in deleted if pod.ends_by == first}), state.n_workers
        )
        return Reason.DELETED_EXTERNALLY, f"the pod of {which} was deleted by someone else"
    return Reason.DELETED_EXTERNALLY, "its processes were stopped from outside"


# --- what blocks the start


def _blocker_of(worker: WorkerStatus, pod: WorkerPod | None, state: ClusterState) -> Blocker | None:
    """Find what keeps a worker from running; None: nothing does, or the worker has no pod."""
    if worker.stage is not Stage.STARTING or pod is None or pod.over:
        return None
    if pod.scheduled:
        return _unstarted_container(pod, state)
    blocker = Blocker(Reason.QUEUED, "waits for a node")
    if pod.scheduling is not None:
        text = messages.unschedulable(pod.scheduling.text, pod.requests, pod.created_at)
        blocker = Blocker(
            meaning("scheduling", pod.scheduling.word), text or _words(pod.scheduling)
        )
    if state.gang_scheduler == "none":
        return blocker
    text = (
        f"its PodGroup waits until {state.gang_scheduler} finds places for all workers: "
        f"{blocker.message}"
    )
    # it holds no place
    return blocker._replace(message=messages.shortened(text), counts_toward_timeout=False)


def _unstarted_container(pod: WorkerPod, state: ClusterState) -> Blocker | None:
    """The blocker of a pod that has a node, by its first container that waits."""
    container = next((each for each in (*pod.init, pod.main) if each.waiting is not None), None)
    if container is None or container.waiting is None:
        return None
    word = container.waiting.word
    reason = meaning("waiting", container.waiting.word)
    if reason in (Reason.IMAGE_PULL, Reason.START_FAILED):
        secrets = state.newest(pod.uid, "FailedToRetrieveImagePullSecret")
        image = pod.image if container is pod.main else container.image
        text = messages.cannot_pull(
            image, container.waiting.text, secrets.message if secrets else ""
        )
        if container is not pod.main:
            text += f"; the training operator's container {container.name} is to run it"
        return Blocker(reason, text, permanent=word == NO_IMAGE_NAME)
    if word not in ("ContainerCreating", "PodInitializing", ""):
        return Blocker(
            reason, f"worker {pod.worker}, container {container.name}: {_words(container.waiting)}"
        )
    if blocked := state.newest(pod.uid, *_BLOCKING):
        begun = messages.moment(pod.created_at)
        seen = messages.moment(blocked.at)
        lasts = begun is None or seen is None or (seen - begun).total_seconds() > _FIRST_TROUBLE_S
        if lasts:  # a mounted object may be created a moment after the pod
            return Blocker(
                Reason.STARTING, messages.shortened(f"worker {pod.worker}: {blocked.message}")
            )
    pulling = state.newest(pod.uid, "Pulling", "Pulled")
    if pulling is not None and pulling.reason == "Pulling":
        # The image of any container of the pod.
        image = pulling.message.partition('"')[2].partition('"')[0] or pod.image
        text = (
            f"image '{image}' is being pulled{_from(pod, 'on')}{messages.waits_since(pulling.at)}"
        )
        return Blocker(Reason.IMAGE_PULL, text, counts_toward_timeout=False)
    return Blocker(Reason.STARTING, f"worker {pod.worker} is being started{_from(pod, 'on')}")


def _worst(
    state: ClusterState,
    workers: Sequence[WorkerStatus],
    pods: Sequence[WorkerPod | None],
    blockers: Sequence[Blocker | None],
) -> Blocker:
    """The worst blocker, which a human wants to read first."""

    def severity(blocker: Blocker) -> tuple[bool, int, bool]:
        place = (
            _WORST_FIRST.index(blocker.reason)
            if blocker.reason in _WORST_FIRST
            else len(_WORST_FIRST)
        )
        return not blocker.permanent, place, not blocker.counts_toward_timeout

    found = [each for each in blockers if each is not None]
    if missing := [number for number, pod in enumerate(pods) if pod is None]:
        found.append(_no_pods(state, missing))
    prepared = sum(worker.stage is not Stage.STARTING for worker in workers)
    progress = f"{prepared} of {len(workers)} workers are prepared"
    if not found:
        # the agent of such a worker ends by itself, and says which address does not answer
        unheard = any(
            view.pod_uid is None and worker.stage is Stage.STARTING
            for view, worker in zip(state.views, workers, strict=False)
        )
        return Blocker(Reason.STARTING, progress, counts_toward_timeout=not unheard)
    worst = min(found, key=severity)
    if worst.reason is not Reason.STARTING or worst.permanent:
        return worst
    return worst._replace(message=f"{progress}; {worst.message}")


def _no_pods(state: ClusterState, missing: Sequence[int]) -> Blocker:
    """The blocker of workers that have no pod."""
    workload = state.workload
    if workload is None:
        return Blocker(Reason.QUEUED, "")
    for condition in workload.conditions:
        if reason := workload.kind.conditions.get(condition.word):
            text = f"the operator has given the {workload.kind.name} up: {_words(condition)}"
            had_pods = any(words in condition.text for words in workload.kind.pods_failed) or any(
                view.pod_uid is not None for view in state.views
            )
            if reason is Reason.LAUNCHER_LOST and had_pods:
                # a pod whose worker has failed stays, with the report of the worker
                reason = Reason.PREEMPTED
                text = f"{_lost_pods(missing, state.n_workers)}, as by a drain of a node; {text}"
            return Blocker(reason, text, permanent=True)
    if workload.suspended:
        queue = f"waits for queue {workload.queue}" if workload.queue else "waits for being resumed"
        since = next(
            (each.at for each in workload.conditions if each.word == "Suspended"),
            workload.created_at,
        )
        text = f"{state.queue_place or queue}{messages.waits_since(since)}"
        return Blocker(Reason.QUEUED, text, counts_toward_timeout=False)
    if failed := state.newest(workload.uid, *_NOT_CREATED):
        return messages.not_created(failed.message, state.n_workers, state.n_workers - len(missing))
    since = messages.waits_since(workload.created_at)
    if state.gang_scheduler != "none":
        group = f"PodGroup/{workload.name}"
        about = [event for event in state.events_about.get(workload.uid, ()) if event.part == group]
        waits = max(about, key=lambda event: event.at, default=None)
        text = (
            f"its PodGroup waits for {state.gang_scheduler}{f': {waits.message}' if waits else ''}"
        )
        return Blocker(Reason.QUEUED, messages.shortened(text) + since, counts_toward_timeout=False)
    return Blocker(Reason.QUEUED, f"the operator has made no pod yet{since}")


def _lost_pods(workers: Sequence[int], of: int) -> str:
    pods = "its pod" if len(workers) == 1 else "their pods"
    return f"{messages.listed(workers, of)} lost {pods}"


# --- small


def _unknown(state: ClusterState) -> Iterator[str]:
    """Messages about unknown words in the state."""
    text = "Kubernetes says '{}' ({}) of a {}, a word that this server does not know"
    if state.workload is not None:
        kind = state.workload.kind
        for condition in state.workload.conditions:
            if condition.word not in kind.conditions:
                yield text.format(condition.word, "job", kind.name)
    for pod in state.pods:
        found: list[tuple[StatusField, StatusReason | None]] = [
            *(("waiting", each.waiting) for each in (*pod.init, pod.main)),
            ("scheduling", pod.scheduling),
            ("refused", pod.refused),
            ("disruption", pod.disruption),
            ("ended", pod.main.ended),
        ]
        for field, reason in found:
            if reason is not None and not is_known(field, reason.word):
                yield text.format(reason.word, field, "pod")


def _words(said: StatusReason) -> str:
    return messages.shortened(said.text or said.word)


def _from(pod: WorkerPod, word: str = "from") -> str:
    return f" {word} node {pod.node}" if pod.node else ""
