"""Gangs that can't start as they should: refused by the cluster, late, or with a rank that
dies before all have met.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from client_lib.spec.states import Reason, State
from tests.cluster.errors import ApiError
from tests.cluster.tests.jobs import pytorch_job
from tests.cluster.waiting import until
from tests.contract.places import ClusterPlace, ended, says
from tests.contract.test_promises import MEET, STAY, texts

pytestmark = pytest.mark.cluster
POLICIES = "/apis/admissionregistration.k8s.io/v1"


# --- refused


@contextmanager
def refusing(
    place: ClusterPlace, group: str, resource: str, would_make: Callable[[], object]
) -> Iterator[None]:
    """A policy of the cluster refuses to have these made: `would_make` tries, dry, until
    it does, or no longer does.
    """
    name, api = f"no-{resource}", place.cluster.api
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    here = {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}}
    spec: dict[str, Any] = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "ask the platform team first"}],
    }
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": here},
    }
    paths = (
        f"{POLICIES}/validatingadmissionpolicies",
        f"{POLICIES}/validatingadmissionpolicybindings",
    )
    for path, kind, said in zip(paths, ("", "Binding"), (spec, binding), strict=True):
        of = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"ValidatingAdmissionPolicy{kind}",
        }
        api.create(path, of | {"metadata": {"name": name}, "spec": said})
    try:
        for _ in until(30, pause_s=0.1):
            if _is_refused(would_make):
                break
        yield
    finally:
        for path in reversed(paths):
            api.delete(f"{path}/{name}")
        # the API server notices late, and the next test's pods would be refused
        for _ in until(30, pause_s=0.1):
            if not _is_refused(would_make):
                break


def _is_refused(would_make: Callable[[], object]) -> bool:
    try:
        would_make()
    except ApiError as refused:
        return "ask the platform team first" in str(refused)
    return False


def test_a_policy_that_refuses_the_object_ends_the_job_with_its_words(
    pytorch: ClusterPlace,
) -> None:
    path = f"{pytorch.jobs}?dryRun=All"
    dry = pytorch_job("dry", ["sleep"], workers=0)
    with refusing(
        pytorch, "kubeflow.org", "pytorchjobs", lambda: pytorch.cluster.api.create(path, dry)
    ):
        info = pytorch.run(STAY, name="refused").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert info.message == (
        "the cluster's policy 'no-pytorchjobs' refuses PyTorchJob refused: ask the platform "
        "team first"
    )


def test_a_policy_that_refuses_the_pods_ends_the_job_with_its_words(kube: ClusterPlace) -> None:
    path = f"/api/v1/namespaces/{kube.namespace}/pods?dryRun=All"
    template = pytorch_job("dry", ["sleep"], workers=0)["spec"]["pytorchReplicaSpecs"]["Master"][
        "template"
    ]
    dry = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "dry"}, "spec": template["spec"]}
    with refusing(kube, "", "pods", lambda: kube.cluster.api.create(path, dry)):
        info = kube.run(STAY, n_workers=2).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert (
        info.message
        == "the cluster's policy 'no-pods' refuses the pods: ask the platform team first"
    )


# --- late


def test_a_name_that_is_known_late_is_waited_for(pytorch: ClusterPlace) -> None:
    pytorch.cluster.kill("coredns")
    try:
        job = pytorch.job(MEET, n_workers=2, processes_per_worker=2)
        job.submit()
        says(job, "1 of 2 workers are prepared")
        for _ in until(60, pause_s=0.2):
            init = (pytorch.pods(job)[1]["status"].get("initContainerStatuses") or [{"state": {}}])[
                0
            ]
            if "running" in init["state"]:
                break
        assert "running" in init["state"], init
    finally:
        pytorch.cluster.start("coredns")
    info = ended(job).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    assert sorted(texts(job, rank=[0], stream=["stdout"])) == [
        "met rank 1",
        "met rank 2",
        "met rank 3",
    ]


# --- dead before all have met, with the others waiting for half an hour as init_process_group does

DEAD = """
import os, signal, socket, sys, time
def left(*_):
    print("asked to stop", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, left)
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
print("rank", rank, flush=True)
if rank == {dies}:
    {how}
if rank == 0:
    socket.create_server(("", port)).accept()
while True:
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5)
    except OSError:
        time.sleep(0.1)
"""


def test_a_rank_that_dies_before_all_have_met_ends_those_that_wait_for_it(
    kube: ClusterPlace,
) -> None:
    exits = kube.job(DEAD.format(dies=1, how="sys.exit(3)"), n_workers=2)
    killed = kube.job(DEAD.format(dies=0, how="os.kill(os.getpid(), signal.SIGKILL)"), n_workers=2)
    for job in (exits, killed):
        job.submit()
    for job, rank in ((exits, 1), (killed, 0)):
        info = ended(job, 60).info()
        assert (info.state, info.attempt) == (State.FAILED, 1)
        assert info.failure is not None
        assert (info.failure.worker, info.failure.rank) == (rank, rank)
        assert texts(job, rank=[1 - rank], stream=["stdout"]) == [
            f"rank {1 - rank}",
            "asked to stop",
        ]
        assert texts(job, rank=[rank], stream=["stdout"]) == [f"rank {rank}"]
    assert (exits.info().reason, exits.info().failure.exit_code) == (Reason.EXIT_CODE, 3)  # type: ignore[union-attr]
    assert (killed.info().reason, killed.info().failure.signal) == (Reason.SIGNAL, 9)  # type: ignore[union-attr]
