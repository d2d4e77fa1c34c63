"""Pods that are deleted where nobody is left who could end them."""

from dataclasses import replace

from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe import observe, taken_away
from server_stub.runtimes.kube.observe.ending import SLACK_S, StuckPods, takes_a_worker
from server_stub.runtimes.kube.observe.inventory import StatusReason, WorkerPod
from server_stub.runtimes.verdict import Stage
from server_stub.worker_gateway.worker import WorkerView
from tests.kube.test_observe import sight

RUNNING: WorkerPod = replace(
    next(pod for pod in sight("running", 1).pods if pod.worker == 0), uid="uid", node="node1"
)
DELETED = replace(RUNNING, ends_by="2026-11-23T18:00:00Z", grace_s=20.0)
EVICTED = replace(
    DELETED,
    disruption=StatusReason(
        "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
    ),
)


def given_up_after(pod: WorkerPod) -> float:
    """Seconds since its deletion was first seen."""
    stuck = StuckPods()
    assert not stuck.mark([pod], 1000.0)[0].unanswered
    due = stuck.next_due
    assert due is not None
    assert not stuck.mark([pod], due - 0.1)[0].unanswered
    assert stuck.mark([pod], due)[0].unanswered
    return due - 1000.0


def test_a_pod_that_is_not_deleted_is_never_given_up() -> None:
    stuck = StuckPods()
    stuck.mark([RUNNING], 0.0)
    assert stuck.next_due is None
    assert stuck.mark([RUNNING], 1e9) == (RUNNING,)


def test_a_deleted_pod_is_given_up_when_even_a_slow_kubelet_would_have_ended_it() -> None:
    assert given_up_after(DELETED) == 20.0 + SLACK_S


def test_a_pod_of_a_node_that_is_gone_gets_its_grace_period_and_nothing_more() -> None:
    assert given_up_after(EVICTED) == 20.0


def test_time_is_counted_from_the_first_look_at_the_deletion() -> None:
    stuck = StuckPods()
    stuck.mark([RUNNING], 0.0)
    stuck.mark([EVICTED], 500.0)
    assert not stuck.mark([EVICTED], 519.0)[0].unanswered
    assert stuck.mark([EVICTED], 521.0)[0].unanswered


def test_a_pod_that_ends_is_not_waited_for() -> None:
    stuck = StuckPods()
    stuck.mark([DELETED], 0.0)
    gone = replace(DELETED, gone=True)
    assert stuck.mark([gone], 1e9) == (gone,)
    assert stuck.next_due is None


def test_a_pod_that_was_given_up_is_looked_at_no_more_often_than_others() -> None:
    stuck = StuckPods()
    stuck.mark([DELETED], 0.0)
    assert stuck.mark([DELETED], 1000.0)[0].unanswered
    assert stuck.next_due is None


def test_a_worker_whose_pod_nobody_ends_is_lost_with_its_node() -> None:
    for pod, why in [
        (DELETED, "worker 0 was lost with node node1: its pod can't be ended there"),
        (
            EVICTED,
            (
                "worker 0 was taken away from node node1: Taint manager: deleting due to NoExecute "
                "taint"
            ),
        ),
    ]:
        case = replace(
            sight("running", 1),
            pods=(replace(pod, unanswered=True),),
            views=(WorkerView(0, "uid", state="started"),),
        )
        worker = observe(case).workers[0]
        assert (worker.stage, worker.lost_reason, worker.lost_because) == (
            Stage.LOST,
            Reason.NODE_LOST,
            why,
        )


def test_an_eviction_from_a_lost_node_is_the_nodes_fault_and_not_somebodys() -> None:
    assert (
        taken_away(replace(sight("running", 1), pods=(EVICTED,)), "PyTorchJob train")[0]
        is Reason.NODE_LOST
    )


def test_only_the_deletion_of_a_pod_that_speaks_dooms_the_gang() -> None:
    speaks, silent = WorkerView(0, "uid", state="started"), WorkerView(0)
    assert takes_a_worker([DELETED], [speaks])
    assert not takes_a_worker([DELETED], [silent])
    assert not takes_a_worker([RUNNING], [speaks])
