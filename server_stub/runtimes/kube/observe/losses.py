"""Decides which lost workers an elastic attempt on a cluster can continue without. Pure.

The operator replaces a deleted pod, and the kubelet restarts a failed container (restartPolicy OnFailure). Both connect
to the WorkerRegistry as new. It admits one in place of a lost worker, at most `elastic_max_restarts` times, and the log
of that worker continues. A replacement that is not admitted starts no rank and exits with the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from server_stub.runtimes import elastic
from server_stub.runtimes.elastic import Bounds
from server_stub.runtimes.kube.observe import ClusterState, Interpretation
from server_stub.runtimes.verdict import Stage, WorkerStatus
from server_stub.worker_gateway import WorkerView


def may_return(spec: JobSpec) -> Callable[[WorkerView], bool] | None:
    """A function that returns True if a new pod or a restarted container may replace the lost worker of a view.

    None: the attempt is not elastic.
    """
    bounds = elastic.bounds(spec)
    if bounds is None:
        return None
    return lambda view: _may_return(view, bounds)


def _may_return(view: WorkerView, bounds: Bounds) -> bool:
    return view.worker > 0 and len(view.former) < bounds.returns and _was_lost(view)


def _was_lost(view: WorkerView) -> bool:
    """True if the worker was lost, or stopped from outside because its pod was deleted."""
    report = view.report
    return report is None or report["reason"] == Reason.CANCELLED or elastic.is_loss(report, returned=bool(view.former))


class Losses:
    """The workers that one attempt has lost and goes on without (`missing`)."""

    def __init__(self, spec: JobSpec) -> None:
        self.bounds = elastic.bounds(spec)
        self.missing: frozenset[int] = frozenset()
        self._workers = spec.n_workers

    def without_lost(
        self, state: ClusterState, seen: Interpretation, *, began: bool, stopping: bool
    ) -> tuple[ClusterState, Interpretation]:
        """The state and its interpretation without the missing workers.

        `began`: ranks have run; before that no loss is survived. `stopping`: no worker is added to the missing ones.
        """
        if self.bounds is None or not began:
            return state, seen
        if not stopping:
            self.missing = missing(state, seen, self.bounds)
        return without(state, seen, self.missing)

    def message(self) -> str:
        return elastic.who_is_missing(self.missing, self._workers)


def missing(state: ClusterState, seen: Interpretation, bounds: Bounds) -> frozenset[int]:
    """Numbers of the workers that an attempt goes on without, or has succeeded without: those that are lost and those
    that are being replaced. Its ranks have run before."""
    workers = [_as_lost(worker) for worker in seen.workers]
    returned = {view.worker for view in state.views if view.former}
    lost = elastic.survived(workers, bounds, returned)
    return lost | {n for n in returned if workers[n].stage in (Stage.STARTING, Stage.READY)}


def without(state: ClusterState, seen: Interpretation, missing: frozenset[int]) -> tuple[ClusterState, Interpretation]:
    """The attempt as if it had only the other workers and their current pods, so that the lost ones count as no
    failure."""
    owners = {view.pod_uid for view in state.views if view.worker not in missing}
    pods = tuple(pod for pod in state.pods if pod.uid in owners)
    workers = tuple(worker for worker in seen.workers if worker.number not in missing)
    return replace(state, pods=pods), replace(seen, workers=workers)


def _as_lost(worker: WorkerStatus) -> WorkerStatus:
    if worker.number == 0 or worker.report is None or worker.report["reason"] != Reason.CANCELLED:
        return worker
    why = f"worker {worker.number} was stopped from outside"
    return replace(worker, stage=Stage.LOST, report=None, lost_because=why, lost_reason=Reason.PREEMPTED)
