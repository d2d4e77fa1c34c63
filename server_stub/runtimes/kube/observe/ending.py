"""Decides when an attempt on a cluster is over and how it ended, also if its pods are stuck, and
which lost workers an elastic attempt can continue without. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt, verdict
from server_stub.runtimes.kube.observe import ClusterState, Interpretation, messages
from server_stub.runtimes.kube.observe.inventory import WorkerPod
from server_stub.runtimes.kube.observe.reasons import meaning
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.verdict import Stage, Verdict, WorkerStatus
from server_stub.worker_gateway.attempt import SILENT_S
from server_stub.worker_gateway.worker import WorkerView

DRAIN_S = 60.0
"""Seconds after the end of all pods when the wait for the rest of their logs ends."""
SLACK_S = 30.0
"""Time that a kubelet may need to end a pod beyond its grace period; 0 if Kubernetes
reports its node as gone.
"""


def is_over(state: ClusterState, seen: Interpretation, *, removed: bool) -> bool:
    """True if nothing of the attempt runs. `removed`: its workload was deleted, by this
    server or by someone else.
    """
    lives = any(not pod.over for pod in state.pods)
    if not all(worker.stage.over for worker in seen.workers):
        stuck = any(pod.unanswered for pod in state.pods)  # such a pod keeps the workload
        return (
            removed
            and not lives
            and (state.workload is None or (state.workload.deleting and stuck))
        )
    completed = all(worker.stage is Stage.ENDED and not worker.failed for worker in seen.workers)
    return completed or not (removed and lives)


def died_silently(state: ClusterState, seen: Interpretation) -> list[WorkerPod]:
    """Pods of workers that ended without a report, and whose last log lines
    only the cluster may have.
    """
    reported = {view.worker for view in state.views if view.report is not None}
    silent = {worker.number for worker in seen.workers if worker.stage.over} - reported
    return [pod for pod in state.pods if pod.worker in silent and pod.over and not pod.gone]


class LogDrain:
    """Decides how long an attempt whose workers have all reported waits
    for the rest of their logs.
    """

    def __init__(self) -> None:
        self._arrived: tuple[bool, tuple[int, ...]] | None = None
        self._since = 0.0

    def is_over(self, state: ClusterState, now: float) -> bool:
        """True if the logs are complete or will never be. `now` is a monotonic time."""
        # a lost worker's log is never complete
        if all(view.drained or view.report is None for view in state.views):
            return True
        pods_over = all(pod.over for pod in state.pods)
        arrived = (pods_over, tuple(view.next_seq for view in state.views))
        if arrived != self._arrived:
            self._arrived = arrived
            self._since = now
        return now - self._since > (DRAIN_S if pods_over else SILENT_S)

    @property
    def is_near(self) -> bool:
        """True if the end of the waiting is near."""
        return self._arrived is not None and self._arrived[0]


# --- silent agents


def silent(seen: Interpretation, views: Sequence[WorkerView], limit_s: float) -> list[int]:
    """Numbers of the workers that are not over, and whose agents have been
    silent for more than `limit_s`.
    """
    alive = {worker.number for worker in seen.workers if not worker.stage.over}
    return [view.worker for view in views if view.silent_s > limit_s and view.worker in alive]


def hung(seen: Interpretation, views: Sequence[WorkerView]) -> list[int]:
    """Numbers of the workers for which the others have waited longer than SILENT_S.

    In a complete gang these are silent workers that have not started their ranks, or that run
    although all others have ended. Ranks with running peers may still work although their agent is
    silent; health_params ends them if they do not. gang.timeout_s of the catalogue limits the wait
    of an incomplete gang.
    """
    stages = {worker.number: worker.stage for worker in seen.workers}
    if Stage.STARTING in stages.values():
        return []
    found = silent(seen, views, SILENT_S)
    heard = [stage for number, stage in stages.items() if number not in found]
    alone = bool(heard) and all(stage.over for stage in heard)
    return [number for number in found if alone or stages[number] is Stage.READY]


# --- lost lines


def lost_lines(seen: Interpretation, views: Sequence[WorkerView]) -> dict[int, int]:
    """Number of lost log lines by worker; a report contains the number of
    lines that there should be.
    """
    ends = {
        worker.number: worker.report.get("log_end_seq") for worker in seen.workers if worker.report
    }
    return {
        view.worker: view.missing + max(0, (ends.get(view.worker) or 0) - view.next_seq)
        for view in views
    }


def why(
    seen: Interpretation, because: tuple[Reason, str], *, stopped: bool, lost_first: bool
) -> Verdict:
    """Reason and message of the end. `because` is why the attempt was deleted or its pods were
    taken away; it is used if no worker's own end explains it."""
    all_over = all(worker.stage.over for worker in seen.workers)
    if not all_over and (
        stopped or not any(worker.failed and worker.report for worker in seen.workers)
    ):
        return Verdict(Reason.CANCELLED, "stopped") if stopped else Verdict(*because)
    found = verdict.verdict(seen.workers, stopped, lost_first)
    return Verdict(*because) if found.reason is Reason.CANCELLED and not stopped else found


def notes(
    attempt: Attempt, lost_lines: Mapping[int, int], cluster: ClusterOptions
) -> tuple[str, ...]:
    """Messages for the events of the job about lost log lines (by worker),
    checkpoints and unreachable pods.
    """
    found = [
        messages.lost_lines({worker: count}, attempt.spec.n_workers)
        for worker, count in lost_lines.items()
    ]
    found.append(storage.not_handed_on(attempt, cluster.catalogue) or "")
    if cluster.settings.worker_server_url is None:
        found.append(
            "pods can't reach this server: their logs come from the Kubernetes API alone, which "
            "may lose lines"
        )
    return tuple(filter(None, found))


class StuckPods:
    """Finds the pods of one attempt that are being deleted and never end, as their node or its
    kubelet is gone.

    Kubernetes lists such a pod as running until the node is back or an administrator removes it. A
    pod counts as lost when its time to end is over, counted from when this server saw the deletion,
    so that no other clock matters.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        """Time at which the deletion was first seen, by UID."""
        self.next_due: float | None = None
        """Time at which the next pod counts as stuck; None: no other is being deleted."""

    def mark(self, pods: Iterable[WorkerPod], now: float) -> tuple[WorkerPod, ...]:
        """The same pods, with `unanswered` set for the stuck ones. `now` is a monotonic time."""
        marked = []
        due = []
        for pod in pods:
            if pod.deleting and not pod.over:
                self._since.setdefault(pod.uid, now)
                lost = (
                    pod.disruption
                    and meaning("disruption", pod.disruption.word) is Reason.NODE_LOST
                )
                due.append(self._since[pod.uid] + pod.grace_s + (0.0 if lost else SLACK_S))
                pod = replace(pod, unanswered=now >= due[-1])
            marked.append(pod)
        self.next_due = min((each for each in due if each > now), default=None)
        return tuple(marked)


def takes_a_worker(pods: Iterable[WorkerPod], views: Iterable[WorkerView]) -> bool:
    """True if the pod of a worker that has reported is being deleted."""
    owners = {view.pod_uid for view in views}
    return any(pod.deleting and not pod.over and pod.uid in owners for pod in pods)


# --- lost workers of an elastic attempt
#
# The operator replaces a deleted pod, and the kubelet restarts a failed container (restartPolicy
# OnFailure). Both connect to the WorkerRegistry as new. It admits one in place of a lost worker, at
# most `elastic_max_restarts` times, and the log of that worker continues. A replacement that is not
# admitted starts no rank and exits with the attempt.


def may_return(spec: JobSpec) -> Callable[[WorkerView], bool] | None:
    """A function that returns True if a new pod or a restarted container may replace the lost
    worker of a view.

    None: the attempt is not elastic.
    """
    bounds = verdict.elastic_bounds(spec)
    if bounds is None:
        return None

    def returns(view: WorkerView) -> bool:
        if view.worker == 0 or len(view.former) >= bounds.returns:
            return False
        # stopped, as its pod was deleted
        if view.report is None or view.report["reason"] == Reason.CANCELLED:
            return True
        return verdict.is_loss(view.report, returned=bool(view.former))

    return returns


class Losses:
    """The workers that one attempt has lost and goes on without (`missing`)."""

    def __init__(self, spec: JobSpec) -> None:
        self.bounds = verdict.elastic_bounds(spec)
        self.missing: frozenset[int] = frozenset()

    def without_lost(
        self, state: ClusterState, seen: Interpretation, *, began: bool, stopping: bool
    ) -> tuple[ClusterState, Interpretation]:
        """Return the attempt without its missing workers, and with the current pods of the other
        workers, so that a missing worker counts as no failure.

        `began`: ranks have run; before that no loss is survived. `stopping`: no worker is added to
        the missing ones.
        """
        if self.bounds is None or not began:
            return state, seen
        # A worker is missing if it is lost, or is being replaced.
        if not stopping:
            workers = [_as_lost(worker) for worker in seen.workers]
            returned = {view.worker for view in state.views if view.former}
            replaced = {
                number
                for number in returned
                if workers[number].stage in (Stage.STARTING, Stage.READY)
            }
            self.missing = verdict.survived(workers, self.bounds, returned) | replaced
        owners = {view.pod_uid for view in state.views if view.worker not in self.missing}
        pods = tuple(pod for pod in state.pods if pod.uid in owners)
        remaining = tuple(worker for worker in seen.workers if worker.number not in self.missing)
        return replace(state, pods=pods), replace(seen, workers=remaining)


def _as_lost(worker: WorkerStatus) -> WorkerStatus:
    if worker.number == 0 or worker.report is None or worker.report["reason"] != Reason.CANCELLED:
        return worker
    why = f"worker {worker.number} was stopped from outside"
    return replace(
        worker, stage=Stage.LOST, report=None, lost_because=why, lost_reason=Reason.PREEMPTED
    )
