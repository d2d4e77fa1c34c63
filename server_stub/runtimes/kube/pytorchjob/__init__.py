"""PyTorchJob of the Kubeflow training operator as a kind of workload; `manifest` has its pure part.

The functions here ask a cluster about the operator. They create nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from client_lib.spec.wire import Check
from server_stub.runtimes import checked
from server_stub.runtimes.kube.api import Api, ApiError, get_if_visible, serves
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.pytorchjob import manifest
from server_stub.runtimes.kube.workload import WorkloadKind

DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
OLDEST = (1, 9)
INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"


def _is_queued(api: Api, namespace: str) -> bool:
    """True if Kueue queues PyTorchJobs. Its presence alone is not enough: its integration kubeflow.org/pytorchjob
    is off by default since 0.19, and a suspended job would then never start."""
    return bool(PYTORCHJOB.dry_run(api, namespace, {QUEUE: PROBE})["spec"]["runPolicy"].get("suspend"))


def _check(api: Api, namespace: str) -> Check:
    """The operator is installed, new enough and ready, and accepts a PyTorchJob."""
    kind, result = PYTORCHJOB, partial(checked, PYTORCHJOB.operator)
    if not serves(api, kind.api_version, kind.plural):
        return result(f"the cluster has no resource type {kind.name}", INSTALL)
    deployment = get_if_visible(api, DEPLOYMENT)
    version = _version(deployment)
    if version and _numbers(version) < OLDEST:
        return result(f"{version} runs; 1.9 or newer is needed", INSTALL)
    if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
        return result("none of its pods is ready", "kubectl -n kubeflow describe pods")
    try:
        kind.dry_run(api, namespace)
    except ApiError as error:
        return result(f"it refuses a {kind.name}: {error.message}", "kubectl -n kubeflow get pods")
    return result(f"{version or 'one of an unknown version'} runs and takes a {kind.name}")


def _restricted_problem(api: Api) -> tuple[str, str] | None:
    """Problem and fix if the operator adds its default init container, which is not admitted by `restricted`."""
    deployment = get_if_visible(api, DEPLOYMENT)
    if deployment is None or _has_own_init_container(deployment):
        return None
    problem = "the operator puts its own init container before workers, which a `restricted` namespace refuses"
    return problem, f"{INSTALL}, which gives it another one"


def _gang_problem(api: Api) -> tuple[str, str] | None:
    """Problem and fix if the operator makes no PodGroups."""
    deployment = get_if_visible(api, DEPLOYMENT)
    if deployment is None or any("gang-scheduler-name" in flag for flag in _flags(deployment)):
        return None
    return "the operator makes no PodGroups", "start it with --gang-scheduler-name and the name of the scheduler"


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
    return "/etc/config" in mounts or any("init-container-template-file" in flag for flag in _flags(deployment))


def _flags(deployment: Any) -> list[str]:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return [*(container.get("command") or []), *(container.get("args") or [])]


PYTORCHJOB = WorkloadKind(
    name=manifest.NAME,
    group=manifest.GROUP,
    version=manifest.VERSION,
    plural=manifest.PLURAL,
    container=manifest.CONTAINER,
    operator="training operator",
    kueue_framework="kubeflow.org/pytorchjob",
    conditions=manifest.CONDITIONS,
    manifest=manifest.manifest,
    probe=manifest.probe,
    worker_of=manifest.worker_of,
    is_queued=_is_queued,
    check=_check,
    restricted_problem=_restricted_problem,
    gang_problem=_gang_problem,
    parts=lambda name: (f"PodGroup/{name}",),
)
