"""When an attempt on a cluster is over, and how it ended. Pure; `gang` asks after each look."""

from __future__ import annotations

from collections.abc import Sequence

from client_lib.spec.states import Reason
from server_stub.runtimes import verdict
from server_stub.runtimes.kube.facts import Pod
from server_stub.runtimes.kube.observe import Seen, Sight
from server_stub.runtimes.verdict import Stage
from server_stub.workers import WorkerView

Because = tuple[Reason, str]


def is_over(sight: Sight, seen: Seen, *, removed: bool) -> bool:
    """Nothing of it works any more. `removed`: its PyTorchJob was deleted, by whomever."""
    lives = any(not pod.over for pod in sight.pods)
    if not all(worker.stage.over for worker in seen.workers):
        return removed and not lives and sight.job is None
    completed = all(worker.stage is Stage.ENDED and not worker.failed for worker in seen.workers)
    return completed or not (removed and lives)


def died_silently(sight: Sight, seen: Seen) -> list[Pod]:
    """Of workers that have ended, and whose logs may have a rest that only the cluster has."""
    reported = {view.worker for view in sight.views if view.report is not None}
    lost = {worker.number for worker in seen.workers if worker.stage is Stage.LOST}
    ended = {worker.number for worker in seen.workers if worker.stage.over}
    silent = lost | (ended - reported)
    return [pod for pod in sight.pods if pod.worker in silent and pod.over and not pod.gone]


def is_drained(sight: Sight) -> bool:
    """The logs of all that left a report are here; of the others nothing more comes."""
    return all(view.drained or view.report is None for view in sight.views)


def lost_lines(seen: Seen, views: Sequence[WorkerView]) -> dict[int, int]:
    """By worker: how many lines of its log are not here and won't come. A report tells how many there should be."""
    return {view.worker: view.missing + _cut_off(seen, view) for view in views}


def _cut_off(seen: Seen, view: WorkerView) -> int:
    """At the end of its log."""
    workers = [worker for worker in seen.workers if worker.number == view.worker]
    end = (workers[0].report or {}).get("log_end_seq") if workers else None
    return max(0, end - view.next_seq) if isinstance(end, int) else 0


def why(seen: Seen, because: Because, *, stopped: bool, lost_first: bool) -> Because:
    """Why it ended. `because`: why it was deleted, or what else took its workers away; it counts where no worker's own
    end does."""
    if not all(worker.stage.over for worker in seen.workers):
        return (Reason.CANCELLED, "stopped") if stopped else because
    reason, message = verdict.verdict(seen.workers, stopped, lost_first)
    return because if reason is Reason.CANCELLED and not stopped else (reason, message)
