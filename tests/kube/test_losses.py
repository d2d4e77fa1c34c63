"""Without which workers an elastic attempt on a cluster goes on, by what is seen of
its pods and heard of them.
"""

from dataclasses import replace
from typing import Any

import pytest

from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from server_stub.runtimes.kube.observe import (
    ClusterState,
    Interpretation,
    ending,
    observe,
    taken_away,
)
from server_stub.runtimes.kube.observe.ending import Losses
from server_stub.runtimes.kube.observe.inventory import Container, StatusReason, WorkerPod
from server_stub.runtimes.verdict import Stage, who_is_missing
from server_stub.worker_gateway.worker import WorkerView
from tests.kube.test_observe import sight

SPEC = JobSpec(script="train.py", type="pytorch_elastic", n_workers=2, elastic_min_workers=1)


def pod_of(worker: int, **changes: Any) -> WorkerPod:
    (model,) = [pod for pod in sight("running", 1).pods if pod.worker == 0]
    return replace(
        model,
        worker=worker,
        **{"uid": f"uid-{worker}", "name": f"train-worker-{worker}", **changes},
    )


def view(worker: int, reason: str | None = None, **changes: Any) -> WorkerView:
    report = None
    if reason:
        report = {
            "reason": reason,
            "message": "so it ended",
            "exit_code": 0,
            "ranks": [],
            "log_end_seq": 0,
        }
        report["ended_at"] = "2026-11-21T12:00:00+00:00"
    return WorkerView(
        worker, **{"pod_uid": f"uid-{worker}", "state": "started", "report": report, **changes}
    )


def judged(
    views: list[WorkerView], pods: list[WorkerPod], losses: Losses | None = None
) -> tuple[Losses, ClusterState, Interpretation]:
    losses = losses or Losses(SPEC)
    whole = replace(sight("running", 2), pods=tuple(pods), views=tuple(views))
    counted = losses.without_lost(whole, observe(whole), began=True, stopping=False)
    return losses, *counted


def test_a_group_that_trains_misses_nobody() -> None:
    losses, case, seen = judged([view(0), view(1)], [pod_of(0), pod_of(1)])
    assert not losses.missing
    assert (len(case.pods), len(seen.workers)) == (2, 2)


GONE = pod_of(1, gone=True)
CRASHED = pod_of(1, main=Container("pytorch", waiting=StatusReason("CrashLoopBackOff")))


@pytest.mark.parametrize(
    ("worker", "pods"),
    [
        (view(1), [GONE]),
        (view(1), [GONE, pod_of(1, uid="new")]),
        (view(1), [pod_of(1, uid="new")]),  # the server that saw the old one is gone, too
        (view(1, displaced=True), [pod_of(1)]),
        (view(1), [CRASHED]),
        (view(1, "Cancelled"), [GONE]),
        (view(1, "Signal"), [pod_of(1)]),
        (view(1, "LauncherLost"), [pod_of(1)]),
        (
            view(1, pod_uid="new", state="preparing", former=(("uid-1", "s"),)),
            [GONE, pod_of(1, uid="new")],
        ),
        (
            view(1, pod_uid="new", state="ready", former=(("uid-1", "s"),)),
            [GONE, pod_of(1, uid="new")],
        ),
    ],
    ids=[
        *(
            "gone",
            "and made anew",
            "replaced",
            "displaced",
            "crashed",
            "deleted",
            "killed",
            "launcher killed",
        ),
        *("preparing again", "ready again"),
    ],
)
def test_it_goes_on_without_a_worker_that_was_lost_and_blames_nobody(
    worker: WorkerView, pods: list[WorkerPod]
) -> None:
    losses, case, seen = judged([view(0), worker], [pod_of(0), *pods])
    assert who_is_missing(losses.missing, 2) == "worker 1 was lost; 1 of 2 go on"
    assert [each.number for each in seen.workers] == [0]
    assert [pod.uid for pod in case.pods] == ["uid-0"]
    assert taken_away(case, "PyTorchJob train")[1] == "its processes were stopped from outside"
    assert not ending.is_over(case, seen, removed=False)


def test_one_that_came_back_is_missing_no_more_and_its_old_pod_is_forgotten() -> None:
    back = view(1, pod_uid="new", former=(("uid-1", "s"),))
    losses, case, seen = judged([view(0), back], [pod_of(0), GONE, pod_of(1, uid="new")])
    assert who_is_missing(losses.missing, 2) == ""
    assert [worker.stage for worker in seen.workers] == [Stage.STARTED, Stage.STARTED]
    assert [pod.uid for pod in case.pods] == ["uid-0", "new"]


@pytest.mark.parametrize(
    "views",
    [
        [view(0), view(1, "ExitCode")],
        [view(0, "Cancelled"), view(1)],
        [view(0, displaced=True), view(1)],
    ],
    ids=["a failure", "the first was stopped", "the first was replaced"],
)
def test_what_ends_it(views: list[WorkerView]) -> None:
    losses, _, seen = judged(views, [pod_of(0), pod_of(1)])
    assert losses.missing == frozenset()
    assert any(worker.failed for worker in seen.workers)


def test_before_ranks_have_run_no_loss_is_survived() -> None:
    whole = replace(sight("running", 2), pods=(pod_of(0), GONE), views=(view(0), view(1)))
    losses = Losses(SPEC)
    _, seen = losses.without_lost(whole, observe(whole), began=False, stopping=False)
    assert (losses.missing, len(seen.workers)) == (frozenset(), 2)


def test_who_was_missing_when_it_was_stopped_is_not_asked_why() -> None:
    losses, _, _ = judged([view(0), view(1)], [pod_of(0), GONE])
    whole = replace(
        sight("running", 2), pods=(pod_of(0), GONE), views=(view(0, "ExitCode"), view(1))
    )
    case, seen = losses.without_lost(whole, observe(whole), began=True, stopping=True)
    assert [worker.number for worker in seen.workers] == [0]
    assert (
        ending.why(seen, (Reason.DELETED_EXTERNALLY, ""), stopped=False, lost_first=False)[0]
        is Reason.EXIT_CODE
    )
    assert ending.LogDrain().is_over(case, 0.0)


def test_an_attempt_has_ended_well_when_worker_0_has_though_another_is_lost() -> None:
    losses, case, seen = judged([view(0, "Completed"), view(1)], [pod_of(0), GONE])
    assert losses.missing == {1}
    assert ending.is_over(case, seen, removed=False)


def test_a_first_worker_whose_container_was_started_again_says_why_it_ended() -> None:
    main = Container(
        "pytorch", running_since="now", before=StatusReason("OOMKilled", exit_code=137)
    )
    _, _, seen = judged(
        [view(0, displaced=True), view(1)], [pod_of(0, main=main, memory_limit="1Gi"), pod_of(1)]
    )
    assert seen.workers[0].lost_reason is Reason.OUT_OF_MEMORY
    assert (
        seen.workers[0].lost_because
        == "worker 0 was killed for using more than its 1 GiB of memory"
    )
