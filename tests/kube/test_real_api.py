"""A real API server judges every golden: its schemas strictly, the operator's webhook,
Pod Security of its pods.
"""

from typing import Any

import pytest
import yaml

from tests.cluster import Cluster
from tests.cluster.errors import ApiError
from tests.cluster.waiting import until
from tests.kube.cases import BUILDERS, GOLDEN, Builder, case

DRY = "?dryRun=All&fieldValidation=Strict"
PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
    "Pod": "/api/v1/namespaces/{}/pods",
}
NAMESPACE = {"restricted": "jobs", "baseline": "baseline-jobs", "privileged": "privileged-jobs"}

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster) -> Cluster:
    """With what the example catalogue names and an operator of a cluster has made."""
    for level, namespace in NAMESPACE.items():
        control_plane.namespace(namespace, level)
    for name in ("batch-low", "batch-medium", "batch-high"):
        path = f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"
        made = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 1,
        }
        control_plane.api.apply(path, made)
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "x",
    }
    control_plane.api.apply("/apis/node.k8s.io/v1/runtimeclasses/nvidia", runtime)
    return control_plane


def golden(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))


def templates(job: dict[str, Any]) -> list[dict[str, Any]]:
    return [replica["template"] for replica in job["spec"]["pytorchReplicaSpecs"].values()]


def pod(template: dict[str, Any]) -> dict[str, Any]:
    """Pod Security judges pods, and looks at no template of a PyTorchJob."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "of-the-template"},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }


def pods_of(cluster: Cluster, job: str, count: int) -> list[dict[str, Any]]:
    """In order of their names, once there are so many."""
    selector = f"?labelSelector=client-lib.io%2Fjob-name%3D{job}"
    pods: list[dict[str, Any]] = []
    for _ in until(90, pause_s=0.2):
        pods = cluster.api.get(PATHS["Pod"].format("jobs") + selector)["items"]
        if len(pods) == count:
            break
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_every_object_is_taken_strictly_and_its_pods_are_admitted(
    cluster: Cluster, name: str
) -> None:
    namespace = NAMESPACE[case(name).catalogue.pod_security]
    for made in golden(name):
        made["metadata"]["namespace"] = namespace
        cluster.api.create(PATHS[made["kind"]].format(namespace) + DRY, made)
        for template in templates(made) if made["kind"] == "PyTorchJob" else ():
            cluster.api.create(PATHS["Pod"].format(namespace) + DRY, pod(template))


def test_the_server_is_strict_and_restricted_refuses_what_is_not(cluster: Cluster) -> None:
    """Else the test above would prove nothing."""
    *_, job = golden("one-worker")
    wrong = {**job, "spec": {**job["spec"], "nprocPerNodes": "1"}}
    with pytest.raises(ApiError, match="unknown field"):
        cluster.api.create(PATHS["PyTorchJob"].format("jobs") + DRY, wrong)
    loose = pod(templates(job)[0])
    loose["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises(ApiError, match="violates PodSecurity"):
        cluster.api.create(PATHS["Pod"].format("jobs") + DRY, loose)


def test_the_operators_pods_are_restricted_and_what_they_say_of_the_world_agrees(
    cluster: Cluster,
) -> None:
    """It appends its own variables after ours, and the last one counts."""
    objects = Builder(spec={"n_workers": 2, "processes_per_worker": 3}).build("agree").objects()
    for made in objects.all():
        cluster.api.create(PATHS[made["kind"]].format("jobs"), made)
    pods = pods_of(cluster, "agree", 2)
    assert [made["metadata"]["name"] for made in pods] == ["agree-master-0", "agree-worker-0"]
    for index, made in enumerate(pods):
        of_pod = [(v["name"], v.get("value")) for v in made["spec"]["containers"][0]["env"]]
        assert {value for name, value in of_pod if name == "WORLD_SIZE"} == {"6"}
        assert dict(of_pod)["RANK"] == str(index)
        assert dict(of_pod)["MASTER_ADDR"] == "agree-master-0"
        assert dict(of_pod)["LOCAL_RANK"] == "0"
