"""Another kind of workload needs one class: nothing of PyTorchJob is left in its objects, pods and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from client_lib.spec.states import Reason
from client_lib.spec.wire import Check
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import Api
from server_stub.runtimes.kube.doctor import Permission, needed
from server_stub.runtimes.kube.observe import ClusterState, observe, parse
from server_stub.runtimes.kube.render import render
from server_stub.runtimes.kube.workload import Meaning, Object, WorkloadKind, WorkloadPlan
from server_stub.worker_gateway import WorkerView
from tests.kube.cases import TOKEN, Case, case


class IndexedJob(WorkloadKind):
    """A kind whose pods have their index in a label of its own."""

    name, group, version, plural = "IndexedJob", "example.com", "v2", "indexedjobs"
    container, operator, kueue_framework = "node", "example operator", "example.com/indexedjob"
    own_variables = ()
    conditions: ClassVar[Mapping[str, Meaning]] = {"Broken": Meaning(Reason.START_FAILED, permanent=True)}

    def manifest(self, plan: WorkloadPlan) -> Object:
        spec = {"size": plan.spec.n_workers, "template": plan.template({"example.com/of": plan.name}, ())}
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": plan.metadata, "spec": spec}

    def worker_of(self, labels: Mapping[str, str]) -> int | None:
        return int(labels["example.com/index"]) if "example.com/index" in labels else None

    def is_queued(self, api: Api, namespace: str) -> bool:
        return False

    def check(self, api: Api, namespace: str) -> Check:
        return Check(name=self.operator, ok=True, message="")

    def restricted_problem(self, api: Api) -> None:
        return None


KIND = IndexedJob()


def objects(of: Case) -> list[Object]:
    return render(of.attempt, KIND, of.cluster, of.catalogue, TOKEN).all()


def test_its_objects_have_nothing_of_a_pytorch_job() -> None:
    *_, workload = objects(case("one-worker"))
    assert (workload["apiVersion"], workload["kind"], workload["spec"]["size"]) == ("example.com/v2", "IndexedJob", 1)
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
    raw = {"metadata": meta, "status": {"conditions": [{"type": "Broken", "status": "True", "message": "no nodes"}]}}
    workload = parse.workload(raw, KIND)
    seen = observe(ClusterState(1, workload, views=(WorkerView(0),)))
    assert (seen.blocker.reason, seen.blocker.permanent) == (Reason.START_FAILED, True)
    assert seen.blocker.message == "the operator has given the IndexedJob up: no nodes"
    pod = {
        "metadata": {**meta, "labels": labels | {"example.com/index": "3"}},
        "status": {"containerStatuses": [{"name": "node", "state": {"running": {}}}]},
    }
    found = parse.pod(pod, KIND)
    assert found is not None
    assert (found.worker, found.main.name, found.main.running_since) == (3, "node", "")
