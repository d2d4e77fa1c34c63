"""PyTorchJobs for the tests, as a `restricted` namespace admits them."""

from typing import Any

from tests.cluster.api import Api
from tests.cluster.waiting import until

PATH = "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs"


def pytorch_job(
    name: str, command: list[str], workers: int = 1, image: str = "localhost/python:local"
) -> dict[str, Any]:
    """One master and `workers` workers that all run `command`."""
    replica = {"restartPolicy": "Never", "template": {"spec": _pod(command, image)}}
    replicas = {"Master": {**replica, "replicas": 1}}
    if workers:
        replicas["Worker"] = {**replica, "replicas": workers}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {"nprocPerNode": "1", "pytorchReplicaSpecs": replicas},
    }


def fake_job(name: str, annotations: dict[str, str], workers: int = 3) -> dict[str, Any]:
    """For fake nodes, whose pods do what their annotations say."""
    made = pytorch_job(name, ["none"], workers)
    for replica in made["spec"]["pytorchReplicaSpecs"].values():
        replica["template"] = {
            "metadata": {"annotations": annotations},
            "spec": {
                **replica["template"]["spec"],
                "nodeSelector": {"type": "kwok"},
                "tolerations": [{"key": "kwok", "operator": "Exists"}],
            },
        }
    return made


def ends(api: Api, name: str, limit_s: float = 180, namespace: str = "jobs") -> str:
    """`Succeeded` or `Failed`; what it said last where it ends as neither in time."""
    conditions: list[str] = []
    for _ in until(limit_s, pause_s=0.1):
        status = api.get(f"{PATH.format(namespace)}/{name}").get("status", {})
        conditions = [
            each["type"] for each in status.get("conditions") or [] if each["status"] == "True"
        ]
        for end in ("Failed", "Succeeded"):
            if end in conditions:
                return end
    return f"still {conditions}"


def _pod(command: list[str], image: str) -> dict[str, Any]:
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "pytorch",
        "image": image,
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": security,
        "resources": {
            "limits": {"cpu": "500m", "memory": "512Mi"},
            "requests": {"cpu": "50m", "memory": "64Mi"},
        },
    }
    return {"containers": [container], "terminationGracePeriodSeconds": 1}
