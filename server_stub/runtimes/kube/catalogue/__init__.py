"""The catalogue of a cluster: instance types, images, volumes and rules for jobs. Pure.

An operator writes it as YAML (docs/catalogue.md), which `file` reads. An unknown field, or a value
that the cluster would reject at the first job, is an error. Sizes are those of one worker: GPUs,
CPU cores, GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from client_lib.errors import InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec, JobType, PriorityClass
from client_lib.spec.replace import replaced
from client_lib.spec.wire import InstanceType as ShownType
from server_stub.runtimes.instance_types import Reserve, Size, find_type

_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]i?)?")


def _matching(pattern: re.Pattern[str], what: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(check)


def _folder(path: str) -> str:
    if (
        not path.startswith("/")
        or "//" in path
        or ".." in path.split("/")
        or path == "/"
        or ":" in path
    ):
        raise ValueError(f"{path!r} is not the absolute path of a folder, without '..' and ':'")
    return path.rstrip("/")


Label = Annotated[str, _matching(_LABEL, "a key for labels, such as 'nvidia.com/gpu.product'")]
ObjectName = Annotated[
    str, _matching(_NAME, "a name for a Kubernetes object (lower-case letters, digits, '-', '.')")
]
Quantity = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    _matching(_QUANTITY, "a quantity, such as '1' or '16Gi'"),
]
Folder = Annotated[str, AfterValidator(_folder)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(gt=0, lt=65536)]
Labels = dict[Label, str]
WORKER = "worker"
"""Name of the container of the ranks in a `pod_template`; in a pod it is that of the operator."""
_OF_THE_AGENT = ("image", "command", "args")
"""Fields of that container without which no agent runs, or that belong to the job."""


def _pod_template(given: dict[str, Any]) -> dict[str, Any]:
    if unknown := given.keys() - {"metadata", "spec"}:
        raise ValueError(
            f"has {', '.join(sorted(map(repr, unknown)))}: a pod template has metadata and spec"
        )
    for name in ("metadata", "spec"):
        if not isinstance(given.get(name, {}), dict):
            raise ValueError(f"{name} is no table")
    spec = given.get("spec", {})
    if "restartPolicy" in spec:
        raise ValueError("spec.restartPolicy is the operator's of the jobs")
    containers = spec.get("containers", [])
    if not isinstance(containers, list):
        raise ValueError("spec.containers is no list")
    for container in containers:
        if not isinstance(container, dict) or container.get("name") != WORKER:
            raise ValueError(
                f"spec.containers has an entry that is not named {WORKER!r}, the container of the "
                "ranks; a helper beside it belongs in initContainers, with restartPolicy: Always, "
                "because any other one would keep the pod from ending"
            )
        if fixed := [field for field in _OF_THE_AGENT if field in container]:
            raise ValueError(
                f"the container {WORKER!r} has {fixed[0]}, which is the job's or this server's own"
            )
    return given


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Toleration(Strict):
    """A toleration of a taint, so that pods may run on nodes that refuse other pods."""

    key: Label | None = None
    """Key of the taint. None, with operator Exists: every taint."""
    operator: Literal["Equal", "Exists"] = "Equal"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. None: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = Field(
        None, serialization_alias="tolerationSeconds"
    )
    """Time limit of the toleration, with effect NoExecute. For `node.kubernetes.io/unreachable` and
    `not-ready` it is the time to wait for pods of a node that has vanished, by default 300 s."""

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
    node_selector: Labels = {}
    """Labels that the node must have."""
    tolerations: list[Toleration] = []
    """Tolerations of its taints."""


class Node(Placement):
    """A kind of node, for the types of instances that share it."""

    name: str
    """Name for references from types."""
    cpu: Positive
    """Cores of the whole machine."""
    memory_gib: Positive
    """GiB of the whole machine."""
    reserve: Reserve = Reserve()
    """Resources for the system and its daemons. Each worker gets less by its share: a worker that
    requests a whole node would never be scheduled."""

    @model_validator(mode="after")
    def _leaves_something(self) -> Node:
        if self.reserve.cpu >= self.cpu or self.reserve.memory_gib >= self.memory_gib:
            raise ValueError(f"node {self.name!r} reserves all that it has")
        return self


class InstanceType(Size, Placement):
    node: str | None = None
    """A name of `nodes`, whose placement is added and whose reserve is subtracted. None:
    the full size is requested.
    """
    gpu_resource: Label = "nvidia.com/gpu"
    """Resource name of its GPUs."""
    extra_resources: dict[Label, Quantity] = {}
    """Further resources of each worker: `rdma/hca: "1"`."""
    annotations: dict[Label, str] = {}
    """Annotations of its pods, for example the networks of Multus."""
    capabilities: list[
        Annotated[str, _matching(re.compile("[A-Z_]+"), "a capability, such as IPC_LOCK")]
    ] = []
    """Linux capabilities, for example IPC_LOCK for RDMA; `restricted`
    admits NET_BIND_SERVICE alone.
    """
    runtime_class: ObjectName | None = None
    """RuntimeClass of its pods; None: the cluster's default."""
    shm_gib: Positive | None = None
    """Size of /dev/shm for a job without shm_size_class. None: 32 GiB per GPU, without GPUs a
    quarter of the memory. It is part of the memory, and at most half of it."""
    disk_gib: Positive | None = None
    """Disk of the node for what a worker writes outside of volumes and `tmp_storage`: code, working
    folder, HOME. It is requested and is the limit; a worker that writes more is evicted
    (`StorageFull`). None: nothing is requested, and the limit is 1024. 1 GiB for the log is
    requested in addition."""
    together: Label | None = None
    """Label of nodes, such as `topology.kubernetes.io/zone`: all workers of a job run where its
    value is the same. The first worker that gets a node decides, so each value needs nodes for the
    largest job."""
    spread: Label | None = None
    """Label of nodes, such as `kubernetes.io/hostname`: the numbers of workers of a job at any two
    of its values differ by at most one."""
    pod_template: Annotated[dict[str, Any], AfterValidator(_pod_template)] = {}
    """A part of a pod template (`metadata`, `spec`) for what has no entry here: it is merged into
    the pods of its jobs as `kubectl patch` does (strategic merge). The container of the ranks is
    `worker` in it. The server tries it on the cluster at its start, by a dry run."""
    max_workers: Annotated[int, Field(gt=0)] | None = None
    """Largest number of workers of one job; None: no limit."""

    @model_validator(mode="after")
    def _has_a_size(self) -> InstanceType:
        if not self.cpu or not self.memory_gib:
            raise ValueError(
                f"{self.name!r} needs cpu and memory_gib: they are what its pods request"
            )
        if self.together is not None and self.together == self.spread:
            raise ValueError(
                f"{self.name!r} has {self.spread} as together and as spread, which exclude each "
                "other"
            )
        return self


class Volume(Strict):
    """A PersistentVolumeClaim that jobs may mount by name. Workers on several
    nodes need ReadWriteMany.
    """

    name: Annotated[
        str, _matching(re.compile("[A-Za-z0-9][-A-Za-z0-9_.]*"), "a name without '/' and ':'")
    ]
    """Name of the volume in `volumes: ["NAME:/path"]` of a job."""
    claim: ObjectName
    """Name of the PersistentVolumeClaim, in the namespace of the jobs."""
    sub_path: str | None = None
    """Folder in it that is mounted; None: the whole volume."""
    read_only: bool = False
    """No job may write to it."""
    mount: Literal["owner", "whole"] | None = None
    """Part of it that a job sees. `owner`: the folder `owners/USER`, which the cluster makes.
    `whole`: everything, of all users. None: `whole` if it is read_only, else `owner`."""
    users: Annotated[list[str], Field(min_length=1)] | None = None
    """Users whose jobs may mount it. None: all."""
    always: Folder | None = None
    """Path where it is mounted in every worker (of `users`). If the server's pod mounts it at the
    same path, and `mount` is `whole`, code on it runs in place. None: it is mounted only in jobs
    that name it."""

    @property
    def whole(self) -> bool:
        """True if jobs of all users see the same files in it."""
        return self.read_only if self.mount is None else self.mount == "whole"

    def is_for(self, user: str) -> bool:
        return self.users is None or user in self.users


class Checkpoints(Strict):
    """The folder for checkpoints of jobs without checkpoint_dir, so that they outlive a pod."""

    volume: str
    """A name of `volumes`. It has a folder `NAME-ID` for each job. A job sees its own alone, unless
    `mount` of the volume is `whole`."""
    path: Folder
    """Parent of the checkpoint folders in a worker. It is mounted here, unless the volume
    is mounted above already.
    """


class Images(Strict):
    default: str | None = None
    """Image of jobs that name none; None: jobs must name one."""
    aliases: dict[str, str] = {}
    """Replacements for images of jobs. A key that ends with '/' applies to every image below it."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy. None: the default of Kubernetes, Always for `latest` and else IfNotPresent."""
    pull_secrets: list[ObjectName] = []
    """Secrets for private registries (`kubectl create secret docker-registry`), in
    the namespace of the jobs.
    """

    def resolve(self, image: str) -> str:
        """The image that is pulled for `image`: its alias, else the alias of
        the longest folder above it.
        """
        if image in self.aliases:
            return self.aliases[image]
        folders = [key for key in self.aliases if key.endswith("/") and image.startswith(key)]
        if not folders:
            return image
        nearest = max(folders, key=len)
        return self.aliases[nearest] + image[len(nearest) :]


class PodUser(Strict):
    """The user of the processes of a pod."""

    run_as_user: Annotated[int, Field(ge=0)] = 1000
    """User id; 1000 is the user of the ML Space platform's images."""
    run_as_group: Annotated[int, Field(ge=0)] = 1000
    """Group id."""
    fs_group: Annotated[int, Field(ge=0)] = 1000
    """Group that may write to volumes."""
    name: str = "user"
    """Value of USER and LOGNAME, as most images have no user with that id."""
    home: Folder | None = None
    """HOME of the ranks, also for caches, on a volume that is always mounted. None:
    an empty folder of the pod.
    """


class Peer(Strict):
    """An end of a connection with a job's pods: addresses, or pods by labels."""

    ip_block: Annotated[str, AfterValidator(lambda text: str(ip_network(text)))] | None = None
    """Range of addresses: `10.0.0.0/8`."""
    pods: Labels | None = None
    """Labels of pods; {}: all pods."""
    namespaces: Labels | None = None
    """Labels of the namespaces of these pods; None: the namespace of the
    jobs; {}: all namespaces.
    """

    @model_validator(mode="after")
    def _is_one_thing(self) -> Peer:
        if (self.ip_block is None) == (self.pods is None and self.namespaces is None):
            raise ValueError("needs either ip_block, or pods and namespaces")
        return self


class Egress(Strict):
    """A rule with destinations and ports."""

    to: Annotated[list[Peer], Field(min_length=1)]
    tcp: list[Port] = []
    """TCP ports; without `tcp` and `udp` every port."""
    udp: list[Port] = []


_SYSTEM = Peer(pods={}, namespaces={"kubernetes.io/metadata.name": "kube-system"})


class Network(Strict):
    """Sources that reach the pods of a job, and the meaning of `internet=False`; both need a
    network plugin that enforces NetworkPolicies."""

    isolated: bool = True
    """The pods of a job are reached by each other, by this server and by `admit`
    alone. False: by every pod.
    """
    admit: list[Peer] = []
    """Further sources of connections to the pods of jobs, such as a Prometheus."""
    internet: bool = True
    """Value for jobs that do not set it."""
    dns: Annotated[list[Peer], Field(min_length=1)] = [_SYSTEM]
    """The cluster's DNS, on port 53. Default: kube-system; NodeLocal DNS needs its ip_block."""
    server: list[Peer] = []
    """This server. Empty: the address in its URL, else pods with the label
    `app.kubernetes.io/name: client-lib-server` in the namespace that its URL names."""
    allow: list[Egress] = []
    """Further destinations, such as an object store."""


class Defaults(Strict):
    instance_type: str | None = None
    """Type of jobs that name none; None: jobs must name one."""
    pod_labels: Labels = {}
    """Labels of all pods."""
    job_labels: list[Label] = []
    """Keys of the labels that a job may bring to its pods, such as `project`: they have the job's
    values for these. Owner and team of the job are the labels `client-lib.io/owner` and
    `client-lib.io/team` in any case."""
    annotations: dict[Label, str] = {}
    """Annotations of all pods: `sidecar.istio.io/inject: "false"` if the sidecar of a
    mesh would keep them running.
    """
    service_account: ObjectName | None = None
    """ServiceAccount of all pods; its token is not mounted."""
    conda_root: Folder = "/opt/conda"
    """Folder of conda in images: `conda_env: NAME` is `<conda_root>/envs/NAME`."""


PodSecurity = Literal["restricted", "baseline", "privileged"]
GangScheduler = Literal["none", "volcano", "coscheduling"]


class Gang(Strict):
    """Scheduler that gives the workers of a job their nodes, and the time that they may take."""

    scheduler: GangScheduler = "none"
    """Scheduler of the cluster that places all workers of a job or none: `volcano`, or
    `coscheduling` of scheduler-plugins. The operator of the jobs makes a PodGroup for each. none:
    workers that found a place wait for the others, at most `timeout_s`."""
    timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """Time in which all workers of a job must become ready, without the time of image pulls; after
    it the job releases its place and queues again."""


PLATFORM_TMP_STORAGE = {
    "default": 200,
    "small": 1250,
    "medium": 2500,
    "large": 3750,
    "xlarge": 5000,
}
GIB_PER_GPU = {"small": 16, "medium": 32, "large": 64}
"""Sizes of shm_size_class on the ML Space platform."""


@dataclass(frozen=True)
class Needs:
    """Resources of each worker of a job. Requests are also limits: the kernel kills a
    worker that uses more memory.
    """

    instance: InstanceType
    gpus: int
    cpu_m: int
    """Thousandths of a core."""
    memory_mib: int
    shm_mib: int
    """Size of /dev/shm, which is part of the memory."""
    shm_is_cut: bool
    """True if that is less than the job's shm_size_class asks for."""
    processes: int

    @property
    def cores(self) -> int:
        """Whole cores, for OMP_NUM_THREADS."""
        return max(self.cpu_m // 1000, 1)


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
    """Sources that reach the pods of a job, and destinations of jobs with `internet=False`."""
    volumes: list[Volume] = Field(default=[])
    """PersistentVolumeClaims by name."""
    checkpoints: Checkpoints | None = None
    """Volume for checkpoints. None: they are on the pod's own disk and end with it."""
    priority_classes: dict[PriorityClass, ObjectName] = Field(default={})
    """PriorityClass of the cluster for each `priority_class` of a job: `high: gpu-high`. A missing
    one has the default of the cluster."""
    tmp_storage: dict[str, Annotated[int, Field(gt=0)]] = Field(default=PLATFORM_TMP_STORAGE)
    """Size of /tmp in GB (10^9 bytes) by `tmp_storage` of a job. Default: the sizes
    of the ML Space platform.
    """
    by_pattern: bool = False
    """True: instance types that are not listed are parsed by pattern
    (`a100.4gpu`, `cpu.8C.32G`).
    """
    job_kind: Literal["auto", "pytorchjob", "trainjob"] = "auto"
    """Kind of the objects that run jobs: PyTorchJob of the Kubeflow training operator, or TrainJob
    of Kubeflow Trainer 2.2 or newer. auto: what the cluster has, and PyTorchJob if it has both.
    Running jobs keep their kind."""
    pod_security: PodSecurity = "restricted"
    """Level of the Pod Security Standards for pods of jobs; most clusters admit the strictest."""
    gang: Gang = Gang()
    """Scheduler that gives the workers of a job their nodes, and the time that they may take."""

    def find(self, name: str) -> InstanceType:
        """The type called `name`. One that is not listed has, if `by_pattern`, the size in its
        name, and otherwise the properties of the first listed type of its family, in proportion to
        its GPUs.

        Raises InvalidRequest: it is unknown, or its name says too little; the message lists all
        types."""
        return find_type(name, self.instance_types, self._of_family if self.by_pattern else None)

    def _of_family(self, size: Size) -> InstanceType | None:
        family = [
            t
            for t in self.instance_types
            if t.family == size.family and bool(t.gpus) == bool(size.gpus)
        ]
        if not family:
            return None
        like = family[0]
        share = size.gpus / like.gpus if like.gpus else 1.0
        return replaced(
            like,
            name=size.name,
            gpus=size.gpus,
            description="",
            cpu=size.cpu or like.cpu * share,
            memory_gib=size.memory_gib or like.memory_gib * share,
            disk_gib=like.disk_gib and like.disk_gib * share,
        )

    def node(self, instance: InstanceType) -> Node | None:
        """The kind of node of a type; None: it names none."""
        return next((node for node in self.nodes if node.name == instance.node), None)

    def placement(self, instance: InstanceType) -> Placement:
        """The node selector and tolerations of a type and its kind of node."""
        node = self.node(instance) or Placement()
        return Placement(
            node_selector=node.node_selector | instance.node_selector,
            tolerations=[
                *node.tolerations,
                *(t for t in instance.tolerations if t not in node.tolerations),
            ],
        )

    def needs(self, spec: JobSpec) -> Needs:
        """The needs of each worker of a job.
        Raises NeverFits: the type allows fewer workers, and how many; InvalidRequest: it is unknown
        or missing."""
        name = spec.instance_type or self.defaults.instance_type
        if name is None:
            listed = ", ".join(each.name for each in self.instance_types)
            raise InvalidRequest(
                f"instance_type is missing, and this server has no default; it has: {listed}"
            )
        instance = self.find(name)
        if instance.max_workers is not None and spec.n_workers > instance.max_workers:
            raise NeverFits(
                f"n_workers={spec.n_workers}: a job may have {instance.max_workers} workers of "
                f"{instance.name} here",
                hint=f"the largest that fits: n_workers={instance.max_workers}",
            )
        gpus = 0 if spec.type is JobType.NOGPU else instance.gpus
        cpu = instance.cpu
        memory_gib = instance.memory_gib
        node = self.node(instance)
        # each worker leaves its share of the node's reserve, so that as many fit as expected
        if node is not None:
            cpu *= 1 - node.reserve.cpu / node.cpu
            memory_gib *= 1 - node.reserve.memory_gib / node.memory_gib
        shm_gib = instance.shm_gib or (
            GIB_PER_GPU["medium"] * instance.gpus if instance.gpus else memory_gib / 4
        )
        if spec.shm_size_class is not None:
            shm_gib = GIB_PER_GPU[spec.shm_size_class] * max(instance.gpus, 1)
        memory_mib = int(memory_gib * 1024)
        return Needs(
            instance=instance,
            gpus=gpus,
            cpu_m=int(cpu * 1000),
            memory_mib=memory_mib,
            shm_mib=min(int(shm_gib * 1024), memory_mib // 2),
            shm_is_cut=spec.shm_size_class is not None and int(shm_gib * 1024) > memory_mib // 2,
            processes=max(gpus, 1)
            if spec.processes_per_worker == "default"
            else spec.processes_per_worker,
        )

    def volume(self, name: str) -> Volume:
        """The volume called `name`. Raises InvalidRequest: it is unknown; the
        message lists all volumes.
        """
        for volume in self.volumes:
            if volume.name == name:
                return volume
        listed = ", ".join(volume.name for volume in self.volumes) or "none"
        raise InvalidRequest(f"volume {name!r} is unknown; this server has: {listed}")

    def shown(self) -> list[ShownType]:
        """The types as clients see them."""
        return [
            ShownType.model_validate(each, from_attributes=True) for each in self.instance_types
        ]
