"""What an elastic attempt on a cluster goes on without, by what was seen of it. Pure; `gang` asks after each look.

The operator makes a pod that is gone anew, and the kubelet starts a container again that failed (restartPolicy
OnFailure). Both come to the workers' desk as if they were new; there they are let in for a worker that was lost, as
often as `elastic_max_restarts` says, and go on with its log. Whoever isn't let in starts nothing and waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from server_stub.runtimes import elastic
from server_stub.runtimes.elastic import Bounds
from server_stub.runtimes.kube.observe import Seen, Sight
from server_stub.runtimes.verdict import Stage, Worker
from server_stub.workers import WorkerView


def may_return(spec: JobSpec) -> Callable[[WorkerView], bool] | None:
    """For the desk: which lost worker another pod, or another start of its own, may go on with."""
    bounds = elastic.bounds(spec)
    if bounds is None:
        return None
    return lambda view: _may_return(view, bounds)


def _may_return(view: WorkerView, bounds: Bounds) -> bool:
    return view.worker > 0 and len(view.former) < bounds.returns and _was_lost(view)


def _was_lost(view: WorkerView) -> bool:
    """Stopped, where nobody has ordered it to, is as good as killed: its pod was deleted."""
    report = view.report
    return report is None or report["reason"] == Reason.CANCELLED or elastic.is_loss(report, returned=bool(view.former))


class Losses:
    """Of one attempt: what it is judged by, and without which workers it goes on (`missing`)."""

    def __init__(self, spec: JobSpec) -> None:
        self.bounds = elastic.bounds(spec)
        self.missing: frozenset[int] = frozenset()
        self._workers = spec.n_workers

    def counted(self, sight: Sight, seen: Seen, *, began: bool, stopping: bool) -> tuple[Sight, Seen]:
        """Without those that are missing. `began`: ranks have run, until then no loss is survived. `stopping`: nobody
        goes on, so nobody more is missing."""
        if self.bounds is None or not began:
            return sight, seen
        if not stopping:
            self.missing = missing(sight, seen, self.bounds)
        return without(sight, seen, self.missing)

    def message(self) -> str:
        return elastic.who_is_missing(self.missing, self._workers)


def missing(sight: Sight, seen: Seen, bounds: Bounds) -> frozenset[int]:
    """Numbers of the workers without which an attempt whose ranks have begun goes on, or has ended well: those that are
    lost, and those that are on their way back."""
    workers = [_as_lost(worker) for worker in seen.workers]
    returned = {view.worker for view in sight.views if view.former}
    lost = elastic.survived(workers, bounds, returned)
    return lost | {n for n in returned if workers[n].stage in (Stage.STARTING, Stage.READY)}


def without(sight: Sight, seen: Seen, missing: frozenset[int]) -> tuple[Sight, Seen]:
    """The same attempt as one of the other workers alone, and of the pods that own their places: what became of the
    rest is nobody's fault."""
    owners = {view.pod_uid for view in sight.views if view.worker not in missing}
    pods = tuple(pod for pod in sight.pods if pod.uid in owners)
    workers = tuple(worker for worker in seen.workers if worker.number not in missing)
    return replace(sight, pods=pods), replace(seen, workers=workers)


def _as_lost(worker: Worker) -> Worker:
    if worker.number == 0 or worker.report is None or worker.report["reason"] != Reason.CANCELLED:
        return worker
    why = f"worker {worker.number} was stopped from outside"
    return replace(worker, stage=Stage.LOST, report=None, lost_because=why, lost_reason=Reason.PREEMPTED)
