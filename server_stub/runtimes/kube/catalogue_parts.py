"""The parts of a cluster's catalogue, each checked by itself: what an operator can say about one thing. Pure.

Only `catalogue` puts them together. Strict: an unknown field, or a word that the cluster would refuse at the first job,
is an error. Sizes are of one worker: GPUs, CPU cores, GiB.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from server_stub.instances import Reserve, Size

_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(check)


def _folder(path: str) -> str:
    if not path.startswith("/") or "//" in path or ".." in path.split("/") or path == "/" or ":" in path:
        raise ValueError(f"{path!r} is not the absolute path of a folder, without '..' and ':'")
    return path.rstrip("/")


def _spelled(value: Any) -> Any:
    """`1` is as good as `"1"`."""
    return str(value) if type(value) is int else value


def _cidr(text: str) -> str:
    return str(ip_network(text))


Label = Annotated[str, _matching(_LABEL, "a key for labels, such as 'nvidia.com/gpu.product'")]
ObjectName = Annotated[str, _matching(_NAME, "a name for a Kubernetes object (lower-case letters, digits, '-', '.')")]
Quantity = Annotated[str, BeforeValidator(_spelled), _matching(_QUANTITY, "a quantity, such as '1' or '16Gi'")]
Folder = Annotated[str, AfterValidator(_folder)]
Port = Annotated[int, Field(gt=0, lt=65536)]
Labels = dict[Label, str]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Toleration(Strict):
    """Of a taint, so that pods may run on nodes which refuse others."""

    key: Label | None = None
    """None, with operator Exists: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """None: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = Field(None, serialization_alias="tolerationSeconds")
    """With effect NoExecute: for so long. Of `node.kubernetes.io/unreachable` and `not-ready`: how long pods of a node
    that has vanished are waited for, where the cluster's default is 300 s."""

    @model_validator(mode="after")
    def _holds_together(self) -> Toleration:
        if self.operator == "Equal" and self.key is None:
            raise ValueError("needs a key, or operator: Exists")
        if self.operator == "Exists" and self.value is not None:
            raise ValueError("operator Exists takes no value")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise ValueError("toleration_seconds is for effect: NoExecute")
        return self


class Placement(Strict):
    """Which nodes pods go to."""

    node_selector: Labels = {}
    """Labels that the node must have."""
    tolerations: list[Toleration] = []
    """Of its taints."""


class Node(Placement):
    """A kind of node, for the types of instances that share it."""

    name: str
    """By which types refer to it."""
    cpu: Annotated[float, Field(gt=0)]
    """Cores of the whole machine."""
    memory_gib: Annotated[float, Field(gt=0)]
    """Of the whole machine."""
    reserve: Reserve = Reserve()
    """What the system and its daemons keep. Each worker gets its share less: a worker that asked for all of a node
    would never be placed."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Node:
        if self.reserve.cpu >= self.cpu or self.reserve.memory_gib >= self.memory_gib:
            raise ValueError(f"node {self.name!r} reserves all that it has")
        return self


class InstanceType(Size, Placement):
    """What a worker gets, and where it runs."""

    node: str | None = None
    """A name of `nodes`: its placement is added, its reserve is taken off. None: the size is requested as it stands."""
    gpu_resource: Label = "nvidia.com/gpu"
    """The resource that its GPUs are."""
    extra_resources: dict[Label, Quantity] = {}
    """More that each worker needs: `rdma/hca: "1"`."""
    annotations: dict[Label, str] = {}
    """Of its pods, for example the networks of Multus."""
    capabilities: list[Annotated[str, _matching(re.compile("[A-Z_]+"), "a capability, such as IPC_LOCK")]] = []
    """Of Linux, for example IPC_LOCK for RDMA; `restricted` admits none but NET_BIND_SERVICE."""
    runtime_class: ObjectName | None = None
    """RuntimeClass of its pods; None: the cluster's default."""
    shm_gib: Annotated[float, Field(gt=0)] | None = None
    """/dev/shm of a job that gives no shm_size_class. None: 32 GiB per GPU, without GPUs a quarter of the memory. It
    counts in the memory and is never more than half of it."""
    max_workers: Annotated[int, Field(gt=0)] | None = None
    """Of one job; None: no bound."""

    @model_validator(mode="after")
    def _has_a_size(self) -> InstanceType:
        if not self.cpu or not self.memory_gib:
            raise ValueError(f"{self.name!r} needs cpu and memory_gib: they are what its pods request")
        return self


class Volume(Strict):
    """A PersistentVolumeClaim that jobs may mount by name. Workers on several nodes need ReadWriteMany."""

    name: Annotated[str, _matching(re.compile("[A-Za-z0-9][-A-Za-z0-9_.]*"), "a name without '/' and ':'")]
    """In `volumes: ["NAME:/path"]` of a job."""
    claim: ObjectName
    """Name of the PersistentVolumeClaim, in the namespace of the jobs."""
    sub_path: str | None = None
    """Folder in it that is mounted; None: all of it."""
    read_only: bool = False
    """No job may write to it."""
    always: Folder | None = None
    """Mounted at this path in every worker, asked for or not. With the server's pod mounting it at the same path, code
    in it runs in place. None: only where a job asks for it."""


class Checkpoints(Strict):
    """Where the checkpoints of jobs go that name no folder, so that they outlive a pod."""

    volume: str
    """A name of `volumes`."""
    path: Folder
    """Each job has a folder of its own below this one. Where the volume is not mounted above it already, it is mounted
    here."""


class Images(Strict):
    default: str | None = None
    """Of jobs that name none; None: they must."""
    aliases: dict[str, str] = {}
    """Another image instead of the one asked for. A key that ends with '/' stands for every image below it."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """None: as Kubernetes does: Always for `latest`, else IfNotPresent."""
    pull_secrets: list[ObjectName] = []
    """Secrets for private registries (`kubectl create secret docker-registry`), in the namespace of the jobs."""

    def resolve(self, image: str) -> str:
        """The image that is pulled for `image`: its own alias, else that of the longest folder above it."""
        if image in self.aliases:
            return self.aliases[image]
        folders = [key for key in self.aliases if key.endswith("/") and image.startswith(key)]
        if not folders:
            return image
        nearest = max(folders, key=len)
        return self.aliases[nearest] + image[len(nearest) :]


class User(Strict):
    """Who the processes of a pod are."""

    run_as_user: Annotated[int, Field(ge=0)] = 1000
    """1000 is the user of the ML Space platform's images."""
    run_as_group: Annotated[int, Field(ge=0)] = 1000
    """The group of its files."""
    fs_group: Annotated[int, Field(ge=0)] = 1000
    """Group that may write to volumes."""
    name: str = "user"
    """What USER and LOGNAME say: most images know no user of that number."""
    home: Folder | None = None
    """HOME of the ranks, on a volume that is always mounted; caches are kept there, too. None: an empty folder of the
    pod's own."""


class Peer(Strict):
    """Whom jobs without internet may still reach: addresses, or pods by labels."""

    ip_block: Annotated[str, AfterValidator(_cidr)] | None = None
    """Addresses: `10.0.0.0/8`."""
    pods: Labels | None = None
    """Labels of pods; {}: all."""
    namespaces: Labels | None = None
    """Labels of the namespaces of these pods; None: the namespace of the jobs. {}: all."""

    @model_validator(mode="after")
    def _is_one_thing(self) -> Peer:
        if (self.ip_block is None) == (self.pods is None and self.namespaces is None):
            raise ValueError("needs either ip_block, or pods and namespaces")
        return self


class Egress(Strict):
    """One rule: these peers, on these ports."""

    to: Annotated[list[Peer], Field(min_length=1)]
    tcp: list[Port] = []
    """None of both lists: every port."""
    udp: list[Port] = []


_SYSTEM = Peer(pods={}, namespaces={"kubernetes.io/metadata.name": "kube-system"})


class Network(Strict):
    """What `internet=False` means here; it needs a network plugin that enforces NetworkPolicies."""

    internet: bool = True
    """For jobs that don't say."""
    dns: Annotated[list[Peer], Field(min_length=1)] = [_SYSTEM]
    """Where the cluster's DNS is, on port 53. Default: kube-system; NodeLocal DNS needs its ip_block."""
    server: list[Peer] = []
    """Where this server is. Empty: found by its URL (an address), else pods with the label
    `app.kubernetes.io/name: client-lib-server`."""
    allow: list[Egress] = []
    """More that they may reach: an object store, say."""


class Defaults(Strict):
    instance_type: str | None = None
    """Of jobs that name none; None: they must."""
    pod_labels: Labels = {}
    """Of all pods."""
    annotations: dict[Label, str] = {}
    """Of all pods: `sidecar.istio.io/inject: "false"` where a mesh would keep them from ending."""
    service_account: ObjectName | None = None
    """Of all pods; its token is not mounted."""
    conda_root: Folder = "/opt/conda"
    """Where images have conda: `conda_env: NAME` is `<conda_root>/envs/NAME`."""
