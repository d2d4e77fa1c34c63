"""When an attempt on a cluster is over, and why it ended."""

from dataclasses import replace
from typing import Any

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe import ClusterState, Interpretation, ending, observe
from server_stub.worker_gateway.attempt import SILENT_S
from server_stub.worker_gateway.worker import WorkerView
from tests.kube.test_observe import sight

DELETED = (Reason.DELETED_EXTERNALLY, "PyTorchJob train was deleted by someone else")


def reported(reason: str, *, drained: bool = True) -> WorkerView:
    report: Any = {
        "reason": reason,
        "message": "so it ended",
        "exit_code": 0,
        "ended_at": "2026-11-21T12:00:00+00:00",
    }
    return WorkerView(
        0, "uid", report=report | {"ranks": [], "log_end_seq": 10}, next_seq=10 if drained else 5
    )


def looked_at(*views: WorkerView, pods: bool = False) -> tuple[ClusterState, Interpretation]:
    case = sight("running", 1)
    mine = tuple(replace(pod, uid="uid") for pod in case.pods if pod.worker == 0) if pods else ()
    seen = replace(case, pods=mine, views=views)
    return seen, observe(seen)


def test_a_gang_that_has_succeeded_is_over_though_its_pods_are_still_leaving() -> None:
    assert ending.is_over(*looked_at(reported("Completed"), pods=True), removed=False)


def test_a_gang_that_runs_is_not_over() -> None:
    assert not ending.is_over(
        *looked_at(WorkerView(0, "uid", state="started"), pods=True), removed=False
    )


def test_a_gang_that_is_removed_is_over_when_nothing_of_it_lives() -> None:
    views = WorkerView(0, "uid", state="started")
    lives, seen = looked_at(views, pods=True)
    assert not ending.is_over(lives, seen, removed=True)
    # the operator may make pods still
    assert not ending.is_over(replace(lives, pods=()), seen, removed=True)
    assert ending.is_over(replace(lives, pods=(), workload=None), seen, removed=True)


def test_a_gang_that_is_removed_is_over_though_a_lost_node_keeps_one_of_its_pods() -> None:
    """That pod keeps the workload, too, and the other worker has never reported."""
    at = "2026-11-23T18:00:00Z"
    case = sight("running", 1)
    assert case.workload is not None
    stuck = replace(case.pods[0], uid="uid", worker=0, ends_by=at, unanswered=True)
    gone = replace(case.pods[0], uid="gone", worker=1, gone=True)
    left = replace(
        case,
        n_workers=2,
        pods=(stuck, gone),
        views=(WorkerView(0, "uid", state="ready"), WorkerView(1)),
    )
    assert not ending.is_over(left, observe(left), removed=True)  # the deletion was not taken
    left = replace(left, workload=replace(case.workload, ends_by=at))
    assert ending.is_over(left, observe(left), removed=True)


def test_a_log_that_is_not_all_here_keeps_an_attempt_open() -> None:
    assert not ending.LogDrain().is_over(looked_at(reported("Completed", drained=False))[0], 0.0)
    assert ending.LogDrain().is_over(looked_at(reported("Completed"))[0], 0.0)


def test_an_order_to_stop_explains_whatever_the_workers_then_did() -> None:
    _, seen = looked_at(reported("Cancelled"))
    assert ending.why(seen, DELETED, stopped=True, lost_first=False).reason is Reason.CANCELLED


def test_workers_that_were_stopped_by_nobody_here_were_taken_away() -> None:
    _, seen = looked_at(reported("Cancelled"))
    assert ending.why(seen, DELETED, stopped=False, lost_first=False)[:2] == DELETED


def test_a_success_counts_whatever_happened_to_the_object() -> None:
    _, seen = looked_at(reported("Completed"))
    assert ending.why(seen, DELETED, stopped=False, lost_first=False).reason is Reason.COMPLETED


def test_a_gang_that_never_ran_ended_for_why_it_was_removed() -> None:
    _, seen = looked_at(WorkerView(0))
    assert ending.why(seen, DELETED, stopped=False, lost_first=False)[:2] == DELETED
    assert ending.why(seen, DELETED, stopped=True, lost_first=False)[:2] == (
        Reason.CANCELLED,
        "stopped",
    )


def test_a_worker_that_fails_before_its_peers_have_started_is_the_reason() -> None:
    state, _ = looked_at(reported("SetupFailed"), WorkerView(1))
    seen = observe(replace(state, n_workers=2))
    assert [worker.stage.over for worker in seen.workers] == [True, False]
    assert ending.why(seen, DELETED, stopped=False, lost_first=False).reason is Reason.SETUP_FAILED
    assert ending.why(seen, DELETED, stopped=True, lost_first=False).reason is Reason.CANCELLED


def test_the_rest_of_a_log_is_waited_for_as_long_as_some_of_it_arrives() -> None:
    drain, late = ending.LogDrain(), looked_at(reported("Completed", drained=False), pods=True)[0]
    assert not drain.is_over(late, 0.0)
    assert not drain.is_over(late, SILENT_S)
    more = replace(late, views=tuple(replace(view, next_seq=6) for view in late.views))
    assert not drain.is_over(more, SILENT_S + 1)
    assert drain.is_over(more, 2 * SILENT_S + 2)
    gone = replace(late, pods=())
    assert not drain.is_over(gone, 0.0)
    assert drain.is_over(gone, ending.DRAIN_S + 1)
