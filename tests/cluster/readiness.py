"""When a program of the cluster is ready: not when its port is open, but when it
does what it is there for.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster import objects
from tests.cluster.api import Api
from tests.cluster.errors import ApiError, ClusterError, Unready
from tests.cluster.network import Network
from tests.cluster.node import Node
from tests.cluster.waiting import until

LIMIT_S = 120.0
LAST_LINES = 15


@dataclass(frozen=True)
class Probed:
    """What the probes look at."""

    node: Node
    api: Api
    network: Network


def wait(name: str, probed: Probed, limit_s: float = LIMIT_S) -> None:
    """Returns when the program does its work. Raises Unready with the last lines of its
    log, at once where it ended.
    """
    probe, last = PROBES[name], "nothing"
    for _ in until(limit_s):
        try:
            if probe(probed):
                return
        except (ClusterError, OSError) as error:
            last = str(error)
        if not probed.node.programs()[name].running:
            raise Unready(f"{name} ended; {_log_of(name, probed)}")
    raise Unready(
        f"{name} is not ready after {limit_s:g} s (last answer: {last}); {_log_of(name, probed)}"
    )


def _log_of(name: str, probed: Probed) -> str:
    path = probed.node.places.log / f"{name}.log"
    lines = path.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return f"the end of {path}:\n" + "\n".join(lines)


def _with_the_api_server(probed: Probed) -> bool:
    """etcd: an API server that is ready has asked it."""
    return True


def _api_server(probed: Probed) -> bool:
    return bool(probed.api.get("/readyz") == "ok")


def _controllers(probed: Probed) -> bool:
    """It has made the account that pods of a namespace need."""
    return bool(probed.api.get("/api/v1/namespaces/default/serviceaccounts/default"))


def _scheduler(probed: Probed) -> bool:
    return _healthy(f"https://{probed.network.node_ip}:10259/healthz")


def _operator(probed: Probed) -> bool:
    """The API server admits a PyTorchJob through the webhook, and the
    operator's controllers run.
    """
    probed.api.create(
        "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs?dryRun=All", objects.probe_job()
    )
    return _healthy(f"http://{probed.network.node_ip}:8081/readyz")


def _jobset(probed: Probed) -> bool:
    return _healthy(f"http://{probed.network.node_ip}:8083/readyz")


def _trainer(probed: Probed) -> bool:
    return _healthy(f"http://{probed.network.node_ip}:8082/readyz")


def _kueue(probed: Probed) -> bool:
    """Its webhook answers, and the API server takes requests for its API of waiting jobs to it."""
    probed.api.get("/apis/visibility.kueue.x-k8s.io/v1beta2")
    probed.api.create(f"{objects.KUEUE}/resourceflavors?dryRun=All", objects.flavor("probe")[1])
    return _healthy(f"http://{probed.network.node_ip}:8084/readyz")


def _containerd(probed: Probed) -> bool:
    return bool(probed.node.run("ctr", "version"))


def _kubelet(probed: Probed) -> bool:
    return node_is_ready(probed.api.get("/api/v1/nodes/node1"))


def _proxy(probed: Probed) -> bool:
    return _healthy(f"http://{probed.network.node_ip}:10256/healthz")


def _coredns(probed: Probed) -> bool:
    return _healthy(f"http://{probed.network.node_ip}:8181/ready")


def _kwok(probed: Probed) -> bool:
    return _healthy(f"http://{probed.network.node_ip}:10247/healthz")


def node_is_ready(node: dict[str, object]) -> bool:
    """By its own condition."""
    conditions = node.get("status", {}).get("conditions", [])  # type: ignore[attr-defined]
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=_any_certificate()) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        raise ApiError(error.code, f"{url}: {error.code}") from error


def _any_certificate() -> ssl.SSLContext:
    """The scheduler signs its own at each start."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


PROBES: dict[str, Callable[[Probed], bool]] = {
    "etcd": _with_the_api_server,
    "kube-apiserver": _api_server,
    "kube-controller-manager": _controllers,
    "kube-scheduler": _scheduler,
    "training-operator": _operator,
    "jobset": _jobset,
    "trainer-controller-manager": _trainer,
    "kueue": _kueue,
    "containerd": _containerd,
    "kubelet": _kubelet,
    "kube-proxy": _proxy,
    "coredns": _coredns,
    "kwok": _kwok,
}
