"""Another kind of workload needs one class: nothing of PyTorchJob is left in its
objects, pods and messages.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.checks import checked
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.doctor import Permission, needed
from server_stub.runtimes.kube.observe import ClusterState, observe
from server_stub.runtimes.kube.observe.inventory import (
    Event,
    Inventory,
    Workload,
    parse_pod,
    parse_workload,
)
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.render import render
from server_stub.runtimes.kube.workload import Object, WorkloadKind, WorkloadPlan
from server_stub.worker_gateway.worker import WorkerView
from tests.kube.cases import TOKEN, Case, case


class IndexedJob(WorkloadKind):
    pods_failed = ("of its pods failed",)
    name = "IndexedJob"
    group = "example.com"
    version = "v2"
    plural = "indexedjobs"
    container = "node"
    operator = "example operator"
    kueue_framework = "example.com/indexedjob"
    conditions: Mapping[str, Reason | None] = {"Broken": Reason.START_FAILED}
    own_variables = ()

    def manifest(self, plan: WorkloadPlan) -> tuple[Object, Object | None]:
        spec = {
            "size": plan.spec.n_workers,
            "template": plan.template({"example.com/of": plan.name}, ()),
        }
        return self.object(plan.metadata, spec), None

    def probe(self, namespace: str, labels: Mapping[str, str]) -> Object:
        return {"metadata": {"labels": labels}}

    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        return int(labels["example.com/index"]) if "example.com/index" in labels else None

    def parts(self, name: str) -> tuple[str, ...]:
        return (f"Job/{name}-0",)

    def is_suspended(self, workload: Object) -> bool:
        return False

    def check(self, api: Api, namespace: str) -> Check:
        return checked(self.operator, "it runs")


KIND = IndexedJob()


def objects(of: Case) -> list[Object]:
    return render(of.attempt, replace(of.cluster, kind=KIND), TOKEN).all()


def test_its_objects_have_nothing_of_a_pytorch_job() -> None:
    *_, workload = objects(case("one-worker"))
    assert (workload["apiVersion"], workload["kind"], workload["spec"]["size"]) == (
        "example.com/v2",
        "IndexedJob",
        1,
    )
    pod = workload["spec"]["template"]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["node"]
    assert pod["metadata"]["labels"]["example.com/of"] == workload["metadata"]["name"]
    assert "pytorch" not in json.dumps(workload).lower().replace("pytorch2", "")


def test_its_collection_and_its_rights_are_its_own() -> None:
    assert KIND.collection("jobs") == "/apis/example.com/v2/namespaces/jobs/indexedjobs"
    assert Permission("example.com", "indexedjobs", "create") in needed(KIND)
    assert not [each for each in needed(KIND) if "pytorch" in each.resource]


def test_its_pods_and_conditions_are_understood() -> None:
    labels = names.labels("j", 1, "train")
    meta = {"name": "train", "uid": "u", "labels": labels}
    raw = {
        "metadata": meta,
        "status": {"conditions": [{"type": "Broken", "status": "True", "message": "no nodes"}]},
    }
    workload = parse_workload(raw, KIND)
    seen = observe(ClusterState(1, workload, views=(WorkerView(0),)))
    assert (seen.blocker.reason, seen.blocker.permanent) == (Reason.START_FAILED, True)
    assert seen.blocker.message == "the operator has given the IndexedJob up: no nodes"
    pod = {
        "metadata": {**meta, "labels": labels | {"example.com/index": "3"}},
        "status": {"containerStatuses": [{"name": "node", "state": {"running": {}}}]},
    }
    found = parse_pod(pod, [KIND])
    assert found is not None
    assert (found.worker, found.main.name, found.main.running_since) == (3, "node", "")


def test_an_attempt_goes_on_with_the_kind_that_it_began_with() -> None:
    usual = case("one-worker")
    cluster = Cluster.of(cast(Any, None), usual.cluster, cast(Any, None), [KIND])
    began = cluster.of_kind("IndexedJob")
    assert (began.kind, began.objects.workloads) == (KIND, KIND.collection("jobs"))
    assert began.inventory is cluster.inventory
    assert cluster.of_kind(None) is cluster.of_kind(PYTORCHJOB.name) is cluster


class Served:
    """An API server that has the kinds of these groups."""

    def __init__(self, *versions: str) -> None:
        self._versions = versions

    def get(self, path: str) -> Any:
        if path.removeprefix("/apis/") not in self._versions:
            raise ApiError(404, "not found")
        return {"resources": [{"name": "pytorchjobs"}, {"name": "indexedjobs"}]}


@pytest.mark.parametrize(
    ("versions", "kind"),
    [
        (["example.com/v2"], "IndexedJob"),
        (["example.com/v2", "kubeflow.org/v1"], "PyTorchJob"),
        ([], "PyTorchJob"),
    ],
)
def test_the_first_kind_that_the_cluster_has_is_chosen(versions: list[str], kind: str) -> None:
    usual, api = case("one-worker"), cast(Any, Served(*versions))
    cluster = Cluster.of(api, usual.cluster, cast(Any, None), [KIND])
    assert cluster.with_kind_there().kind.name == kind
    assert cluster.of_kind("IndexedJob").with_kind_there().kind.name == (
        kind if versions else "IndexedJob"
    )


def test_the_list_of_one_kind_leaves_those_of_another_alone() -> None:
    inventory = Inventory()
    inventory.take_list("IndexedJob", [found("train")])
    inventory.take_list(PYTORCHJOB.name, [])
    assert inventory.workload(KEY, "u") is not None
    inventory.take_list("IndexedJob", [])
    assert inventory.workload(KEY, "u") is None


def test_the_workload_of_an_attempt_is_the_one_that_the_server_has_created() -> None:
    inventory, new = Inventory(), replace(found("a"), uid="new", created_at="2026-11-24T00:00:00Z")
    inventory.take_list("IndexedJob", [new, found("b")])
    assert inventory.workload(KEY, "new") == new
    assert inventory.workload(KEY, "u") == found("b")
    assert inventory.workload(KEY, "other") is inventory.workload(KEY, None) is None


def test_an_event_about_a_part_of_a_workload_is_its_own_unless_it_is_older() -> None:
    inventory = Inventory()
    inventory.put_event(
        Event("e1", "job-uid", "FailedCreate", "old", "2026-11-22T00:00:00Z", "Job/train-0")
    )
    inventory.put_event(
        Event("e2", "job-uid", "FailedCreate", "no quota", "2026-11-24T00:00:00Z", "Job/train-0")
    )
    inventory.put_event(
        Event("e3", "other", "FailedCreate", "other", "2026-11-24T00:00:00Z", "Job/train-1")
    )
    inventory.put(found("train"))
    assert [(each.about, each.message) for each in inventory.events(KEY, "u")] == [
        ("u", "no quota")
    ]
    inventory.gone(found("train"))
    inventory.put(replace(found("train"), uid="v"))
    assert inventory.events(KEY, "v") == ()


def test_a_workload_that_is_gone_leaves_the_events_about_parts_to_the_new_one_of_its_name() -> None:
    inventory, changes = Inventory(), []
    inventory.follow(KEY, lambda: changes.append(1))
    new = replace(found("train"), uid="new")
    for each in (found("train"), new):
        inventory.put(each)
    inventory.gone(found("train"))
    seen = len(changes)
    inventory.put_event(
        Event("e1", "job-uid", "FailedCreate", "no quota", "2026-11-24T00:00:00Z", "Job/train-0")
    )
    assert len(changes) == seen + 1
    assert [each.message for each in inventory.events(KEY, "new")] == ["no quota"]


@given(
    st.from_regex(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?", fullmatch=True),
    st.integers(1, 101),
    st.integers(20, 50),
)
def test_a_name_is_as_short_as_its_kind_wants_it(job: str, attempt: int, longest: int) -> None:
    name = names.object_name(job, attempt, longest=longest)
    assert len(name) <= longest
    assert name == job or attempt > 1 or len(job) > longest
    assert names.object_name(job + "x", attempt, longest=longest) != name


KEY = names.AttemptKey("j", 1)


def found(name: str) -> Workload:
    meta = {
        "name": name,
        "uid": "u",
        "labels": names.labels("j", 1, name),
        "creationTimestamp": "2026-11-23T00:00:00Z",
    }
    workload = parse_workload({"metadata": meta}, KIND)
    assert workload is not None
    return workload
