"""Decides if a node of the cluster could ever take a worker of an instance type, for `doctor`. Pure.

It finds catalogue entries that no node of the cluster fits, even if it were idle. It compares taints, labels and sizes
like the scheduler, but no affinity, quotas or volumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_lib.spec.job import JobSpec
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, placement
from server_stub.runtimes.kube.catalogue.needs import needs
from server_stub.runtimes.kube.catalogue.parts import InstanceType, Placement, Toleration
from server_stub.runtimes.kube.observe.messages import amount, quantity

REFUSING = ("NoSchedule", "NoExecute")


@dataclass(frozen=True)
class NodeFacts:
    """One node that takes new pods."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    allocatable: Mapping[str, float]


def node(raw: Mapping[str, Any]) -> NodeFacts | None:
    """The node; None: it takes no new pods."""
    meta, spec, status = raw.get("metadata") or {}, raw.get("spec") or {}, raw.get("status") or {}
    if spec.get("unschedulable"):
        return None
    sizes = {name: quantity(str(text)) for name, text in (status.get("allocatable") or {}).items()}
    return NodeFacts(
        name=str(meta.get("name", "")),
        labels=dict(meta.get("labels") or {}),
        taints=tuple(spec.get("taints") or ()),
        allocatable={name: size for name, size in sizes.items() if size is not None},
    )


def misfit(instance: InstanceType, catalogue: ClusterCatalogue, nodes: Sequence[NodeFacts]) -> str | None:
    """Message why no node could take a worker of this type; None: one could."""
    place = placement(catalogue, instance)
    labelled = [each for each in nodes if place.node_selector.items() <= each.labels.items()]
    if not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in place.node_selector.items())
        return f"no node has the labels {wanted}" if wanted else "there is no node that takes pods"
    open_ = [each for each in labelled if _tolerated(each, place)]
    if not open_:
        taints = {taint.get("key", "") for each in labelled for taint in each.taints if taint["effect"] in REFUSING}
        return f"its nodes have taints that it does not tolerate: {', '.join(sorted(taints))}"
    wanted_sizes = requests(instance, catalogue)
    if any(not _lacking(each, wanted_sizes) for each in open_):
        return None
    return _largest(open_, wanted_sizes)


def requests(instance: InstanceType, catalogue: ClusterCatalogue) -> dict[str, float]:
    """Requests of a worker, in cores, bytes and devices."""
    need = needs(JobSpec(script="x.py", instance_type=instance.name), catalogue)
    wanted = {"cpu": need.cpu_m / 1000, "memory": float(need.memory_mib * 2**20)}
    if need.gpus:
        wanted[instance.gpu_resource] = float(need.gpus)
    return wanted | {name: quantity(text) or 0.0 for name, text in instance.extra_resources.items()}


def _lacking(node: NodeFacts, wanted: Mapping[str, float]) -> list[str]:
    return [name for name, size in wanted.items() if node.allocatable.get(name, 0.0) < size]


def _largest(nodes: Sequence[NodeFacts], wanted: Mapping[str, float]) -> str:
    """Message about what the best of these nodes lacks."""
    nearest = min(nodes, key=lambda each: len(_lacking(each, wanted)))
    lacks = [
        f"{amount(name, wanted[name])}, and {nearest.name} gives {amount(name, nearest.allocatable.get(name, 0.0))}"
        for name in _lacking(nearest, wanted)
    ]
    return f"it wants {'; '.join(lacks)}"


def _tolerated(node: NodeFacts, place: Placement) -> bool:
    refusing = [taint for taint in node.taints if taint.get("effect") in REFUSING]
    return all(any(_tolerates(each, taint) for each in place.tolerations) for taint in refusing)


def _tolerates(toleration: Toleration, taint: Mapping[str, str]) -> bool:
    if toleration.effect not in (None, taint.get("effect")):
        return False
    if toleration.key is None:
        return True
    if toleration.key != taint.get("key"):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.get("value", "")
