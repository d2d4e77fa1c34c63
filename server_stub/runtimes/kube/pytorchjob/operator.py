"""Questions to a cluster about its training operator: its version, a dry run of the smallest PyTorchJob, Kueue.

Nothing is created. Every function blocks and may raise ApiError.
"""

from __future__ import annotations

import re
from typing import Any

from client_lib.spec.wire import Check
from server_stub.runtimes.kube.api import Api, ApiError, get_if_visible
from server_stub.runtimes.kube.names import QUEUE
from server_stub.runtimes.kube.permissions import Permission
from server_stub.runtimes.kube.pytorchjob.manifest import CONTAINER, GROUP, NAME, PLURAL, VERSION

DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
READ_DEPLOYMENT = frozenset({Permission("apps", "deployments", "get")})
"""Right in the operator's namespace that k8s/third-party grants to everybody: `doctor` shows the operator's version."""
OLDEST = (1, 9)
INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"
_PROBE = "client-lib-probe"


def dry_run(api: Api, namespace: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """The PyTorchJob that would be created, after all webhooks. Raises ApiError if it would be refused."""
    template = {"spec": {"containers": [{"name": CONTAINER, "image": "none"}]}}
    job = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": NAME,
        "metadata": {"name": _PROBE, "labels": labels or {}},
        "spec": {
            "runPolicy": {"suspend": False},
            "pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}},
        },
    }
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
    answer: dict[str, Any] = api.request("POST", path, job, {"dryRun": "All", "fieldValidation": "Strict"})
    return answer


def is_queued(api: Api, namespace: str) -> bool:
    """True if a Kueue suspends a PyTorchJob that names a queue.

    A Kueue alone is not enough: its integration kubeflow.org/pytorchjob is off by default since 0.19, and a suspended
    job would then never start.
    """
    return bool(dry_run(api, namespace, {QUEUE: _PROBE})["spec"]["runPolicy"].get("suspend"))


def check(api: Api, namespace: str) -> Check:
    """The operator is installed, new enough and ready, and accepts a PyTorchJob."""
    served = get_if_visible(api, f"/apis/{GROUP}/{VERSION}")
    if served is None or PLURAL not in [each.get("name") for each in served.get("resources", [])]:
        return _bad(f"the cluster knows no {NAME}", INSTALL)
    deployment = get_if_visible(api, DEPLOYMENT)
    version = _version(deployment)
    if version and _numbers(version) < OLDEST:
        return _bad(f"{version} runs; 1.9 or newer is needed", INSTALL)
    if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
        return _bad("none of its pods is ready", "kubectl -n kubeflow describe pods")
    try:
        dry_run(api, namespace)
    except ApiError as error:
        return _bad(f"it refuses a {NAME}: {error.message}", "kubectl -n kubeflow get pods")
    message = f"{version or 'one of an unknown version'} runs and takes a {NAME}"
    return Check(name="training operator", ok=True, message=message)


def restricted_problem(api: Api) -> tuple[str, str] | None:
    """Problem and fix if the operator adds its default init container, which is not admitted by `restricted`."""
    deployment = get_if_visible(api, DEPLOYMENT)
    if deployment is None or _has_own_init_container(deployment):
        return None
    problem = "the operator puts its own init container before workers, which a `restricted` namespace refuses"
    return problem, f"{INSTALL}, which gives it another one"


def _version(deployment: Any) -> str | None:
    """Version in the deployment's label, or in the tag of its image."""
    if deployment is None:
        return None
    label = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
    tag = image.partition("@")[0].rpartition(":")[2]
    return label or (tag if _numbers(tag) else None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _has_own_init_container(deployment: Any) -> bool:
    """True if the operator is configured with a template for its init container."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    mounts = [mount.get("mountPath", "") for mount in container.get("volumeMounts") or []]
    flags = [*(container.get("command") or []), *(container.get("args") or [])]
    return "/etc/config" in mounts or any("init-container-template-file" in flag for flag in flags)


def _bad(message: str, fix: str) -> Check:
    return Check(name="training operator", ok=False, message=message, fix=fix)
