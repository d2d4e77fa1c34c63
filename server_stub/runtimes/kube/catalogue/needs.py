"""Computes the resources that each worker of a job requests, and checks its number of workers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from client_lib.errors import InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec, JobType
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, InstanceType

GIB_PER_GPU = {"small": 16, "medium": 32, "large": 64}
"""Sizes of shm_size_class on the ML Space platform."""
_MIB_PER_GIB = 1024


@dataclass(frozen=True)
class Needs:
    """Resources of each worker. Requests are also limits: the kernel kills a worker that uses more memory."""

    instance: InstanceType
    workers: int
    gpus: int
    cpu_m: int
    """Thousandths of a core."""
    memory_mib: int
    shm_mib: int
    """Size of /dev/shm, which is part of the memory."""
    processes: int

    @property
    def cores(self) -> int:
        """Whole cores, for OMP_NUM_THREADS."""
        return max(self.cpu_m // 1000, 1)


def needs(spec: JobSpec, catalogue: ClusterCatalogue) -> Needs:
    """The needs of a job in this catalogue.

    Raises:
        NeverFits: the job has more workers than allowed for this type; the message has the maximum.
        InvalidRequest: the instance type is unknown or missing.
    """
    instance = _instance(spec, catalogue)
    if instance.max_workers is not None and spec.n_workers > instance.max_workers:
        raise NeverFits(
            f"n_workers={spec.n_workers}: a job may have {instance.max_workers} workers of {instance.name} here",
            hint=f"the largest that fits: n_workers={instance.max_workers}",
        )
    gpus = 0 if spec.type is JobType.NOGPU else instance.gpus
    cpu, memory_gib = _without_reserve(instance, catalogue)
    memory_mib = int(memory_gib * _MIB_PER_GIB)
    return Needs(
        instance=instance,
        workers=spec.n_workers,
        gpus=gpus,
        cpu_m=int(cpu * 1000),
        memory_mib=memory_mib,
        shm_mib=min(_wanted_shm_mib(spec, instance, memory_mib), memory_mib // 2),
        processes=max(gpus, 1) if spec.processes_per_worker == "default" else spec.processes_per_worker,
    )


def _instance(spec: JobSpec, catalogue: ClusterCatalogue) -> InstanceType:
    name = spec.instance_type or catalogue.defaults.instance_type
    if name is not None:
        return catalogue.find(name)
    listed = ", ".join(each.name for each in catalogue.instance_types)
    raise InvalidRequest(f"instance_type is missing, and this server has no default; it has: {listed}")


def _without_reserve(instance: InstanceType, catalogue: ClusterCatalogue) -> tuple[float, float]:
    """Cores and GiB without the proportional share of the node's reserve, so that as many workers fit as expected."""
    node = catalogue.node(instance)
    if node is None:
        return instance.cpu, instance.memory_gib
    return (
        instance.cpu * (1 - node.reserve.cpu / node.cpu),
        instance.memory_gib * (1 - node.reserve.memory_gib / node.memory_gib),
    )


def _wanted_shm_mib(spec: JobSpec, instance: InstanceType, memory_mib: int) -> int:
    if spec.shm_size_class is not None:
        return GIB_PER_GPU[spec.shm_size_class] * max(instance.gpus, 1) * _MIB_PER_GIB
    if instance.shm_gib is not None:
        return int(instance.shm_gib * _MIB_PER_GIB)
    return GIB_PER_GPU["medium"] * instance.gpus * _MIB_PER_GIB if instance.gpus else memory_mib // 4


def shm_is_cut(spec: JobSpec, needs: Needs) -> bool:
    """True if the job gets less /dev/shm than its shm_size_class asks for."""
    wanted = _wanted_shm_mib(spec, needs.instance, needs.memory_mib)
    return spec.shm_size_class is not None and wanted > needs.shm_mib


def mebibytes(amount: int) -> str:
    """The amount as a Kubernetes quantity: `512Mi`, `96Gi`."""
    return f"{amount}Mi" if amount % _MIB_PER_GIB else f"{amount // _MIB_PER_GIB}Gi"
