"""What a cluster offers to jobs: instance types, images, volumes and rules. Pure; `catalogue_file` reads it.

An operator writes it as YAML: docs/catalogue.md.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from client_lib.errors import InvalidRequest
from client_lib.spec.job import PriorityClass
from client_lib.spec.wire import InstanceType as ShownType
from server_stub.instances import Size, parse
from server_stub.runtimes.kube.catalogue_parts import (
    Checkpoints,
    Defaults,
    Images,
    InstanceType,
    Network,
    Node,
    ObjectName,
    Placement,
    Strict,
    User,
    Volume,
)

PLATFORM_TMP_STORAGE = {"default": 200, "small": 1250, "medium": 2500, "large": 3750, "xlarge": 5000}


class Catalogue(Strict):
    """The whole file."""

    instance_types: Annotated[list[InstanceType], Field(min_length=1)]
    """Sizes of one worker."""
    nodes: list[Node] = Field(default=[])
    """Kinds of machines that types refer to."""
    defaults: Defaults = Defaults()
    """Of all jobs."""
    images: Images = Images()
    """What is pulled, and from where."""
    user: User = User()
    """Whom pods run as."""
    network: Network = Network()
    """What `internet=False` leaves in reach."""
    volumes: list[Volume] = Field(default=[])
    """PersistentVolumeClaims by name."""
    checkpoints: Checkpoints | None = None
    """None: they are on the pod's own disk and end with it."""
    priority_classes: dict[PriorityClass, ObjectName] = Field(default={})
    """`high: gpu-high`: the PriorityClass of the cluster for each that a job can name. Missing ones: the cluster's
    default."""
    tmp_storage: dict[str, Annotated[int, Field(gt=0)]] = Field(default=PLATFORM_TMP_STORAGE)
    """GB (10^9 bytes) of /tmp by the name that a job gives. Default: the ML Space platform's."""
    by_pattern: bool = Field(default=False, exclude=True)
    """Not of the file: the server's setting parse_instance_types."""

    def find(self, name: str) -> InstanceType:
        """The type called `name`. Read by pattern, it is one of the first listed type of its family, with the size
        that its name tells and, of what that doesn't tell, that type's share.

        Raises InvalidRequest: unknown, or its name doesn't tell enough; says which there are.
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
        told = {"name": size.name, "gpus": size.gpus, "description": ""}
        told["cpu"] = size.cpu or like.cpu * share
        told["memory_gib"] = size.memory_gib or like.memory_gib * share
        return like.model_copy(update=told)

    def _unknown(self, name: str) -> InvalidRequest:
        listed = ", ".join(each.name for each in self.instance_types)
        return InvalidRequest(
            f"instance type {name!r} is unknown; this server has: {listed}",
            hint="`client-lib instances` shows them with their sizes",
        )

    def node(self, instance: InstanceType) -> Node | None:
        """The kind of node that a type is on; None: it names none."""
        return next((node for node in self.nodes if node.name == instance.node), None)

    def volume(self, name: str) -> Volume:
        """The volume called `name`. Raises InvalidRequest: unknown; says which there are."""
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


def placement(catalogue: Catalogue, instance: InstanceType) -> Placement:
    """Where pods of a type go: its own words, and those of its node."""
    node = catalogue.node(instance) or Placement()
    return Placement(
        node_selector=node.node_selector | instance.node_selector,
        tolerations=[*node.tolerations, *(t for t in instance.tolerations if t not in node.tolerations)],
    )
