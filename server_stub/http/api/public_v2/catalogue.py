"""Instance types, workspaces, allocations and queues.

This server is one workspace with one allocation and one queue. Workspace, allocation and queue each
list the instance types of the server.
"""

# ruff: noqa: ARG001 # requests name a workspace, an allocation or a queue, of which this server has
# one

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import AfterValidator, BaseModel, Field

from client_lib.errors import NotFound
from client_lib.spec.mlspace import REGIONS
from client_lib.spec.replace import replaced
from client_lib.spec.wire import InstanceType
from server_stub.http.api.context import Parts
from server_stub.http.api.public_v2.translate import (
    ALLOCATION,
    NAMESPACE,
    QUEUE,
    type_label,
    type_name,
)

WORKSPACES = "/workspaces/v3"
WORKSPACE_ID = "00000000-0000-4000-8000-000000000000"
"""The id of the one workspace. Clients name a workspace in each request; any id is accepted."""
_REGION = next(iter(REGIONS))
"""The region of the allocation: the allocation is in every region, and jobs of any region are
taken."""

router = APIRouter(prefix="/public/v2")


async def _types(parts: Parts) -> list[InstanceType]:
    return [replaced(kind, name=type_name(kind)) for kind in parts.service.runtime.instance_types()]


def _known(place: str) -> str:
    if place not in (ALLOCATION, QUEUE):
        raise NotFound("not found")
    return place


Types = Annotated[list[InstanceType], Depends(_types)]
Place = Annotated[str, AfterValidator(_known)]
"""The id of the one allocation or of the one queue."""


class Keyed(BaseModel):
    key: str
    name: str


class Available(Keyed):
    count: int


class AvailableTypes(BaseModel):
    instance_types: list[Available]


class Availability(BaseModel):
    key: str
    instance_type: str
    available: int


class TypeOfQueue(Keyed):
    availability: int
    storage_presets: list[dict[str, Any]]


class Queue(BaseModel):
    id: str = QUEUE
    name: str = QUEUE
    description: str = "by priority_class, then in the order of submission"
    allocation_id: str = ALLOCATION
    active: bool = True
    type: Literal["default", "custom", "shared"] = "default"
    default_for_job: bool = True
    default_for_notebook: bool = False


class Allocation(BaseModel):
    id: str = ALLOCATION
    name: str = ALLOCATION
    description: str = "all of this server"
    region_key: str = _REGION


class AllocationOfWorkspace(BaseModel):
    id: str = ALLOCATION
    name: str = ALLOCATION
    cluster_key: str = _REGION
    cluster_name: str = _REGION


class Workspace(BaseModel):
    id: str = WORKSPACE_ID
    name: str = "client-lib"
    description: str = ""
    namespace: str = NAMESPACE
    allocations: list[AllocationOfWorkspace] = [AllocationOfWorkspace()]


class ResourceLimits(BaseModel):
    cpu: str
    memory: str
    gpus: str = Field(serialization_alias="nvidia.com/gpu")


class Resource(BaseModel):
    limits: ResourceLimits
    requests: ResourceLimits


class TypeOfRegion(Keyed):
    images: list[str]
    resource: Resource


class Ssh(BaseModel):
    url: str = ""
    port: int = 0


class RegionConfig(Keyed):
    description: str = ""
    nfsName: str = ""  # Platform: these names
    instances_types: list[TypeOfRegion]
    ssh: Ssh = Ssh()


class Configs(BaseModel):
    regions: list[RegionConfig]
    datahub_images: list[str] = []
    custom_images: list[str] = []


@router.get("/configs")
async def get_configs(types: Types, cluster_type: Literal["MT", "INF"] = "MT") -> Configs:
    """Regions with their instance types; all regions have equal types. INF: no types, as this
    server runs no inference.
    """
    of_region = []
    for kind in types:
        limits = ResourceLimits(
            cpu=f"{kind.cpu:g}", memory=f"{kind.memory_gib:g}Gi", gpus=str(kind.gpus)
        )
        resource = Resource(limits=limits, requests=limits)
        of_region.append(
            TypeOfRegion(key=kind.name, name=type_label(kind), images=[], resource=resource)
        )
    regions = REGIONS if cluster_type == "MT" else ()
    return Configs(
        regions=[RegionConfig(key=name, name=name, instances_types=of_region) for name in regions]
    )


@router.get("/instance_types/{region}/available")
async def get_available(
    types: Types, region: str, allocation_name: str | None = None
) -> AvailableTypes:
    """The number of workers of each type that fit now."""
    found = [
        Available(key=kind.name, name=type_label(kind), count=kind.available or 0) for kind in types
    ]
    return AvailableTypes(instance_types=found)


@router.get("/allocations/{allocation}/instance_types_availability")
async def get_availability(types: Types, allocation: Place) -> list[Availability]:
    """The number of workers of each type that fit now."""
    return [
        Availability(key=kind.name, instance_type=type_label(kind), available=kind.available or 0)
        for kind in types
    ]


@router.get("/allocations/{place}/instance-types")
@router.get("/queues/{place}/instance-types")
async def get_types_of(types: Types, place: Place) -> list[TypeOfQueue]:
    """The instance types of the allocation or of the queue."""
    return [
        TypeOfQueue(
            key=kind.name,
            name=type_label(kind),
            availability=kind.available or 0,
            storage_presets=[],
        )
        for kind in types
    ]


@router.get(f"{WORKSPACES}/")
async def get_workspaces(customer_id: str | None = None) -> list[Workspace]:
    """The one workspace."""
    return [Workspace()]


@router.get(f"{WORKSPACES}/{{workspace}}")
async def get_workspace(workspace: str) -> Workspace:
    """The workspace; any id is accepted."""
    return Workspace(id=workspace)


@router.get(f"{WORKSPACES}/{{workspace}}/allocations")
async def get_allocations(workspace: str) -> list[Allocation]:
    """The one allocation of the workspace."""
    return [Allocation()]


@router.get(f"{WORKSPACES}/{{workspace}}/allocations/{{allocation}}/queues")
async def get_queues(workspace: str, allocation: Place) -> list[Queue]:
    """The one queue of the allocation."""
    return [Queue()]
