"""The command line of every program of the cluster. Pure: a table from name to argv,
in the field's own flags.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tests.cluster.certificates import PROXY
from tests.cluster.network import Network
from tests.cluster.places import Home, Places
from tests.cluster.programs import is_built_by_us, path

OPERATORS = ("training-operator", "jobset", "trainer-controller-manager", "kueue")
STATE = "/run/state"
"""Inside the cluster: gone with it."""


@dataclass(frozen=True)
class Machine:
    """What a command line depends on. `components`: all that run beside it."""

    home: Home
    places: Places
    network: Network
    components: Collection[str]


def argv(name: str, machine: Machine) -> list[str]:
    """Absolute path first, so that it starts without a search."""
    return COMMANDS[name](machine)


def environment(name: str, machine: Machine) -> dict[str, str]:
    """All of it: nothing is inherited from whoever started the cluster."""
    search = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CLUSTER_RUN": str(machine.places.run)}
    # in a root without /etc/passwd
    alone = {"HOME": "/", "USER": "root", "KUBECONFIG": "operator.kubeconfig"}
    return {**search, **alone} if name in OPERATORS else search


def _etcd(machine: Machine) -> list[str]:
    client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    flags = {
        "data-dir": f"{machine.places.run}/etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "unsafe-no-fsync": "true",
        "quota-backend-bytes": str(2 << 30),
    }
    return _program("etcd", machine, flags)


def _apiserver(machine: Machine) -> list[str]:
    pki, network = machine.places.pki, machine.network
    flags = {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": network.node_ip,
        "advertise-address": network.node_ip,
        "secure-port": "6443",
        "tls-cert-file": f"{pki}/apiserver.crt",
        "tls-private-key-file": f"{pki}/apiserver.key",
        "client-ca-file": f"{pki}/ca.crt",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-cluster-ip-range": network.services,
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": f"{pki}/sa.pub",
        "service-account-signing-key-file": f"{pki}/sa.key",
        "kubelet-client-certificate": f"{pki}/apiserver-kubelet.crt",
        "kubelet-client-key": f"{pki}/apiserver-kubelet.key",
        "kubelet-certificate-authority": f"{pki}/ca.crt",
        "kubelet-preferred-address-types": "InternalIP,Hostname",
        "requestheader-client-ca-file": f"{pki}/ca.crt",
        "requestheader-allowed-names": PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": f"{pki}/apiserver-proxy.crt",
        "proxy-client-key-file": f"{pki}/apiserver-proxy.key",
        "enable-aggregator-routing": "true",  # to endpoints: it reaches them without kube-proxy
        "allow-privileged": "true",
        "audit-policy-file": f"{machine.places.config}/audit.json",
        "audit-log-path": f"{machine.places.log}/audit.log",
        "cert-dir": STATE,
    }
    if "kube-controller-manager" not in machine.components:
        # nobody would make the account that it asks for
        flags["disable-admission-plugins"] = "ServiceAccount"
    return _program("kube-apiserver", machine, flags)


def _controllers(machine: Machine) -> list[str]:
    pki = machine.places.pki
    flags = {
        **_leaderless("kube-controller-manager", machine),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": f"{pki}/sa.key",
        "root-ca-file": f"{pki}/ca.crt",
        "node-monitor-grace-period": "20s",
    }
    return _program("kube-controller-manager", machine, flags)


def _scheduler(machine: Machine) -> list[str]:
    return _program("kube-scheduler", machine, _leaderless("kube-scheduler", machine))


def _leaderless(name: str, machine: Machine) -> dict[str, str]:
    config = _kubeconfig(name, machine)
    return {
        "kubeconfig": config,
        "authentication-kubeconfig": config,
        "authorization-kubeconfig": config,
        "bind-address": machine.network.node_ip,
        "leader-elect": "false",
        "cert-dir": STATE,
    }


def _operator(machine: Machine) -> list[str]:
    flags = {
        "enable-scheme": "pytorchjob",
        "controller-threads": "8",
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        "pytorch-init-container-image": "localhost/python:local",
        "pytorch-init-container-template-file": f"{RUN}/config/init-container.yaml",
        "metrics-bind-address": f"{machine.network.node_ip}:8080",
        "health-probe-bind-address": f"{machine.network.node_ip}:8081",
    }
    return _with_certificate("training-operator", machine, flags)


def _jobset(machine: Machine) -> list[str]:
    return _with_certificate("jobset", machine, {"config": f"{RUN}/config/jobset.json"})


def _trainer(machine: Machine) -> list[str]:
    return _with_certificate(
        "trainer-controller-manager", machine, {"config": f"{RUN}/config/trainer.json"}
    )


def _kueue(machine: Machine) -> list[str]:
    flags = {"config": f"{RUN}/config/kueue.json", "kubeconfig": "operator.kubeconfig"}
    return _with_certificate("kueue", machine, flags)


ROOT, RUN = "/run/operator", "/run"
CERTIFICATES = ("tmp/k8s-webhook-server/serving-certs", "visibility", "etc/kueue/metrics/certs")
"""Folders from which one operator or another reads them."""


def _with_certificate(name: str, machine: Machine, flags: dict[str, str]) -> list[str]:
    """In a mount namespace and a root of its own: certificates are read from fixed folders."""
    folders = {f"{ROOT}/bin": path(machine.home, name).parent, f"{ROOT}{RUN}": machine.places.run}
    steps = [f"mkdir -p {ROOT} && mount -t tmpfs tmpfs {ROOT} && mkdir -m 1777 {ROOT}/tmp"]
    steps += [
        f"mkdir -p {inside} && mount --bind '{outside}' {inside}"
        for inside, outside in folders.items()
    ]
    for certificates in CERTIFICATES:
        steps.append(f"mkdir -p {ROOT}/{certificates}")
        steps += [
            f"cp {ROOT}{RUN}/pki/webhook.{kind} {ROOT}/{certificates}/tls.{kind}"
            for kind in ("crt", "key")
        ]
    steps.append(f"cp {ROOT}{RUN}/config/{name}.kubeconfig {ROOT}/operator.kubeconfig")
    steps.append(f"exec chroot {ROOT} /bin/{name} {' '.join(_flags(flags))}")
    return ["/usr/bin/unshare", "--mount", "sh", "-ec", "\n".join(steps)]


def _kwok(machine: Machine) -> list[str]:
    node_ip, pki = machine.network.node_ip, machine.places.pki
    flags = {
        "kubeconfig": _kubeconfig("kwok", machine),
        "config": f"{machine.places.config}/kwok.yaml",
        "manage-all-nodes": "false",
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        # else each node is NotReady for a moment after each grace period
        "node-lease-duration-seconds": "30",
        "node-ip": node_ip,
        "node-port": "10247",
        "server-address": f"{node_ip}:10247",
        "tls-cert-file": f"{pki}/kubelet-server.crt",
        "tls-private-key-file": f"{pki}/kubelet-server.key",
        "cidr": machine.network.fake_pods,
    }
    return _program("kwok", machine, flags)


def _containerd(machine: Machine) -> list[str]:
    return ["/usr/bin/env", "containerd", "--config", f"{machine.places.config}/containerd.toml"]


def _kubelet(machine: Machine) -> list[str]:
    flags = {
        "config": f"{machine.places.config}/kubelet.json",
        "kubeconfig": _kubeconfig("kubelet", machine),
        "hostname-override": "node1",
        "node-ip": machine.network.node_ip,
        "root-dir": f"{machine.places.run}/kubelet",
        "cert-dir": STATE,
    }
    return _program("kubelet", machine, flags)


def _proxy(machine: Machine) -> list[str]:
    return _program("kube-proxy", machine, {"config": f"{machine.places.config}/kube-proxy.json"})


def _coredns(machine: Machine) -> list[str]:
    return [str(path(machine.home, "coredns")), "-conf", f"{machine.places.config}/Corefile"]


def _program(name: str, machine: Machine, flags: dict[str, str]) -> list[str]:
    assert is_built_by_us(name)
    return [str(path(machine.home, name)), *_flags(flags)]


def _flags(flags: dict[str, str]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


def _kubeconfig(name: str, machine: Machine) -> str:
    return f"{machine.places.config}/{name}.kubeconfig"


COMMANDS: dict[str, Callable[[Machine], list[str]]] = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controllers,
    "kube-scheduler": _scheduler,
    "training-operator": _operator,
    "jobset": _jobset,
    "trainer-controller-manager": _trainer,
    "kueue": _kueue,
    "kwok": _kwok,
    "containerd": _containerd,
    "kubelet": _kubelet,
    "kube-proxy": _proxy,
    "coredns": _coredns,
}
