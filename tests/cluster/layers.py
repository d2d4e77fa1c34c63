"""Which programs make up which layer. Pure; the one place that knows.

A test asks for the least that it needs: `api` is there in seconds, `node` runs real containers.
"""

from collections.abc import Iterable

API = ("etcd", "kube-apiserver", "training-operator")
CONTROL = ("kube-controller-manager", "kube-scheduler")
TRAINER = ("jobset", "trainer-controller-manager")
KUEUE = ("kueue",)
NODE = ("containerd", "kubelet", "kube-proxy", "coredns")

LAYERS = {
    "api": API,
    "kwok": (*API, *CONTROL, "kwok"),
    "node": (*API, *CONTROL, *NODE),
    "trainer": (*API, *TRAINER),
    "kueue": (*API, *TRAINER, *KUEUE),
}

MEANING = {
    "api": "API server, PyTorchJob's CRD, the training operator and its webhook; no pod ever runs",
    "kwok": (
        "api + controllers + scheduler + KWOK: pods on fake nodes, by the thousand, whose fate "
        "annotations decide"
    ),
    "trainer": (
        "api + TrainJob of Kubeflow Trainer v2 and JobSet, with their controllers and webhooks"
    ),
    "kueue": "trainer + Kueue with its webhooks and its API of waiting jobs",
    "node": (
        "api + controllers + scheduler + one real node: containers, logs, exec, DNS, services, "
        "memory limits"
    ),
}

ORDER = (
    "etcd",
    "kube-apiserver",
    "containerd",
    "kube-controller-manager",
    "kube-scheduler",
    "training-operator",
    "jobset",
    "trainer-controller-manager",
    "kueue",
    "kwok",
    "coredns",
    "kubelet",
    "kube-proxy",
)
"""Of their start. The first three need no API server; all others do."""


def components(layers: Iterable[str]) -> list[str]:
    """The programs of these layers together, each once, in the order of their start."""
    wanted = {name for layer in layers for name in LAYERS[layer]}
    return [name for name in ORDER if name in wanted]


def layers_of(running: Iterable[str]) -> set[str]:
    """The layers that are whole when these programs run."""
    have = set(running)
    return {layer for layer, names in LAYERS.items() if have.issuperset(names)}
