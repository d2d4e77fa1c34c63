"""The smallest PyTorchJob, asked for dry: what the operator's webhook says of it, and Kueue's. Nothing is made.

Blocks. `doctor` shows the answers; `runtime` has to know before it takes a job with a `queue_name`.
"""

from __future__ import annotations

from typing import Any

from server_stub.runtimes.kube.api import Api
from server_stub.runtimes.kube.names import CONTAINER, GROUP, KIND, PLURAL, QUEUE, VERSION

_NAME = "client-lib-probe"


def made_of(api: Api, namespace: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """What would be created. Raises ApiError: it would be refused, or nobody answers."""
    template = {"spec": {"containers": [{"name": CONTAINER, "image": "none"}]}}
    job = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": _NAME, "labels": labels or {}},
        "spec": {
            "runPolicy": {"suspend": False},
            "pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}},
        },
    }
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
    answer: dict[str, Any] = api.request("POST", path, job, {"dryRun": "All", "fieldValidation": "Strict"})
    return answer


def is_queued(api: Api, namespace: str) -> bool:
    """Whether a Kueue takes PyTorchJobs here: then it suspends each that names a queue, until its turn.

    That there is a Kueue does not say it: its integration kubeflow.org/pytorchjob is off by default since 0.19, and
    then nobody would ever start what is suspended. Raises ApiError.
    """
    return bool(made_of(api, namespace, {QUEUE: _NAME})["spec"]["runPolicy"].get("suspend"))
