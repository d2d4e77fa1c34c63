"""What could be wrong between the server and its cluster, and the fix for each. Nothing is changed.

Blocks: `runtime` calls it in a thread. What it may not look at is said, and is no failure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from client_lib.spec.wire import Check
from server_stub.runtimes.kube import fit, probe
from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.names import GROUP, KIND, PLURAL, VERSION
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.permissions import FOR_DOCTOR, NEEDED

OPERATOR = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
KUEUE = "/apis/kueue.x-k8s.io"
OLDEST_OPERATOR = (1, 9)
LEVEL = "pod-security.kubernetes.io/enforce"
LEVELS = ("privileged", "baseline", "restricted")  # each admits less than the one before
_INSTALL = "kubectl apply --server-side -k k8s/third-party/training-operator"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def checks(api: Api, settings: ClusterSettings, catalogue: Catalogue) -> list[Check]:
    """One line per thing looked at, good or bad."""
    found: list[Check] = []
    try:
        for check in _looks(api, settings, catalogue):
            found.append(check)  # those before an error stay
    except ApiError as error:
        fix = "check the kubeconfig, and whether the cluster is up"
        found.append(_bad("cluster", f"{api.host}: {error.message}", fix))
    return found


def _looks(api: Api, settings: ClusterSettings, catalogue: Catalogue) -> Iterator[Check]:
    version = api.get("/version").get("gitVersion", "?")
    yield _good("cluster", f"{api.host} answers, Kubernetes {version}, namespace {settings.namespace}")
    yield _permissions(api, settings)
    deployment = _read(api, OPERATOR)
    yield _operator(api, settings, deployment)
    yield from _pod_security(api, settings, deployment)
    yield _catalogue(api, catalogue)
    yield from _queues(api, settings)
    yield _workers(settings)


def _read(api: Api, path: str) -> Any:
    """The object; None where it isn't there, or is not for us to see."""
    try:
        return api.get(path)
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise


def _permissions(api: Api, settings: ClusterSettings) -> Check:
    lacking = []
    for permission in sorted(NEEDED | FOR_DOCTOR):
        answer = api.request("POST", _REVIEWS, permission.review(settings.namespace))
        if not answer.get("status", {}).get("allowed"):
            lacking.append(permission)
    needed = [str(each) for each in lacking if each in NEEDED]
    if needed:
        told = f"the server may not {', '.join(needed)} in namespace {settings.namespace}"
        fix = "grant what k8s/base/role.yaml has: `kubectl apply -k` of the server's overlay, or to its user by hand"
        return _bad("permissions", told, fix)
    spared = [str(each) for each in lacking]
    return _good("permissions", f"all there, but for `doctor` itself: {', '.join(spared)}" if spared else "all there")


def _operator(api: Api, settings: ClusterSettings, deployment: Any) -> Check:
    served = _read(api, f"/apis/{GROUP}/{VERSION}")
    if served is None or PLURAL not in [each.get("name") for each in served.get("resources", [])]:
        return _bad("training operator", f"the cluster knows no {KIND}", _INSTALL)
    version = _version(deployment)
    if version and _numbers(version) < OLDEST_OPERATOR:
        return _bad("training operator", f"{version} runs; 1.9 or newer is needed", _INSTALL)
    if deployment is not None and not (deployment.get("status") or {}).get("readyReplicas"):
        return _bad("training operator", "none of its pods is ready", "kubectl -n kubeflow describe pods")
    try:
        probe.made_of(api, settings.namespace)
    except ApiError as error:
        return _bad("training operator", f"it refuses a {KIND}: {error.message}", "kubectl -n kubeflow get pods")
    return _good("training operator", f"{version or 'one of an unknown version'} runs and takes a {KIND}")


def _version(deployment: Any) -> str | None:
    """Of its label, or the tag of its image."""
    if deployment is None:
        return None
    label = (deployment["metadata"].get("labels") or {}).get("app.kubernetes.io/version")
    image = deployment["spec"]["template"]["spec"]["containers"][0].get("image", "")
    tag = image.partition("@")[0].rpartition(":")[2]
    return label or (tag if _numbers(tag) else None)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def _pod_security(api: Api, settings: ClusterSettings, deployment: Any) -> Iterator[Check]:
    namespace = _read(api, f"/api/v1/namespaces/{settings.namespace}")
    if namespace is None:
        yield _good("pod security", f"pods keep to {settings.pod_security}; what is enforced the server may not see")
        return
    enforced = (namespace["metadata"].get("labels") or {}).get(LEVEL, "privileged")
    told = f"namespace {settings.namespace} enforces {enforced}, pods keep to {settings.pod_security}"
    if LEVELS.index(enforced) > LEVELS.index(settings.pod_security):
        fix = f"CLIENT_LIB_SERVER_POD_SECURITY={enforced}, or a namespace that admits more"
        yield _bad("pod security", f"{told}: they will be refused", fix)
    elif enforced == "restricted" and deployment is not None and not _has_own_init_container(deployment):
        told = "the operator puts its own init container before workers, which a `restricted` namespace refuses"
        yield _bad("pod security", told, f"{_INSTALL}, which gives it another one")
    else:
        yield _good("pod security", told)


def _has_own_init_container(deployment: Any) -> bool:
    """A template of its own: the operator's default is not restricted."""
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    mounts = [mount.get("mountPath", "") for mount in container.get("volumeMounts") or []]
    flags = [*(container.get("command") or []), *(container.get("args") or [])]
    return "/etc/config" in mounts or any("init-container-template-file" in flag for flag in flags)


def _catalogue(api: Api, catalogue: Catalogue) -> Check:
    listed = _read(api, "/api/v1/nodes")
    if listed is None:
        return _good("catalogue", "not compared with the nodes: the server may not list them (k8s/base/nodes.yaml)")
    nodes = [found for raw in listed["items"] if (found := fit.node(raw))]
    misfits = {each.name: fit.misfit(each, catalogue, nodes) for each in catalogue.instance_types}
    wrong = [f"{name}: {why}" for name, why in misfits.items() if why]
    if wrong:
        fix = "correct the catalogue; or the nodes appear when they are needed (an autoscaler), and all is well"
        return _bad("catalogue", f"no node could take a worker of {'; '.join(wrong)}", fix)
    return _good("catalogue", f"each of {len(misfits)} instance types fits one of {len(nodes)} nodes")


def _queues(api: Api, settings: ClusterSettings) -> Iterator[Check]:
    """Only where there is a Kueue: most clusters have none, and no job asks for it."""
    if _read(api, KUEUE) is None:
        return
    try:
        queued = probe.is_queued(api, settings.namespace)
    except ApiError:
        return  # the line about the operator has it
    if queued:
        yield _good("queues", "Kueue takes PyTorchJobs: jobs may name a queue")
    else:
        told = "Kueue takes no PyTorchJobs: a job that names a queue is refused; to have it, add"
        yield _good("queues", f"{told} kubeflow.org/pytorchjob to integrations.frameworks of its configuration")


def _workers(settings: ClusterSettings) -> Check:
    if settings.server_url:
        return _good("worker connection", f"workers send their logs to {settings.server_url}")
    told = "workers can't reach this server: their logs come from the cluster, which loses lines of who prints fast"
    return _bad("worker connection", told, "CLIENT_LIB_SERVER_WORKER_SERVER_URL, the URL of this server for pods")


def _good(name: str, message: str) -> Check:
    return Check(name=name, ok=True, message=message)


def _bad(name: str, message: str, fix: str) -> Check:
    return Check(name=name, ok=False, message=message, fix=fix)
