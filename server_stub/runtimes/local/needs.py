"""Computes the resources that an attempt needs on this machine, rejects one that could never start, and makes
notices about fields with another effect than on a cluster (`runtimes.fields` has the table of all fields). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client_lib.errors import InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import Submitter
from server_stub.runtimes import fields
from server_stub.runtimes.instance_types import Catalogue, Size, family_of
from server_stub.runtimes.local.machine import Gpu, Machine, visible

VISIBLE = "CUDA_VISIBLE_DEVICES"
MAX_PROCESSES = 256  # of one job: more than any machine can use; protects the machine from a typing error


@dataclass(frozen=True)
class Needs:
    """Resources of all workers together, unless a field is per worker."""

    workers: int
    gpus: int | None
    """GPUs per worker; 0: none. None: all free ones, distributed evenly, at least one each."""
    allowed: tuple[int, ...]
    """Indices of the GPUs that it may use."""
    memory_gib: float
    """Counted by the scheduler, but not enforced. At most the memory of the machine."""
    size: Size | None
    """The instance type; None: this machine."""
    cores: int
    """Cores per worker, for OMP_NUM_THREADS."""
    processes: int | None
    """Processes per worker; None: one per GPU, at least one."""

    @property
    def least_gpus(self) -> int:
        """Number of GPUs without which it cannot start."""
        return self.workers * (1 if self.gpus is None else self.gpus)

    @property
    def wants_gpus(self) -> bool:
        return self.least_gpus > 0

    def processes_with(self, gpus: int) -> int:
        """Processes of a worker that has `gpus` GPUs."""
        return self.processes if self.processes is not None else max(gpus, 1)


def needs(spec: JobSpec, submitter: Submitter, catalogue: Catalogue, machine: Machine, gpus: Sequence[Gpu]) -> Needs:
    """The needs of `spec` on this machine.

    Raises:
        NeverFits: this machine is too small; the hint gives the largest job that fits.
        InvalidRequest: an unknown instance type, or GPUs that cannot be distributed evenly.
    """
    name = spec.instance_type or catalogue.default
    size = catalogue.find(name) if name else None
    allowed = _allowed(spec, submitter, gpus)
    per_worker = _gpus_per_worker(spec, size, allowed, gpus)
    on_cpu = size is not None and size.gpus > 0 and per_worker == 0
    share = max(machine.cores // spec.n_workers, 1)
    found = Needs(
        workers=spec.n_workers,
        gpus=per_worker,
        allowed=tuple(gpu.index for gpu in allowed),
        memory_gib=0 if size is None or on_cpu else min(size.memory_gib * spec.n_workers, machine.memory_gib),
        size=size,
        cores=max(min(share, int(size.cpu)), 1) if size is not None and size.cpu else share,
        processes=None if spec.processes_per_worker == "default" else spec.processes_per_worker,
    )
    processes = found.processes_with(found.gpus or 1)
    if found.workers * processes <= MAX_PROCESSES:
        return found
    fits = MAX_PROCESSES // processes
    way_out = f"n_workers={fits}" if fits else f"processes_per_worker={MAX_PROCESSES}"
    raise NeverFits(
        f"n_workers={spec.n_workers} with {processes} processes each are {found.workers * processes} processes; "
        f"a job on this machine may have {MAX_PROCESSES}",
        hint=f"the largest that fits: {way_out}",
    )


def _allowed(spec: JobSpec, submitter: Submitter, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs within all limits: the submitter's own, CUDA_VISIBLE_DEVICES of the spec, and `gpus`."""
    mine = visible(gpus, submitter.gpus)
    variable = spec.variable(VISIBLE)
    if variable is not None:
        named = visible(gpus, [part.strip() for part in variable.split(",")])
        mine = [gpu for gpu in named if gpu in mine]
    if spec.gpus is None or not mine:
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
        wanted = spec.n_workers * size.gpus
        if wanted <= len(allowed):
            return size.gpus
        bound = f", of which this job may use {_indices(allowed)}" if len(allowed) < len(gpus) else ""
        if size.gpus <= len(allowed):
            largest = f"n_workers={len(allowed) // size.gpus} of {size.name}"
        else:
            largest = f"n_workers=1 of {size.family}.{len(allowed)}gpu"
        raise NeverFits(
            f"n_workers={spec.n_workers} of {size.name} need {wanted} GPUs; this machine has {len(gpus)}{bound}",
            hint=f"the largest that fits: {largest}",
        )
    if spec.gpus is None:
        return None if len(allowed) >= spec.n_workers else 0
    if len(allowed) % spec.n_workers:
        raise InvalidRequest(
            f"gpus={spec.gpus}: {len(allowed)} GPUs can't be shared evenly by n_workers={spec.n_workers}",
            hint="give each worker as many, or name an instance_type",
        )
    return len(allowed) // spec.n_workers


def notices(spec: JobSpec, submitter: Submitter, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> list[str]:
    """One notice for each field with another effect than on a cluster."""
    size, gpus_each = needs.size, needs.gpus or (len(needs.allowed) // needs.workers if needs.gpus is None else 0)
    lines = []
    if spec.base_image is not None:
        if spec.python_script is None:
            programs = "the programs of this machine"
        elif spec.conda_env is not None:
            programs = f"the python of conda_env={spec.conda_env!r}"
        else:
            programs = submitter.python or "the server's own python, as the request names none"
        lines.append(f"base_image={spec.base_image!r} is not pulled here: the job runs with {programs}")
    lines += fields.ignored(spec, "local")
    if not needs.wants_gpus:
        lines += _why_on_cpu(spec, needs, gpus)
    elif size is not None:
        names = sorted({gpu.name for gpu in gpus if gpu.index in needs.allowed})
        if size.family not in {family_of(name) for name in names}:
            lines.append(f"instance_type={size.name!r}: the GPUs of this machine are {', '.join(names)}")
    if needs.memory_gib and size is not None:
        line = (
            f"instance_type={size.name!r}: {size.memory_gib:g} GiB of memory per worker are counted when the job is "
            "admitted, and not enforced"
        )
        if size.memory_gib * spec.n_workers > machine.memory_gib:
            line += f"; that is more than the {machine.memory_gib:.0f} GiB of this machine, so it counts as all of it"
        lines.append(line)
    copies = fields.copies_notice(spec, needs.processes_with(gpus_each))
    return [*lines, copies] if copies else lines


def _why_on_cpu(spec: JobSpec, needs: Needs, gpus: Sequence[Gpu]) -> Iterator[str]:
    """A notice if the job asks for GPUs, by its type or by their numbers, or could have some, and gets none."""
    size = needs.size
    if size.gpus if size else spec.gpus:
        wish = (
            f"instance_type={size.name!r} asks for {size.gpus} GPUs per worker"
            if size
            else f"gpus={spec.gpus} asks for GPUs"
        )
        if spec.type is JobType.NOGPU:
            yield f"{wish}, but type 'nogpu' uses none: {fields.ON_CPU}"
        else:
            why = "this machine has no GPU" if not gpus else "the submitter may use no GPU of this machine"
            count = "1 process" if needs.processes_with(0) == 1 else f"{needs.processes_with(0)} processes"
            yield f"{wish}, and {why}: {fields.ON_CPU}, {count} per worker"
    if size is None and needs.allowed and spec.type is not JobType.NOGPU:
        yield f"n_workers={needs.workers} can't share {len(needs.allowed)} GPUs, one each at least: {fields.ON_CPU}"
