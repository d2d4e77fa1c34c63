"""Checks of the cluster and of the server's rights in it, each with its fix. Nothing is changed.

The checks block. A check that the server may not make is reported, and is no failure.
"""

from __future__ import annotations

from collections.abc import Iterator

from client_lib.spec.wire import Check
from server_stub.runtimes.kube.api import Api, ApiError, get_if_visible
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, fit
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.permissions import FOR_DOCTOR, needed
from server_stub.runtimes.kube.workload import WorkloadKind

KUEUE = "/apis/kueue.x-k8s.io"
LEVEL = "pod-security.kubernetes.io/enforce"
LEVELS = ("privileged", "baseline", "restricted")  # each admits less than the one before
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def checks(api: Api, kind: WorkloadKind, settings: ClusterSettings, catalogue: ClusterCatalogue) -> list[Check]:
    """One result per check, good or bad."""
    found: list[Check] = []
    try:
        for check in _checks(api, kind, settings, catalogue):
            found.append(check)  # keeps those before an error
    except ApiError as error:
        fix = "check the kubeconfig, and whether the cluster is up"
        found.append(_bad("cluster", f"{api.host}: {error.message}", fix))
    return found


def _checks(api: Api, kind: WorkloadKind, settings: ClusterSettings, catalogue: ClusterCatalogue) -> Iterator[Check]:
    version = api.get("/version").get("gitVersion", "?")
    yield _good("cluster", f"{api.host} answers, Kubernetes {version}, namespace {settings.namespace}")
    yield _permissions(api, kind, settings)
    yield kind.check(api, settings.namespace)
    yield _pod_security(api, kind, settings)
    yield _catalogue(api, catalogue)
    yield from _queues(api, kind, settings)
    yield _workers(settings)


def _permissions(api: Api, kind: WorkloadKind, settings: ClusterSettings) -> Check:
    required, lacking = needed(kind), []
    for permission in sorted(required | FOR_DOCTOR):
        answer = api.request("POST", _REVIEWS, permission.review(settings.namespace))
        if not answer.get("status", {}).get("allowed"):
            lacking.append(permission)
    missing = [str(each) for each in lacking if each in required]
    if missing:
        message = f"the server may not {', '.join(missing)} in namespace {settings.namespace}"
        fix = "grant what k8s/base/role.yaml has: `kubectl apply -k` of the server's overlay, or to its user by hand"
        return _bad("permissions", message, fix)
    optional = [str(each) for each in lacking]
    message = f"all there, but for `doctor` itself: {', '.join(optional)}" if optional else "all there"
    return _good("permissions", message)


def _pod_security(api: Api, kind: WorkloadKind, settings: ClusterSettings) -> Check:
    namespace = get_if_visible(api, f"/api/v1/namespaces/{settings.namespace}")
    if namespace is None:
        message = f"pods keep to {settings.pod_security}; the server may not see the level that is enforced"
        return _good("pod security", message)
    enforced = (namespace["metadata"].get("labels") or {}).get(LEVEL, "privileged")
    message = f"namespace {settings.namespace} enforces {enforced}, pods keep to {settings.pod_security}"
    if LEVELS.index(enforced) > LEVELS.index(settings.pod_security):
        fix = f"CLIENT_LIB_SERVER_POD_SECURITY={enforced}, or a namespace that admits more"
        return _bad("pod security", f"{message}: they will be refused", fix)
    if enforced == "restricted" and (problem := kind.restricted_problem(api)):
        return _bad("pod security", *problem)
    return _good("pod security", message)


def _catalogue(api: Api, catalogue: ClusterCatalogue) -> Check:
    listed = get_if_visible(api, "/api/v1/nodes")
    if listed is None:
        return _good("catalogue", "not compared with the nodes: the server may not list them (k8s/base/nodes.yaml)")
    nodes = [found for raw in listed["items"] if (found := fit.node(raw))]
    misfits = {each.name: fit.misfit(each, catalogue, nodes) for each in catalogue.instance_types}
    wrong = [f"{name}: {why}" for name, why in misfits.items() if why]
    if wrong:
        fix = "correct the catalogue; or ignore this if an autoscaler adds such nodes when they are needed"
        return _bad("catalogue", f"no node could take a worker of {'; '.join(wrong)}", fix)
    return _good("catalogue", f"each of {len(misfits)} instance types fits one of {len(nodes)} nodes")


def _queues(api: Api, kind: WorkloadKind, settings: ClusterSettings) -> Iterator[Check]:
    """The check of Kueue, only where it is installed: most clusters have none, and few jobs name a queue."""
    if get_if_visible(api, KUEUE) is None:
        return
    try:
        queued = kind.is_queued(api, settings.namespace)
    except ApiError:
        return  # the check of the operator reports it
    if queued:
        yield _good("queues", f"Kueue takes {kind.name}s: jobs may name a queue")
    else:
        message = f"Kueue takes no {kind.name}s: a job that names a queue is refused; to change that, add"
        yield _good("queues", f"{message} {kind.kueue_framework} to integrations.frameworks of its configuration")


def _workers(settings: ClusterSettings) -> Check:
    if settings.server_url:
        return _good("worker connection", f"workers send their logs to {settings.server_url}")
    message = "workers can't reach this server: their logs come from the cluster, which loses lines of fast output"
    return _bad("worker connection", message, "CLIENT_LIB_SERVER_WORKER_SERVER_URL, the URL of this server for pods")


def _good(name: str, message: str) -> Check:
    return Check(name=name, ok=True, message=message)


def _bad(name: str, message: str, fix: str) -> Check:
    return Check(name=name, ok=False, message=message, fix=fix)
