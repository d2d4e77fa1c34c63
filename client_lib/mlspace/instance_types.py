"""What can be asked for: instance types, how many are free, images."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from client_lib.api import configured
from client_lib.mlspace.table import Table
from client_lib.mlspace.words import ClusterType
from client_lib.spec.mlspace import REGIONS


def get_instance_types(
    cluster_type: ClusterType | str | None = None, regions: str | Sequence[str] | None = None
) -> Table:
    """A row for each region and instance type: region, instance_type, memory (GiB), cpu (cores), gpu.

    `regions`: one or several; None: all that the platform has. The types are the same in each: one server has one
    catalogue. `cluster_type` INF: no row, as nothing infers here.
    """
    kinds = [] if _infers(cluster_type) else configured().instance_types()
    rows = [
        {"region": region, "instance_type": kind.name, "memory": kind.memory_gib, "cpu": kind.cpu, "gpu": kind.gpus}
        for region in _regions(regions)
        for kind in kinds
    ]
    return Table(("region", "instance_type", "memory", "cpu", "gpu"), rows)


def get_available_resources_count(region: str | Sequence[str] | None = None) -> Table:
    """How many workers of each instance type fit right now: instance_type, available; `?` where it is not known.

    It is one capacity whatever the region; with `region` a column names it.
    """
    kinds = configured().instance_types()
    columns = ("instance_type", "available") if region is None else ("region", "instance_type", "available")
    rows = [
        {"region": name, "instance_type": kind.name, "available": kind.available}
        for name in ([""] if region is None else _regions(region))
        for kind in kinds
    ]
    return Table(columns, rows)


def get_docker_images(cluster_type: ClusterType | str | None = None) -> list[str]:
    """The images that a server offers: none yet, and a warning that says what runs instead."""
    del cluster_type
    warnings.warn(
        "this server lists no images: jobs on this machine run with your own interpreter, and base_image is only noted",
        stacklevel=2,
    )
    return []


def _infers(cluster_type: ClusterType | str | None) -> bool:
    return cluster_type is not None and ClusterType(cluster_type) is ClusterType.INF


def _regions(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return list(REGIONS)
    return [str(given)] if isinstance(given, str) else [str(name) for name in given]
