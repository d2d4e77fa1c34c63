"""Instance types against nodes: what no node could ever take is said with what it lacks."""

from typing import Any

import pytest

from server_stub.runtimes.kube import doctor
from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.catalogue.file import read

CATALOGUE = """
instance_types:
  - {name: cpu, cpu: 4, memory_gib: 8}
  - {name: gpu, node: a100, gpus: 8, cpu: 60, memory_gib: 500, extra_resources: {rdma/hca: "1"}}
nodes:
  - name: a100
    cpu: 64
    memory_gib: 512
    reserve: {cpu: 4, memory_gib: 32}
    node_selector: {kind: a100}
    tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
"""


def catalogue() -> ClusterCatalogue:
    return read(CATALOGUE)


def node(cpu: str = "64", memory: str = "512Gi", **more: Any) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": memory, "ephemeral-storage": "100Gi"} | more.pop(
        "allocatable", {}
    )
    spec = {"taints": more.pop("taints", [])}
    return {
        "metadata": {"name": "n1", "labels": more},
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


GPUS = {"nvidia.com/gpu": "8", "rdma/hca": "1"}
TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}


def misfit(name: str, *nodes: dict[str, Any]) -> str | None:
    return doctor.misfit(catalogue().find(name), catalogue(), nodes)


def test_a_node_that_has_all_of_it_fits() -> None:
    assert misfit("cpu", node()) is None
    assert misfit("gpu", node(kind="a100", taints=[TAINT], allocatable=GPUS)) is None


def test_what_the_node_keeps_for_itself_is_taken_off_the_request() -> None:
    assert misfit("gpu", node(cpu="60", memory="480Gi", kind="a100", allocatable=GPUS)) is None


def test_a_label_that_no_node_has_is_named() -> None:
    assert misfit("gpu", node(allocatable=GPUS)) == "no node has the labels kind=a100"


def test_a_taint_that_is_not_tolerated_is_named() -> None:
    assert misfit("cpu", node(taints=[TAINT])) == (
        "its nodes have taints that it does not tolerate: nvidia.com/gpu"
    )


@pytest.mark.parametrize("effect", ["PreferNoSchedule", ""])
def test_a_taint_that_refuses_nobody_is_none(effect: str) -> None:
    assert misfit("cpu", node(taints=[{**TAINT, "effect": effect}])) is None


def test_a_toleration_of_another_effect_does_not_count() -> None:
    taint = {**TAINT, "effect": "NoExecute"}
    assert misfit("gpu", node(kind="a100", taints=[taint], allocatable=GPUS)) is not None


def test_the_nearest_node_says_what_is_missing() -> None:
    small, large = node(cpu="2", memory="4Gi"), node(cpu="3900m", memory="16Gi")
    assert misfit("cpu", small, large) == "it wants 4 cores, and n1 gives 3.9 cores"
    fewer = node(kind="a100", allocatable={**GPUS, "nvidia.com/gpu": "4"})
    assert misfit("gpu", fewer) == "it wants 8 GPUs, and n1 gives 4 GPUs"
    without = node(kind="a100", allocatable={"nvidia.com/gpu": "8"})
    assert misfit("gpu", without) == "it wants 1 rdma/hca, and n1 gives 0 rdma/hca"


def test_a_node_whose_disk_is_too_small_or_unknown_is_named() -> None:
    large = read(CATALOGUE.replace("memory_gib: 8}", "memory_gib: 8, disk_gib: 100}"))
    said = "it wants 101 GiB of ephemeral-storage, and n1 gives 100 GiB of ephemeral-storage"
    assert doctor.misfit(large.find("cpu"), large, [node()]) == said
    assert misfit("cpu", node(allocatable={"ephemeral-storage": "0"})) is not None


def test_without_a_node_that_is_said() -> None:
    assert misfit("cpu") == "there is no node that takes pods"
