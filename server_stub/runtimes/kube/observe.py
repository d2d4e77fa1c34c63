"""What a PyTorchJob, its pods, its events and the words of its workers mean: what to show, what to do next. Pure.

The truth comes from the workers' reports first, from their pods second, and from the operator's conditions only while
there are no pods: they come late, and know nothing of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from client_lib.spec.states import Reason
from client_lib.spec.wire import WorkerInfo
from server_stub.runtimes.kube import sentences
from server_stub.runtimes.kube.digest import read_digest
from server_stub.runtimes.kube.facts import Container, Event, Pod, Said, TrainingJob
from server_stub.runtimes.kube.words import Kind, Word, meaning
from server_stub.runtimes.verdict import Stage, Worker
from server_stub.workers import WorkerView

_NOT_CREATED = ("FailedCreatePod", "FailedCreateService")
_IN_THE_WAY = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "NetworkNotReady")
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
class Sight:
    """All that is known of one attempt."""

    n_workers: int
    job: TrainingJob | None
    pods: tuple[Pod, ...] = ()
    """Those that are gone, too, as they were seen last."""
    events: tuple[Event, ...] = ()
    views: tuple[WorkerView, ...] = ()
    """What the workers said; (): pods can't reach this server, and nobody says anything."""


class Obstacle(NamedTuple):
    """What keeps a gang from running."""

    reason: Reason
    message: str
    hopeless: bool = False
    counts: bool = True
    """Its time is that of a gang that holds its place in vain; not so while an image is pulled, or in a queue."""


@dataclass(frozen=True)
class Seen:
    """What a sight means."""

    workers: tuple[Worker, ...]
    """By number."""
    infos: tuple[WorkerInfo, ...]
    obstacle: Obstacle
    """Why it doesn't run yet, where it doesn't."""
    unknown: tuple[str, ...] = field(default=())
    """Sentences about words that our table lacks."""


def observe(sight: Sight) -> Seen:
    """Total: any sight means something."""
    events = _by_object(sight.events)
    pods = [_pod_of(sight, number) for number in range(sight.n_workers)]
    workers = tuple(_worker(sight, number, pod) for number, pod in enumerate(pods))
    obstacles = [_in_the_way_of(worker, pod, events) for worker, pod in zip(workers, pods, strict=True)]
    return Seen(
        workers=workers,
        infos=tuple(_info(*each) for each in zip(workers, pods, obstacles, strict=True)),
        obstacle=_obstacle(sight, workers, pods, obstacles, events),
        unknown=tuple(dict.fromkeys(text for said in _said(sight) for text in _unknown(*said))),
    )


# --- one worker


def _pod_of(sight: Sight, number: int) -> Pod | None:
    """The pod that owns the worker's place: the first that spoke, else the newest."""
    mine = [pod for pod in sight.pods if pod.worker == number]
    owner = sight.views[number].pod_uid if number < len(sight.views) else None
    return max(mine, key=lambda pod: (pod.uid == owner, not pod.gone, pod.created_at, pod.uid), default=None)


def _worker(sight: Sight, number: int, pod: Pod | None) -> Worker:
    view = sight.views[number] if number < len(sight.views) else WorkerView(number)
    host = (pod.node if pod else None) or ""
    if view.report is not None:
        return Worker(number, Stage.ENDED, host, _judged(view.report, number, pod))
    if pod is not None and pod.over:
        return _over(number, pod, host, claimed=view.pod_uid == pod.uid or not sight.views)
    if pod is not None and view.pod_uid not in (None, pod.uid):
        why = f"the pod of worker {number} was replaced: a worker that ran can't start again within an attempt"
        return Worker(number, Stage.LOST, host, None, why, Reason.PREEMPTED)
    if view.displaced or (view.pod_uid is not None and pod is not None and pod.main.crashes):
        return Worker(number, Stage.LOST, host, None, *_restarted(number, pod))
    if not sight.views and pod is not None and pod.main.running_since is not None:
        return Worker(number, Stage.STARTED, host)
    return Worker(number, _STAGES.get(view.state or "preparing", Stage.STARTING), host)


_STAGES = {"ready": Stage.READY, "started": Stage.STARTED, "ended": Stage.STARTED}


def _restarted(number: int, pod: Pod | None) -> tuple[str, Reason]:
    """Why the container of a worker ended that was, or is about to be, started again."""
    before = pod.main.before if pod is not None else None
    if pod is None or before is None:
        return f"worker {number} was lost: another pod has come in its place", Reason.PREEMPTED
    word, why = _cause(number, replace(pod, main=replace(pod.main, ended=before)))
    return why, word.reason


def _over(number: int, pod: Pod, host: str, *, claimed: bool) -> Worker:
    """Its pod ended or went away without a report: the digest in its termination message is the next best."""
    ended = pod.main.ended
    digest = read_digest(ended.message) if ended else None
    if digest is not None:
        return Worker(number, Stage.ENDED, host, _judged(digest, number, pod))
    if ended is None and pod.gone and not claimed and pod.disruption is None and pod.refused is None:
        return Worker(number, Stage.STARTING, host)  # it never said a word: another one takes its place
    word, why = _cause(number, pod)
    return Worker(number, Stage.LOST, host, None, why, word.reason)


def _cause(number: int, pod: Pod) -> tuple[Word, str]:
    """Why a worker ended without a word."""
    ended = pod.main.ended
    if pod.disruption is not None:
        word = meaning(Kind.DISRUPTION, pod.disruption.word)
        return word, f"worker {number} was taken away{_from(pod)}: {_words(pod.disruption)}"
    if pod.refused is not None:
        word = meaning(Kind.REFUSED, pod.refused.word)
        return word, f"worker {number} was ended{_from(pod)}: {_words(pod.refused)}"
    if ended is not None:
        word = meaning(Kind.ENDED, ended.reason)
        return word, _container_end(number, pod, word)
    if pod.unanswered:
        return Word(Reason.NODE_LOST), f"worker {number} was lost{_from(pod, 'with')}: its pod can't be ended there"
    failed = next((each for each in pod.init if each.ended and each.ended.exit_code), None)
    if failed is not None and failed.ended is not None:
        why = sentences.shortened(failed.ended.message) or "it waits there for worker 0's name in the cluster's DNS"
        code = failed.ended.exit_code
        return (
            Word(Reason.START_FAILED),
            f"worker {number}: its init container {failed.name} ended with {code}: {why}",
        )
    return Word(Reason.DELETED_EXTERNALLY), f"the pod of worker {number} was deleted by someone else"


def _container_end(number: int, pod: Pod, word: Word) -> str:
    ended = pod.main.ended
    assert ended is not None
    if word.reason is Reason.OUT_OF_MEMORY:
        return sentences.out_of_memory(number, pod.memory_limit)
    if word.reason is Reason.START_FAILED:
        return sentences.no_program(ended.message, pod.image) or sentences.shortened(
            f"worker {number} could not be started: {ended.message or ended.reason}"
        )
    said = f": {sentences.shortened(ended.message)}" if ended.message else ""
    return f"worker {number} ended with exit code {ended.exit_code} and left no report{said}"


def _judged(report: Mapping[str, Any], number: int, pod: Pod | None) -> dict[str, Any]:
    """A report that says `killed` of a rank in a container that ran out of memory knows only half of it."""
    ended = pod.main.ended if pod else None
    if ended is not None and ended.reason == "OOMKilled" and report.get("reason") == Reason.SIGNAL and pod is not None:
        message = sentences.out_of_memory(number, pod.memory_limit)
        return {**report, "reason": Reason.OUT_OF_MEMORY.value, "message": message}
    if report.get("reason") == Reason.OUT_OF_MEMORY and pod is not None and pod.memory_limit:
        return {**report, "message": sentences.out_of_memory(number, pod.memory_limit)}
    return dict(report)


def _info(worker: Worker, pod: Pod | None, obstacle: Obstacle | None) -> WorkerInfo:
    host = worker.host or None
    if worker.stage is not Stage.STARTING:
        return worker.info(host=host)
    state = "starting" if pod is not None and pod.scheduled else "waiting"
    return worker.info(host=host, state=state, message=obstacle.message if obstacle else None)


def taken_away(sight: Sight, object_name: str) -> tuple[Reason, str]:
    """Why workers were stopped that nobody here has ordered to: ask as soon as the first of them is."""
    for pod in sight.pods:
        if pod.disruption is not None or pod.refused is not None:
            word, why = _cause(pod.worker, pod)
            return word.reason, why
    if sight.job is None or sight.job.deleting:
        return Reason.DELETED_EXTERNALLY, f"PyTorchJob {object_name} was deleted by someone else"
    deleted = [pod.worker for pod in sight.pods if pod.gone or pod.deleting]
    if deleted:
        which = sentences.listed(sorted(set(deleted)), sight.n_workers)
        return Reason.DELETED_EXTERNALLY, f"the pod of {which} was deleted by someone else"
    return Reason.DELETED_EXTERNALLY, "its processes were stopped from outside"


# --- what is in the way


def _in_the_way_of(worker: Worker, pod: Pod | None, events: Mapping[str, Sequence[Event]]) -> Obstacle | None:
    """Of one worker that doesn't run yet; None: nothing, or it has no pod."""
    if worker.stage is not Stage.STARTING or pod is None or pod.over:
        return None
    about = events.get(pod.uid, ())
    if not pod.scheduled:
        return _unplaced(pod)
    held = next((each for each in (*pod.init, pod.main) if each.waiting is not None), None)
    if held is not None and held.waiting is not None:
        return _held_up(pod, held, held.waiting, about)
    return None


def _unplaced(pod: Pod) -> Obstacle:
    if pod.scheduling is None:
        return Obstacle(Reason.QUEUED, "waits for a node")
    word = meaning(Kind.SCHEDULING, pod.scheduling.word)
    text = sentences.unschedulable(pod.scheduling.text, dict(pod.requests), pod.created_at)
    return Obstacle(word.reason, text or _words(pod.scheduling))


def _held_up(pod: Pod, container: Container, waiting: Said, about: Sequence[Event]) -> Obstacle:
    word = meaning(Kind.WAITING, waiting.word)
    if word.reason is Reason.IMAGE_PULL or word.hopeless:
        secrets = _newest(about, lambda event: event.reason == "FailedToRetrieveImagePullSecret")
        image = pod.image if container is pod.main else container.image
        text = sentences.cannot_pull(image, waiting.text, secrets.message if secrets else "")
        if container is not pod.main:
            text += f"; the training operator's container {container.name} is to run it"
        return Obstacle(word.reason, text, word.hopeless)
    if waiting.word in ("ContainerCreating", "PodInitializing", ""):
        return _being_made(pod, about)
    return Obstacle(word.reason, f"worker {pod.worker}, container {container.name}: {_words(waiting)}")


def _being_made(pod: Pod, about: Sequence[Event]) -> Obstacle:
    blocked = _newest(about, lambda event: event.reason in _IN_THE_WAY)
    if blocked is not None and _lasts(pod.created_at, blocked.at):
        return Obstacle(Reason.STARTING, sentences.shortened(f"worker {pod.worker}: {blocked.message}"))
    pulling = _newest(about, lambda event: event.reason in ("Pulling", "Pulled"))
    if pulling is not None and pulling.reason == "Pulling":
        image = sentences.pulled_image(pulling.message) or pod.image
        text = f"image '{image}' is being pulled{_from(pod, 'on')}{sentences.waits_since(pulling.at)}"
        return Obstacle(Reason.IMAGE_PULL, text, counts=False)
    return Obstacle(Reason.STARTING, f"worker {pod.worker} is being started{_from(pod, 'on')}")


def _obstacle(
    sight: Sight,
    workers: Sequence[Worker],
    pods: Sequence[Pod | None],
    obstacles: Sequence[Obstacle | None],
    events: Mapping[str, Sequence[Event]],
) -> Obstacle:
    """The worst one there is: what a human would want to hear first."""
    found = [each for each in obstacles if each is not None]
    missing = sum(pod is None for pod in pods)
    if missing:
        found.append(_no_pods(sight, missing, events))
    if not found:
        return _preparing(workers)
    worst = min(found, key=lambda each: (not each.hopeless, _rank(each.reason), not each.counts))
    return worst if worst.reason is not Reason.STARTING or worst.hopeless else _starting(worst, workers)


def _rank(reason: Reason) -> int:
    return _WORST_FIRST.index(reason) if reason in _WORST_FIRST else len(_WORST_FIRST)


def _starting(worst: Obstacle, workers: Sequence[Worker]) -> Obstacle:
    prepared = sum(worker.stage is not Stage.STARTING for worker in workers)
    return worst._replace(message=f"{prepared} of {len(workers)} workers are prepared; {worst.message}")


def _preparing(workers: Sequence[Worker]) -> Obstacle:
    prepared = sum(worker.stage is not Stage.STARTING for worker in workers)
    return Obstacle(Reason.STARTING, f"{prepared} of {len(workers)} workers are prepared")


def _no_pods(sight: Sight, missing: int, events: Mapping[str, Sequence[Event]]) -> Obstacle:
    job = sight.job
    if job is None:
        return Obstacle(Reason.QUEUED, "")
    for told in job.conditions:
        if meaning(Kind.JOB, told.word).hopeless:
            text = f"the operator has given the PyTorchJob up: {_words(told)}"
            return Obstacle(meaning(Kind.JOB, told.word).reason, text, hopeless=True)
    suspended = next((each for each in job.conditions if each.word == "Suspended"), None)
    if suspended is not None:
        queue = f"queue '{job.queue}'" if job.queue else "being resumed"
        return Obstacle(Reason.QUEUED, f"waits for {queue}{sentences.waits_since(suspended.at)}", counts=False)
    failed = _newest(events.get(job.uid, ()), lambda event: event.reason in _NOT_CREATED)
    if failed is not None:
        text, hopeless = sentences.not_created(failed.message, sight.n_workers, sight.n_workers - missing)
        return Obstacle(Reason.START_FAILED if hopeless else Reason.UNSCHEDULABLE, text, hopeless)
    return Obstacle(Reason.QUEUED, f"the operator has made no pod yet{sentences.waits_since(job.created_at)}")


# --- small


def _said(sight: Sight) -> list[tuple[Kind, Said | None]]:
    """Every word of others in sight."""
    found: list[tuple[Kind, Said | None]] = [(Kind.JOB, each) for each in (sight.job.conditions if sight.job else ())]
    for pod in sight.pods:
        found += [(Kind.WAITING, each.waiting) for each in (*pod.init, pod.main)]
        found += [(Kind.SCHEDULING, pod.scheduling), (Kind.REFUSED, pod.refused), (Kind.DISRUPTION, pod.disruption)]
        found.append((Kind.ENDED, Said(pod.main.ended.reason) if pod.main.ended else None))
    return found


def _unknown(kind: Kind, said: Said | None) -> list[str]:
    if said is None or meaning(kind, said.word).known:
        return []
    whose = "PyTorchJob" if kind is Kind.JOB else "pod"
    return [f"Kubernetes says '{said.word}' ({kind.name.lower()}) of a {whose}, a word that this server does not know"]


def _by_object(events: Sequence[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.about, []).append(event)
    return found


def _lasts(since: str, at: str) -> bool:
    """What is mounted may be made a moment after the pod."""
    begun, seen = sentences.moment(since), sentences.moment(at)
    return begun is None or seen is None or (seen - begun).total_seconds() > _FIRST_TROUBLE_S


def _newest(events: Sequence[Event], wanted: Callable[[Event], bool]) -> Event | None:
    return max((event for event in events if wanted(event)), key=lambda event: event.at, default=None)


def _words(said: Said) -> str:
    return sentences.shortened(said.text or said.word)


def _from(pod: Pod, word: str = "from") -> str:
    return f" {word} node {pod.node}" if pod.node else ""
