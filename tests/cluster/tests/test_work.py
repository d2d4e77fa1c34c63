"""What a cluster can do: jobs in real pods, thousands of fake ones, images, namespaces, faults."""

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import Cluster, ClusterError, images
from tests.cluster.errors import ApiError
from tests.cluster.tests.jobs import PATH, ends, fake_job, pytorch_job
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster
JOBS = PATH.format("jobs")
MEET = """
import os, socket
if os.environ["RANK"] == "0":
    with socket.create_server(("", 23456)) as server:
        print("met", server.accept()[0].recv(10).decode())
else:
    with socket.create_connection((os.environ["MASTER_ADDR"], 23456), timeout=60) as connection:
        connection.sendall(b"worker")
"""


def log_of(cluster: Cluster, pod: str) -> str:
    return str(cluster.api.get(f"/api/v1/namespaces/jobs/pods/{pod}/log"))


def test_a_job_of_two_pods_meets_over_dns_and_succeeds(cluster: Cluster) -> None:
    cluster.api.create(JOBS, pytorch_job("meets", ["python3", "-c", MEET]))
    assert ends(cluster.api, "meets") == "Succeeded"
    assert log_of(cluster, "meets-master-0") == "met worker\n"


def test_a_job_that_fails_is_seen_to_fail(cluster: Cluster) -> None:
    cluster.api.create(JOBS, pytorch_job("fails", ["sh", "-c", "exit 7"], workers=0))
    assert ends(cluster.api, "fails") == "Failed"
    status = cluster.api.get("/api/v1/namespaces/jobs/pods/fails-master-0")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7


def test_a_container_that_uses_too_much_memory_is_killed(cluster: Cluster) -> None:
    cluster.api.create(
        JOBS, pytorch_job("grows", ["python3", "-c", "x = bytearray(1 << 30)"], workers=0)
    )
    assert ends(cluster.api, "grows") == "Failed"
    status = cluster.api.get("/api/v1/namespaces/jobs/pods/grows-master-0")["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_the_namespace_for_jobs_refuses_what_is_not_restricted(cluster: Cluster) -> None:
    pod = {"containers": [{"name": "any", "image": "localhost/python:local"}]}
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        cluster.api.create(
            "/api/v1/namespaces/jobs/pods",
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loose"}, "spec": pod},
        )
    assert refused.value.status == 403


def test_the_webhook_refuses_two_masters(cluster: Cluster) -> None:
    refused = pytorch_job("two-masters", ["true"])
    refused["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2
    with pytest.raises(ApiError, match="admission webhook") as error:
        cluster.api.create(JOBS, refused)
    assert error.value.status == 403


def test_pods_reach_this_machine_and_this_machine_reaches_pods(cluster: Cluster) -> None:
    script = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=8000)"
    cluster.api.create(JOBS, pytorch_job("serves", ["python3", "-c", script], workers=0))
    for _ in until(120, pause_s=0.1):
        address = _status(cluster, "serves-master-0").get("podIP")
        try:
            with urllib.request.urlopen(
                f"http://{address}:8000/etc/hostname", timeout=1
            ) as response:
                assert response.read().decode().strip() == "serves-master-0"
                break
        except OSError:
            continue
    else:
        raise AssertionError("the pod's server did not answer")
    cluster.api.delete(f"{JOBS}/serves")


@pytest.fixture
def fake_nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Gone afterwards: others count the nodes of this cluster."""
    names = cluster.fake_nodes(
        3, {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    )
    yield names
    for name in names:
        cluster.api.delete(f"/api/v1/nodes/{name}")


def test_fake_nodes_run_fake_pods_whose_annotations_decide(
    cluster: Cluster, fake_nodes: list[str]
) -> None:
    assert len(fake_nodes) == 3
    cluster.api.create(JOBS, fake_job("fake-good", {"cluster.test/after": "500ms"}))
    fails = {"cluster.test/fate": "fail", "cluster.test/exit-code": "9"}
    cluster.api.create(JOBS, fake_job("fake-bad", fails, workers=0))
    assert ends(cluster.api, "fake-good") == "Succeeded"
    assert ends(cluster.api, "fake-bad") == "Failed"
    terminated = _status(cluster, "fake-bad-master-0")["containerStatuses"][0]["state"][
        "terminated"
    ]
    assert (terminated["exitCode"], terminated["reason"]) == (9, "Error")


def test_the_api_server_is_stopped_and_started_while_a_job_runs(cluster: Cluster) -> None:
    cluster.api.create(JOBS, pytorch_job("outlives", ["sleep", "8"], workers=0))
    cluster.kill("kube-apiserver")
    with pytest.raises(ApiError) as error:
        cluster.api.get("/readyz")
    assert error.value.status == 0
    cluster.start("kube-apiserver")
    assert ends(cluster.api, "outlives") == "Succeeded"


def test_an_image_is_loaded_from_an_archive(cluster: Cluster) -> None:
    assert cluster.load(str(images.archive(cluster.home, images.RECIPES["python"]))) == [
        "localhost/python:local"
    ]


def test_a_file_that_is_no_image_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="ctr"):
        cluster.load(__file__)


def _status(cluster: Cluster, pod: str) -> dict[str, Any]:
    try:
        status = cluster.api.get(f"/api/v1/namespaces/jobs/pods/{pod}")["status"]
    except ApiError as error:
        if error.status != 404:
            raise
        return {}
    assert isinstance(status, dict)
    return status
