"""The catalogue of a cluster: instance types, images, volumes and rules for jobs. Pure.

An operator writes it as YAML (docs/catalogue.md), which `file` reads.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from client_lib.errors import InvalidRequest
from client_lib.spec.job import PriorityClass
from client_lib.spec.wire import InstanceType as ShownType
from server_stub.runtimes.instance_types import Size, parse
from server_stub.runtimes.kube.catalogue.parts import (
    Checkpoints,
    Defaults,
    Images,
    InstanceType,
    Network,
    Node,
    ObjectName,
    Placement,
    PodUser,
    Strict,
    Volume,
)

PLATFORM_TMP_STORAGE = {"default": 200, "small": 1250, "medium": 2500, "large": 3750, "xlarge": 5000}


class ClusterCatalogue(Strict):
    """The whole file."""

    instance_types: Annotated[list[InstanceType], Field(min_length=1)]
    """Sizes of one worker."""
    nodes: list[Node] = Field(default=[])
    """Kinds of machines that types refer to."""
    defaults: Defaults = Defaults()
    """Defaults for all jobs."""
    images: Images = Images()
    """Images of jobs, and registries."""
    user: PodUser = PodUser()
    """User that pods run as."""
    network: Network = Network()
    """Destinations that a job with `internet=False` may reach."""
    volumes: list[Volume] = Field(default=[])
    """PersistentVolumeClaims by name."""
    checkpoints: Checkpoints | None = None
    """Volume for checkpoints. None: they are on the pod's own disk and end with it."""
    priority_classes: dict[PriorityClass, ObjectName] = Field(default={})
    """PriorityClass of the cluster for each `priority_class` of a job: `high: gpu-high`. A missing one has the default
    of the cluster."""
    tmp_storage: dict[str, Annotated[int, Field(gt=0)]] = Field(default=PLATFORM_TMP_STORAGE)
    """Size of /tmp in GB (10^9 bytes) by `tmp_storage` of a job. Default: the sizes of the ML Space platform."""
    by_pattern: bool = Field(default=False, exclude=True)
    """The server's setting parse_instance_types, which is not part of the file."""

    def find(self, name: str) -> InstanceType:
        """The type called `name`.

        A type that is not listed has the size in its name if `by_pattern`, and otherwise the properties of the first
        listed type of its family, in proportion to its GPUs.

        Raises InvalidRequest: it is unknown, or its name has too little information; the message lists all types.
        """
        for listed in self.instance_types:
            if listed.name == name:
                return listed
        size = parse(name) if self.by_pattern else None
        if size is None:
            raise self._unknown(name)
        return self._of_family(size)

    def _of_family(self, size: Size) -> InstanceType:
        like = next(
            (t for t in self.instance_types if t.family == size.family and bool(t.gpus) == bool(size.gpus)), None
        )
        if like is None:
            raise self._unknown(size.name)
        share = size.gpus / like.gpus if like.gpus else 1.0
        values = {"name": size.name, "gpus": size.gpus, "description": ""}
        values["cpu"] = size.cpu or like.cpu * share
        values["memory_gib"] = size.memory_gib or like.memory_gib * share
        return like.model_copy(update=values)

    def _unknown(self, name: str) -> InvalidRequest:
        listed = ", ".join(each.name for each in self.instance_types)
        return InvalidRequest(
            f"instance type {name!r} is unknown; this server has: {listed}",
            hint="`client-lib instances` shows them with their sizes",
        )

    def node(self, instance: InstanceType) -> Node | None:
        """The kind of node of a type; None: it names none."""
        return next((node for node in self.nodes if node.name == instance.node), None)

    def volume(self, name: str) -> Volume:
        """The volume called `name`. Raises InvalidRequest: it is unknown; the message lists all volumes."""
        for volume in self.volumes:
            if volume.name == name:
                return volume
        listed = ", ".join(volume.name for volume in self.volumes) or "none"
        raise InvalidRequest(f"volume {name!r} is unknown; this server has: {listed}")

    def shown(self) -> list[ShownType]:
        """The types as clients see them."""
        return [
            ShownType(name=t.name, gpus=t.gpus, cpu=t.cpu, memory_gib=t.memory_gib, description=t.description)
            for t in self.instance_types
        ]


def placement(catalogue: ClusterCatalogue, instance: InstanceType) -> Placement:
    """The node selector and tolerations of a type and its kind of node."""
    node = catalogue.node(instance) or Placement()
    return Placement(
        node_selector=node.node_selector | instance.node_selector,
        tolerations=[*node.tolerations, *(t for t in instance.tolerations if t not in node.tolerations)],
    )
