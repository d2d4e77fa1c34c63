"""`POST /render` of a real server on a real API server: what a submit
creates, and nothing is created.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec.secrets import MASK
from server_stub.runtimes.kube import names
from tests.cluster import Cluster
from tests.cluster.errors import ApiError
from tests.cluster.waiting import until
from tests.kit.server_process import ServerProcess
from tests.kube.test_real_api import PATHS

CATALOGUE = Path(__file__).parents[2] / "docs" / "catalogue.example.yaml"
REQUEST = {
    "spec": {
        "script": "sleep 1",
        "type": "binary",
        "name": "dry",
        "n_workers": 2,
        "instance_type": "cpu.8C.32G",
        "internet": False,
        "env_variables": {"A": "1", "MY_TOKEN": "hush"},
        "secrets": ["HF_TOKEN"],
    },
    "code": {"mode": "in_place"},
    "secret_values": {"HF_TOKEN": "hush"},
}

pytestmark = pytest.mark.cluster


@pytest.fixture
def server_process(control_plane: Cluster, tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(
        tmp_path / "state",
        CLIENT_LIB_SERVER_RUNTIME="kubernetes",
        CLIENT_LIB_SERVER_KUBECONFIG=str(control_plane.kubeconfig),
        CLIENT_LIB_SERVER_KUBE_NAMESPACE="jobs",
        CLIENT_LIB_SERVER_CATALOGUE=str(CATALOGUE),
        CLIENT_LIB_SERVER_WORKER_SERVER_URL="http://10.0.0.9:8000",
    )
    yield server
    server.end()


def names_in(cluster: Cluster) -> set[tuple[str, str]]:
    found = set()
    for kind, path in PATHS.items():
        for each in cluster.api.get(path.format("jobs"))["items"]:
            found.add((kind, each["metadata"]["name"]))
    return found


def test_a_dry_run_shows_what_a_submit_creates_twice_and_creates_nothing(
    server_process: ServerProcess, control_plane: Cluster
) -> None:
    before = names_in(control_plane)
    shown = [server_process.call("POST", "/api/v1/render", json=REQUEST) for _ in range(2)]
    assert [answer.status_code for answer in shown] == [200, 200], shown[0].text
    assert shown[0].text == shown[1].text
    assert "hush" not in shown[0].text
    assert names_in(control_plane) == before

    manifest = shown[0].json()
    assert manifest["runtime"] == "kubernetes"
    submitted = server_process.call("POST", "/api/v1/jobs", json=REQUEST)
    assert submitted.status_code == 201
    kinds = [made["kind"] for made in manifest["objects"]]
    assert kinds == ["ConfigMap", "ConfigMap", "Secret", "Secret", "NetworkPolicy", "PyTorchJob"]
    for dry in with_id(manifest["objects"], submitted.json()["id"]):
        assert_holds(existing(control_plane, dry), dry, dry["kind"])


def with_id(objects: list[dict[str, Any]], job_id: str) -> list[dict[str, Any]]:
    """As of this job: the launcher's ConfigMap that it shares and the names of what its pods mount
    depend on its id, and a dry run has none.
    """
    launcher = objects[0]["metadata"]["name"]
    assert launcher.endswith("-00")
    no_id = objects[1]["metadata"]["labels"][names.JOB_ID]
    text = json.dumps(objects).replace(launcher, launcher[:-2] + job_id[:2])
    text = text.replace(names.mounted_name("dry", no_id), names.mounted_name("dry", job_id))
    found: list[dict[str, Any]] = json.loads(text)
    return found


def existing(cluster: Cluster, dry: dict[str, Any]) -> dict[str, Any]:
    path = f"{PATHS[dry['kind']].format('jobs')}/{dry['metadata']['name']}"
    for _ in until(60, pause_s=0.2):
        try:
            found: dict[str, Any] = cluster.api.get(path)
            return found
        except ApiError as error:
            if error.status != 404:
                raise
    raise AssertionError(f"{path} was not created")


def assert_holds(real: Any, dry: Any, where: str) -> None:
    """All of `dry` is in `real`, which the API server has completed, but for what
    tells one job from another.
    """
    if isinstance(dry, dict):
        for key, value in dry.items():
            if key not in (names.JOB_ID, "stringData", "binaryData", "data"):
                assert key in real, f"{where}.{key}"
                assert_holds(real[key], value, f"{where}.{key}")
            elif key == "stringData":
                assert value == dict.fromkeys(real["data"], MASK)
            elif key in ("binaryData", "data"):
                assert value.keys() == real[key].keys()
    elif isinstance(dry, list):
        assert len(real) == len(dry), where
        for index, (one, other) in enumerate(zip(real, dry, strict=True)):
            assert_holds(one, other, f"{where}[{index}]")
    else:
        assert real == dry, where
