"""The steps of `make kind` on a real kubelet: operator, server and job are pods, made by
k8s/kind.py from k8s/ as it is.

The test replaces only what kind itself brings: its node, its volumes, and the images that it would
pull or load.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
import yaml

from client_lib import __version__
from server_stub.runtimes.kube.doctor import OPTIONAL, needed
from server_stub.runtimes.kube.observe.messages import quantity
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.trainjob import TRAINJOB
from tests.cluster import Cluster, oci, programs
from tests.cluster.fixtures import running
from tests.cluster.images import NAMESPACE as IMAGES
from tests.cluster.places import Home
from tests.cluster.waiting import until
from tests.deploy import image
from tests.deploy.audit import READ_DEPLOYMENT, asked_by_pods
from tests.deploy.conftest import ROOT
from tests.deploy.test_manifests import KIND_ITSELF
from tests.store import postgresql

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NODE_PORT = 30080
PLACEHOLDER = "in-the-place-of-kind"
ONE_JOB = 0.25  # cores of cpu.small
TOO_LITTLE = 0.2  # for a job: with what the server requests it is enough
FILL = """
import os, pathlib, time
pathlib.Path(os.environ["HOME"], "large").write_bytes(bytes(200 * 2**20))
time.sleep(600)
"""
OPERATOR = ROOT / "k8s" / "third-party" / "training-operator"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Of its own: the operator is to be a pod."""
    with running("tests-deploy", {"node"}, ["python", "torch"]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deploy")


@pytest.fixture(scope="module")
def images(cluster: Cluster, workspace: Path) -> None:
    """The images that kind would build, load or pull, under the names in the manifests."""
    cluster.load(str(image.build(cluster.home, workspace, "localhost/client-lib-server:kind")))
    cluster.load(str(operator_image(cluster.home, workspace)))
    for ours, theirs in {
        "localhost/torch:local": "localhost/client-lib-demo:kind",
        "localhost/python:local": init_image(),
    }.items():
        cluster.node().run(*IMAGES, "images", "tag", "--force", ours, theirs)


def init_image() -> str:
    """The image of the operator's init containers, under the name by which
    containerd knows one with a digest.
    """
    patch = (OPERATOR / "deployment-patch.yaml").read_text()
    (found,) = re.findall(r"--pytorch-init-container-image=(\S+):\S+(@sha256:\w+)", patch)
    return "".join(found)


def operator_image(home: Home, workspace: Path) -> Path:
    """The operator as its Dockerfile has it: the program alone, as /manager."""
    (patch,) = yaml.safe_load((OPERATOR / "kustomization.yaml").read_text())["images"]
    layer, target = workspace / "operator.layer", workspace / "operator.tar"
    with tarfile.open(layer, "w") as tar:
        tar.add(programs.path(home, "training-operator"), "manager")
    oci.write(target, f"{patch['name']}:{patch['newTag']}", [layer], ["/manager"])
    return target


@pytest.fixture(scope="module")
def models(cluster: Cluster) -> Path:
    """The folder of the claim `models`. kind's provisioner makes folders for claims;
    here they are made before.
    """
    for claim in ("client-lib-data", "models"):
        cluster.api.create(
            "/api/v1/persistentvolumes", volume(cluster, "client-lib", claim, "20Gi")
        )
    return folder_of(cluster, "client-lib", "models")


def folder_of(cluster: Cluster, namespace: str, claim: str) -> Path:
    return cluster.places.run / "volumes" / namespace / claim


def volume(cluster: Cluster, namespace: str, claim: str, size: str) -> dict[str, Any]:
    """For this claim alone, in a folder that is made for it."""
    path = folder_of(cluster, namespace, claim)
    path.mkdir(parents=True)
    path.chmod(0o777)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "local": {"path": str(path)},
            "claimRef": {"namespace": namespace, "name": claim},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


@pytest.fixture(scope="module")
def without_operator(cluster: Cluster, kubectl_program: Path) -> None:
    """The tool runs the operator beside the API server; here it is to be a pod."""
    cluster.stop("training-operator")
    for kind, name in (
        ("validatingwebhookconfiguration", "validator.training-operator.kubeflow.org"),
        ("clusterrolebinding", "training-operator"),
        ("secret", "training-operator-webhook-cert"),
    ):
        words = ["-n", "kubeflow", "delete", kind, name]
        subprocess.run(
            [kubectl_program, "--kubeconfig", cluster.kubeconfig, *words],
            check=True,
            capture_output=True,
        )
    cluster.api.merge("/api/v1/namespaces/kubeflow", {"metadata": {"labels": None}})


class Kind:
    """k8s/kind.py from a copy of the project: it writes a token beside the overlay."""

    def __init__(self, cluster: Cluster, project: Path, kubectl: Path) -> None:
        for name in ("k8s", "examples"):
            shutil.copytree(ROOT / name, project / name)
        self.endpoint = f"http://{cluster.network.node_ip}:{NODE_PORT}"
        self._kubectl = f"{kubectl} --kubeconfig {cluster.kubeconfig}"
        self._project = project
        self._token = ""

    def at(self, port: int, token: str) -> Kind:
        """Another server of the cluster, for the client."""
        other = copy.copy(self)
        other.endpoint, other._token = self.endpoint.replace(str(NODE_PORT), str(port)), token
        return other

    def run(self, *steps: str) -> str:
        """Its standard output. What it said on stderr is shown when it fails."""
        command = [
            sys.executable,
            "k8s/kind.py",
            *steps,
            "--kubectl",
            self._kubectl,
            "--endpoint",
            self.endpoint,
        ]
        return self._run(command)

    def offer(self, instance_type: str) -> None:
        """Add a type to the catalogue, before the server is made."""
        path = self._project / "k8s" / "overlays" / "kind" / "catalogue.yaml"
        edit(path, {"instance_types:\n": f"instance_types:\n  - {instance_type}\n"})

    def write(self, name: str, text: str) -> str:
        """The path of a new script."""
        path = self._project / name
        path.write_text(text)
        return str(path)

    def client_lib(self, *words: str) -> str:
        return self._run([sys.executable, "-m", "client_lib", *words])

    def _run(self, command: list[str]) -> str:
        token = self._project / "k8s" / "overlays" / "kind" / "token"
        variables = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CLIENT_LIB_INSECURE": "1",  # kind's port is one of loopback; this one is the node's
            "CLIENT_LIB_CONFIG": str(self._project / "config.toml"),
            "CLIENT_LIB_STATE_DIR": str(self._project / "state"),
            "CLIENT_LIB_ENDPOINT": self.endpoint,
            "CLIENT_LIB_TOKEN": self._token
            or (token.read_text().strip() if token.exists() else ""),
        }
        ended = subprocess.run(
            command, cwd=self._project, env=variables, capture_output=True, text=True, timeout=600
        )
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        return ended.stdout


@pytest.fixture(scope="module")
def small_node(cluster: Cluster) -> None:
    """A pod takes of the node all but what kind's own pods leave of two CPUs."""
    (node,) = cluster.api.get("/api/v1/nodes")["items"]
    cores = quantity(node["status"]["allocatable"]["cpu"])
    assert cores is not None
    taken = {"cpu": f"{cores - 2 + KIND_ITSELF['cpu']}", "memory": str(KIND_ITSELF["memory"])}
    pod = pause_pod(PLACEHOLDER, taken)
    cluster.api.create("/api/v1/namespaces/kube-system/pods", pod)


def pause_pod(name: str, requests: dict[str, str]) -> dict[str, Any]:
    """A pod that takes room of the node and does nothing."""
    container = {
        "name": "pause",
        "image": "localhost/pause:local",
        "imagePullPolicy": "Never",
        "resources": {"requests": requests},
    }
    return {"metadata": {"name": name}, "spec": {"containers": [container]}}


@pytest.fixture
def whole_node(cluster: Cluster) -> None:
    """Room for more servers than the one of `make kind`."""
    pods = cluster.api.get("/api/v1/namespaces/kube-system/pods")["items"]
    if PLACEHOLDER in [pod["metadata"]["name"] for pod in pods]:
        cluster.api.delete(f"/api/v1/namespaces/kube-system/pods/{PLACEHOLDER}")


@pytest.fixture(scope="module")
def kind(
    cluster: Cluster,
    small_node: None,
    images: None,
    models: Path,
    without_operator: None,
    kubectl_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Kind:
    """With the operator and the server running as pods."""
    kind = Kind(cluster, tmp_path_factory.mktemp("project") / "here", kubectl_program)
    kind.offer("{name: cpu.small-disk, cpu: 0.25, memory_gib: 1, disk_gib: 0.1}")
    kind.run("operator")
    kind.run("server")
    return kind


@pytest.fixture(scope="module")
def demo(kind: Kind) -> str:
    """The last output of `make kind`: the demo job, followed to its end."""
    return kind.run("demo")


def test_the_operator_runs_as_a_restricted_pod(kind: Kind, cluster: Cluster) -> None:
    (pod,) = cluster.api.get("/api/v1/namespaces/kubeflow/pods")["items"]
    assert pod["status"]["containerStatuses"][0]["ready"]
    namespace = cluster.api.get("/api/v1/namespaces/kubeflow")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_demo_job_trains_on_two_pods_and_leaves_its_model_on_the_volume(
    kind: Kind, demo: str, models: Path
) -> None:
    assert "rank 3 of 4 trains on cpu" in demo
    assert "epoch 11" in demo
    assert "test accuracy 0.9" in demo
    (model,) = models.rglob("digits.pt")
    assert model.stat().st_size > 10_000
    (job,) = [
        job
        for job in json.loads(kind.client_lib("list", "-o", "json"))
        if job["name"].startswith("digits")
    ]
    assert (job["state"], job["runtime"]) == ("SUCCEEDED", "kubernetes")
    assert [worker["exit_code"] for worker in job["workers"]] == [0, 0]
    logged = kind.client_lib("logs", job["name"], "--stream", "train.log")
    assert {f"rank {rank} epoch 11" in logged for rank in range(4)} == {True}


def test_the_server_asks_for_nothing_that_its_role_does_not_grant(
    demo: str, cluster: Cluster
) -> None:
    asked = asked_by_pods(cluster, "client-lib")
    assert asked <= needed(PYTORCHJOB) | needed(TRAINJOB) | OPTIONAL | READ_DEPLOYMENT
    assert ("kubeflow.org", "pytorchjobs", "create") in asked


@pytest.mark.parametrize(
    ("option", "reason", "said"),
    [
        (["--exclude-node", "node1"], "Unschedulable", "0/1 nodes"),
        (
            ["--image", "localhost/nobody-has:this"],
            "ImagePull",
            "image 'localhost/nobody-has:this' can't be pulled",
        ),
    ],
)
def test_a_job_that_waits_explains_itself(
    kind: Kind, option: list[str], reason: str, said: str
) -> None:
    name = f"waits-{reason.lower()}"
    kind.client_lib("submit", "--name", name, *option, "examples/digits_ddp.py")
    for _ in until(180, pause_s=0.5):
        text = kind.client_lib("explain", name)
        if said in text.splitlines()[0]:
            break
    kind.client_lib("delete", "--force", name)
    assert f"job {name} is PENDING ({reason}), for" in text
    assert said in text.splitlines()[0]
    assert text.splitlines()[-1].startswith("next: ")


def test_a_worker_that_writes_more_than_its_disk_holds_is_told_so(kind: Kind) -> None:
    """The kubelet measures folders once a minute."""
    script = kind.write("fill.py", FILL)
    kind.client_lib("submit", "--name", "fills", "-i", "cpu.small-disk", script)
    for _ in until(240, pause_s=1):
        (job,) = [
            job
            for job in json.loads(kind.client_lib("list", "-o", "json"))
            if job["name"] == "fills"
        ]
        if job["state"] in ("FAILED", "SUCCEEDED"):
            break
    assert (job["state"], job["reason"]) == ("FAILED", "StorageFull")
    assert (
        "it wrote more than 103Mi to /client-lib/home; put large files on a volume"
        in job["message"]
    )


def test_a_rollout_on_a_full_node_takes_the_place_of_a_waiting_job_and_not_of_one_that_trains(
    kind: Kind, cluster: Cluster, kubectl_program: Path
) -> None:
    """The node has room for one job. As the server's pod ends, the waiting one gets its place."""
    pods = cluster.api.get("/api/v1/pods")["items"]
    requests = [
        quantity(container["resources"].get("requests", {}).get("cpu", "0")) or 0
        for pod in pods
        if pod["status"]["phase"] in ("Pending", "Running")
        for container in pod["spec"]["containers"]
    ]
    (node,) = cluster.api.get("/api/v1/nodes")["items"]
    free = (quantity(node["status"]["allocatable"]["cpu"]) or 0) - sum(requests)
    filler = pause_pod("fills-the-node", {"cpu": f"{free - ONE_JOB - TOO_LITTLE:.3f}"})
    cluster.api.create("/api/v1/namespaces/kube-system/pods", filler)

    script = kind.write("train.py", "import time\nprint('trains', flush=True)\ntime.sleep(600)")
    kind.client_lib("submit", "--name", "trains", "-i", "cpu.small", script)
    becomes(kind, "trains", "RUNNING")
    kind.client_lib("submit", "--name", "waits", "-i", "cpu.small", script)
    becomes(kind, "waits", "PENDING", "Unschedulable")
    kubectl = [str(kubectl_program), f"--kubeconfig={cluster.kubeconfig}", "-n", "client-lib"]
    server = "deployment/client-lib-server"
    subprocess.run([*kubectl, "rollout", "restart", server], check=True)
    subprocess.run([*kubectl, "rollout", "status", server, "--timeout=120s"], check=True)

    becomes(kind, "trains", "RUNNING")
    assert job_of(kind, "trains")["attempt"] == 1
    cluster.api.delete("/api/v1/namespaces/kube-system/pods/fills-the-node")
    becomes(kind, "waits", "RUNNING")
    kind.client_lib("delete", "--force", "trains", "waits")


def job_of(kind: Kind, name: str) -> dict[str, Any]:
    jobs = json.loads(kind.client_lib("list", "-o", "json"))
    (found,) = [job for job in jobs if job["name"] == name]
    return dict(found)


def becomes(kind: Kind, name: str, state: str, reason: str = "") -> None:
    job: dict[str, Any] = {}
    for _ in until(180, pause_s=0.5):
        job = job_of(kind, name)
        if job["state"] == state and reason in (job["reason"], ""):
            return
    raise AssertionError((job["state"], job["reason"], job["message"]))


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    """URL of a PostgreSQL on this machine, as pods see it."""
    found = postgresql.binaries()
    if found is None:
        pytest.skip("PostgreSQL's initdb is not installed (apt-get install postgresql)")
    machine = f"10.{cluster.network.number}.0.1"
    with postgresql.started(found, machine, clients="10.0.0.0/8") as server:
        yield server.url()


def test_the_production_overlay_serves_from_postgresql(
    whole_node: None,
    kind: Kind,
    cluster: Cluster,
    manifests: Path,
    kubectl_program: Path,
    database: str,
) -> None:
    """With the values of this place where it says HERE, in a namespace of its own."""
    folder = manifests / "overlays" / "production"
    (folder / "server.env").write_text(f"CLIENT_LIB_SERVER_DATABASE_URL={database}\n")
    edit(folder / "namespace.yaml", {"name: client-lib": "name: production"})
    image_here = f"newName: registry.example.com/client-lib-server, newTag: {__version__}"
    image_there = "newName: localhost/client-lib-server, newTag: kind"
    edit(
        folder / "kustomization.yaml",
        {"namespace: client-lib #": "namespace: production #", image_here: image_there},
    )
    cluster.api.create(
        "/api/v1/persistentvolumes", volume(cluster, "production", "client-lib-data", "200Gi")
    )
    kubectl = [str(kubectl_program), f"--kubeconfig={cluster.kubeconfig}"]
    subprocess.run([*kubectl, "apply", "-k", folder], check=True)
    rollout = ["rollout", "status", "deployment/client-lib-server", "--timeout=300s"]
    subprocess.run([*kubectl, "-n", "production", *rollout], check=True)
    engine = sqlalchemy.create_engine(database)
    assert "jobs" in sqlalchemy.inspect(engine).get_table_names()
    engine.dispose()


def test_helm_installs_a_server_that_runs_a_job_and_keeps_its_data(
    whole_node: None,
    kind: Kind,
    cluster: Cluster,
    kubectl_program: Path,
    helm_program: Path,
    workspace: Path,
) -> None:
    """The release is upgraded with another catalogue, uninstalled, and installed again."""
    cluster.namespace("by-helm", "restricted")
    cluster.api.create(
        "/api/v1/persistentvolumes", volume(cluster, "by-helm", "client-lib-data", "1Gi")
    )
    users, values = workspace / "users.toml", workspace / "values.yaml"
    token = kind.client_lib("server", "token", "me", "--users-file", str(users)).split()[-1]
    sizes = [{"name": "cpu.small", "cpu": 0.3, "memory_gib": 0.5}]
    given: dict[str, Any] = {
        "image": {"repository": "localhost/client-lib-server", "tag": "kind"},
        "storage": {"size": "1Gi"},
        "service": {"type": "NodePort", "nodePort": NODE_PORT + 1},
        "catalogue": {
            "instance_types": sizes,
            "images": {"default": "localhost/client-lib-demo:kind"},
        },
    }

    def helm(*words: str) -> None:
        values.write_text(yaml.safe_dump(given))
        kubeconfig = f"--kubeconfig={cluster.kubeconfig}"
        done = subprocess.run(
            [helm_program, kubeconfig, "--namespace=by-helm", *words],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr

    install = ["upgrade", "--install", "mine", str(ROOT / "k8s" / "chart"), f"--values={values}"]
    install += [f"--set-file=users.file={users}", "--wait", "--timeout=240s"]
    helm(*install)
    there = kind.at(NODE_PORT + 1, token)
    script = kind.write("hello.py", "print('hello from a chart')")
    there.client_lib("submit", "-f", "--name", "hello", "-i", "cpu.small", script)
    sizes.append({"name": "cpu.large", "cpu": 0.5, "memory_gib": 1})
    helm(*install)
    assert [each["name"] for each in json.loads(there.client_lib("instances", "-o", "json"))] == [
        "cpu.small",
        "cpu.large",
    ]
    helm("uninstall", "mine", "--wait")
    helm(*install)
    assert "hello from a chart" in there.client_lib("logs", "hello")


def edit(path: Path, changes: dict[str, str]) -> None:
    text = path.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def test_the_doctor_finds_all_well(kind: Kind) -> None:
    """Its exit code says so."""
    checks = {check["name"]: check for check in json.loads(kind.client_lib("doctor", "-o", "json"))}
    assert "v1.9.4 runs" in checks["training operator"]["message"]
    assert "enforces restricted" in checks["pod security"]["message"]
    assert "each of 3 instance types" in checks["catalogue"]["message"]
