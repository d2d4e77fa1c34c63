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
    shm_is_cut: bool
    """True if that is less than the job's shm_size_class asks for."""
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
    name = spec.instance_type or catalogue.defaults.instance_type
    if name is None:
        listed = ", ".join(each.name for each in catalogue.instance_types)
        raise InvalidRequest(f"instance_type is missing, and this server has no default; it has: {listed}")
    instance = catalogue.find(name)
    if instance.max_workers is not None and spec.n_workers > instance.max_workers:
        raise NeverFits(
            f"n_workers={spec.n_workers}: a job may have {instance.max_workers} workers of {instance.name} here",
            hint=f"the largest that fits: n_workers={instance.max_workers}",
        )
    gpus = 0 if spec.type is JobType.NOGPU else instance.gpus
    cpu, memory_gib = instance.cpu, instance.memory_gib
    node = catalogue.node(instance)
    if node is not None:  # each worker leaves its share of the node's reserve, so that as many fit as expected
        cpu *= 1 - node.reserve.cpu / node.cpu
        memory_gib *= 1 - node.reserve.memory_gib / node.memory_gib
    memory_mib = int(memory_gib * _MIB_PER_GIB)
    wanted_shm_mib = _wanted_shm_mib(spec, instance, memory_mib)
    return Needs(
        instance=instance,
        workers=spec.n_workers,
        gpus=gpus,
        cpu_m=int(cpu * 1000),
        memory_mib=memory_mib,
        shm_mib=min(wanted_shm_mib, memory_mib // 2),
        shm_is_cut=spec.shm_size_class is not None and wanted_shm_mib > memory_mib // 2,
        processes=max(gpus, 1) if spec.processes_per_worker == "default" else spec.processes_per_worker,
    )


def _wanted_shm_mib(spec: JobSpec, instance: InstanceType, memory_mib: int) -> int:
    if spec.shm_size_class is not None:
        return GIB_PER_GPU[spec.shm_size_class] * max(instance.gpus, 1) * _MIB_PER_GIB
    if instance.shm_gib is not None:
        return int(instance.shm_gib * _MIB_PER_GIB)
    return GIB_PER_GPU["medium"] * instance.gpus * _MIB_PER_GIB if instance.gpus else memory_mib // 4


def mebibytes(amount: int) -> str:
    """The amount as a Kubernetes quantity: `512Mi`, `96Gi`."""
    return f"{amount}Mi" if amount % _MIB_PER_GIB else f"{amount // _MIB_PER_GIB}Gi"
