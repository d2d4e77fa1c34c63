"""What an attempt needs of this machine, and whether it could ever get it. Pure.

`notices` says the parts that are read otherwise than on a cluster; `scheduling` decides when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from client_lib.errors import InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.wire import Submitter
from server_stub.instances import Catalogue, Size
from server_stub.runtimes.local.devices import Gpu, visible
from server_stub.runtimes.local.machine import Machine

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Needs:
    """Of all workers together, unless it says otherwise."""

    workers: int
    gpus: int | None
    """GPUs of each worker; 0: none. None: whatever is free, shared evenly, at least one each."""
    allowed: tuple[int, ...]
    """Indices of the GPUs that it may get."""
    memory_gib: float
    """Counted when jobs are scheduled; not enforced. Never more than the machine has."""
    size: Size | None
    """The instance type; None: this machine."""
    cores: int
    """Of each worker, for OMP_NUM_THREADS."""
    processes: int | None
    """Of each worker; None: one per GPU, at least one."""

    @property
    def least_gpus(self) -> int:
        """Without so many it can't start."""
        return self.workers * (1 if self.gpus is None else self.gpus)

    @property
    def wants_gpus(self) -> bool:
        return self.least_gpus > 0

    def processes_with(self, gpus: int) -> int:
        """Processes of a worker that has `gpus` GPUs."""
        return self.processes if self.processes is not None else max(gpus, 1)


def needs(
    spec: JobSpec, submitter: Submitter, catalogue: Catalogue, machine: Machine, gpus: Sequence[Gpu], max_processes: int
) -> Needs:
    """What `spec` needs here.

    Raises:
        NeverFits: this machine could never give it; says the largest that would fit.
        InvalidRequest: an unknown instance type, or GPUs that can't be shared.
    """
    name = spec.instance_type or catalogue.default
    size = catalogue.find(name) if name else None
    allowed = _allowed(spec, submitter, gpus)
    per_worker = _gpus_per_worker(spec, size, allowed, gpus)
    on_cpu = size is not None and size.gpus > 0 and per_worker == 0
    found = Needs(
        workers=spec.n_workers,
        gpus=per_worker,
        allowed=tuple(gpu.index for gpu in allowed),
        memory_gib=0 if size is None or on_cpu else min(size.memory_gib * spec.n_workers, machine.memory_gib),
        size=size,
        cores=_cores(size, spec.n_workers, machine),
        processes=None if spec.processes_per_worker == "default" else spec.processes_per_worker,
    )
    _check_processes(spec, found, max_processes)
    return found


def _cores(size: Size | None, workers: int, machine: Machine) -> int:
    """A fair share of the machine; less where the type is smaller than that."""
    share = max(machine.cores // workers, 1)
    return max(min(share, int(size.cpu)), 1) if size is not None and size.cpu else share


def _allowed(spec: JobSpec, submitter: Submitter, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs within every bound: the submitter's own, CUDA_VISIBLE_DEVICES of the spec, and `gpus`."""
    mine = visible(gpus, submitter.gpus)
    variable = spec.variable(VISIBLE)
    if variable is not None:
        named = visible(gpus, [part.strip() for part in variable.split(",")])
        mine = [gpu for gpu in named if gpu in mine]
    if spec.gpus is None:
        return mine
    return [_chosen(index, mine, gpus) for index in dict.fromkeys(spec.gpus)]


def _chosen(index: int, mine: Sequence[Gpu], gpus: Sequence[Gpu]) -> Gpu:
    for gpu in mine:
        if gpu.index == index:
            return gpu
    if any(gpu.index == index for gpu in gpus):
        raise NeverFits(
            f"gpus={[index]}: GPU {index} is not among those that you may use here ({_indices(mine)})",
            hint=f"{VISIBLE} or a SLURM allocation bounds them where you submit",
        )
    raise NeverFits(f"gpus={[index]}: this machine has {_indices(gpus)}")


def _indices(gpus: Sequence[Gpu]) -> str:
    return "no GPU" if not gpus else "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def _gpus_per_worker(spec: JobSpec, size: Size | None, allowed: Sequence[Gpu], gpus: Sequence[Gpu]) -> int | None:
    if spec.type is JobType.NOGPU or not allowed or (size is not None and size.gpus == 0):
        return 0
    if size is not None:
        _check_gpus(spec, size, allowed, gpus)
        return size.gpus
    if spec.gpus is not None:
        return _even_share(spec, len(allowed))
    return None if len(allowed) >= spec.n_workers else 0


def _even_share(spec: JobSpec, chosen: int) -> int:
    if chosen % spec.n_workers:
        raise InvalidRequest(
            f"gpus={spec.gpus}: {chosen} GPUs can't be shared evenly by n_workers={spec.n_workers}",
            hint="give each worker as many, or name an instance_type",
        )
    return chosen // spec.n_workers


def _check_gpus(spec: JobSpec, size: Size, allowed: Sequence[Gpu], gpus: Sequence[Gpu]) -> None:
    wanted = spec.n_workers * size.gpus
    if wanted <= len(allowed):
        return
    bound = f", of which this job may use {_indices(allowed)}" if len(allowed) < len(gpus) else ""
    raise NeverFits(
        f"n_workers={spec.n_workers} of {size.name} need {wanted} GPUs; this machine has {len(gpus)}{bound}",
        hint=f"the largest that fits: {_largest(size, len(allowed))}",
    )


def _largest(size: Size, allowed: int) -> str:
    if size.gpus <= allowed:
        return f"n_workers={allowed // size.gpus} of {size.name}"
    return f"n_workers=1 of {size.family}.{allowed}gpu"


def _check_processes(spec: JobSpec, found: Needs, most: int) -> None:
    per_worker = found.processes_with(found.gpus or 1)
    if found.workers * per_worker <= most:
        return
    way_out = f"n_workers={most // per_worker}" if per_worker <= most else f"processes_per_worker={most}"
    raise NeverFits(
        f"n_workers={spec.n_workers} with {per_worker} processes each are {found.workers * per_worker} processes; "
        f"a job on this machine may have {most}",
        hint=f"the largest that fits: {way_out}; the server's setting max_processes raises it",
    )
