"""Configuration files of the cluster's programs. Pure: each function returns what one file says.

All of it is JSON where the program reads YAML, for JSON is YAML; the rest is text in the program's
own form.
"""

import json
from pathlib import Path
from typing import Any

from tests.cluster.network import Network
from tests.cluster.places import Places

PAUSE_IMAGE = "localhost/pause:local"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
DOMAIN = "cluster.local"
INIT_CONTAINER = Path(__file__).parents[2] / "k8s/third-party/training-operator/initContainer.yaml"
"""File with the init container that the operator adds to each worker:
the one that `k8s/` deploys.
"""
TRAINER_WEBHOOK, JOBSET_WEBHOOK, KUEUE_WEBHOOK, KUEUE_API = 9444, 9445, 9446, 9447
"""Ports."""


def kwok(stages: list[str]) -> str:
    """KWOK's own stages and ours, as YAML documents of one file: no custom
    resources are needed for them.
    """
    return "\n---\n".join(stages)


def files(places: Places, network: Network) -> dict[str, str]:
    """Text of every file, by its name in the cluster's folder `config`."""
    return {
        "containerd.toml": containerd(places),
        "cni/10-cluster.conflist": json.dumps(cni(places, network), indent=1),
        "kubelet.json": json.dumps(kubelet(places, network), indent=1),
        "kube-proxy.json": json.dumps(kube_proxy(places, network), indent=1),
        "Corefile": coredns(places, network),
        "init-container.yaml": INIT_CONTAINER.read_text(),
        "jobset.json": json.dumps(jobset(network), indent=1),
        "trainer.json": json.dumps(trainer(network), indent=1),
        "kueue.json": json.dumps(kueue(network), indent=1),
        "audit.json": json.dumps(AUDIT, indent=1),
        "resolv.conf": f"nameserver {network.node_ip}\n",
    }


def containerd(places: Places) -> str:
    return f"""\
version = 2
root = "{places.store}"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{places.store}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A root without CAP_SYS_RESOURCE may not lower the score, and no sandbox would start.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"  # Debian's place
    conf_dir = "{places.config}/cni"
"""


def cni(places: Places, network: Network) -> dict[str, Any]:
    """No masquerading: this machine has a route to the pods, and beyond it
    they have nothing to reach.
    """
    return {
        "cniVersion": "1.0.0",
        "name": "cluster",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods0",
                "isGateway": True,
                "isDefaultGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{"subnet": network.pods}]],
                },
            }
        ],
    }


def kubelet(places: Places, network: Network) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node_ip,
        "healthzBindAddress": network.node_ip,
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{places.pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{places.pki}/kubelet-server.crt",
        "tlsPrivateKeyFile": f"{places.pki}/kubelet-server.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{places.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [network.node_ip],
        "clusterDomain": DOMAIN,
        "resolvConf": f"{places.config}/resolv.conf",
        "podLogsDir": f"{places.run}/pod-logs",
        "volumePluginDir": "/var/lib/kubelet-plugins",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "shutdownGracePeriod": "0s",
        "nodeStatusUpdateFrequency": "2s",
    }


def kube_proxy(places: Places, network: Network) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": f"{places.config}/kube-proxy.kubeconfig"},
        "clusterCIDR": network.pods,
        "hostnameOverride": "node1",
        "bindAddress": network.node_ip,
        "healthzBindAddress": f"{network.node_ip}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "nodePortAddresses": [f"{network.node_ip}/32"],
        # Not of a network namespace: hands off.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }


def coredns(places: Places, network: Network) -> str:
    return f"""\
.:53 {{
  bind {network.node_ip}
  errors
  ready {network.node_ip}:8181
  kubernetes {DOMAIN} in-addr.arpa {{
    kubeconfig {places.config}/coredns.kubeconfig
    ttl 0
  }}
}}
"""


def jobset(network: Network) -> dict[str, Any]:
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": JOBSET_WEBHOOK},
        "health": {"healthProbeBindAddress": f"{network.node_ip}:8083"},
        "metrics": {"bindAddress": "0"},
    }


def trainer(network: Network) -> dict[str, Any]:
    return {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "webhook": {"port": TRAINER_WEBHOOK},
        "clientConnection": {"qps": 500, "burst": 1000},  # as the training operator has
        "health": {"healthProbeBindAddress": f"{network.node_ip}:8082"},
        "metrics": {"bindAddress": "0"},
    }


def kueue(network: Network) -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": KUEUE_WEBHOOK},
        "health": {"healthProbeBindAddress": f"{network.node_ip}:8084"},
        "metrics": {"bindAddress": "0"},
        "visibilityServer": {"bindAddress": network.node_ip, "bindPort": KUEUE_API},
        "integrations": {
            "frameworks": ["kubeflow.org/pytorchjob", "trainer.kubeflow.org/trainjob"]
        },
    }


AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
    ],
}
"""Requests of pods alone are written to `log/audit.log`: what an application asks for,
beside what its Role allows.
"""
