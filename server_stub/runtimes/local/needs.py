"""Computes the resources that an attempt needs on this machine, rejects one that could never start, and makes
notices about fields with another effect than on a cluster (`runtimes.fields` has the table of all fields). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    found = Needs(
        workers=spec.n_workers,
        gpus=per_worker,
        allowed=tuple(gpu.index for gpu in allowed),
        memory_gib=0 if size is None or on_cpu else min(size.memory_gib * spec.n_workers, machine.memory_gib),
        size=size,
        cores=_cores(size, spec.n_workers, machine),
        processes=None if spec.processes_per_worker == "default" else spec.processes_per_worker,
    )
    _check_processes(spec, found)
    return found


def _cores(size: Size | None, workers: int, machine: Machine) -> int:
    """An even share of the machine; less if the instance type is smaller."""
    share = max(machine.cores // workers, 1)
    return max(min(share, int(size.cpu)), 1) if size is not None and size.cpu else share


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
        _check_gpus(spec, size, allowed, gpus)
        return size.gpus
    if spec.gpus is None:
        return None if len(allowed) >= spec.n_workers else 0
    if len(allowed) % spec.n_workers:
        raise InvalidRequest(
            f"gpus={spec.gpus}: {len(allowed)} GPUs can't be shared evenly by n_workers={spec.n_workers}",
            hint="give each worker as many, or name an instance_type",
        )
    return len(allowed) // spec.n_workers


def _check_gpus(spec: JobSpec, size: Size, allowed: Sequence[Gpu], gpus: Sequence[Gpu]) -> None:
    wanted = spec.n_workers * size.gpus
    if wanted <= len(allowed):
        return
    bound = f", of which this job may use {_indices(allowed)}" if len(allowed) < len(gpus) else ""
    if size.gpus <= len(allowed):
        largest = f"n_workers={len(allowed) // size.gpus} of {size.name}"
    else:
        largest = f"n_workers=1 of {size.family}.{len(allowed)}gpu"
    raise NeverFits(
        f"n_workers={spec.n_workers} of {size.name} need {wanted} GPUs; this machine has {len(gpus)}{bound}",
        hint=f"the largest that fits: {largest}",
    )


def _check_processes(spec: JobSpec, found: Needs) -> None:
    per_worker = found.processes_with(found.gpus or 1)
    if found.workers * per_worker <= MAX_PROCESSES:
        return
    fits = MAX_PROCESSES // per_worker
    way_out = f"n_workers={fits}" if fits else f"processes_per_worker={MAX_PROCESSES}"
    raise NeverFits(
        f"n_workers={spec.n_workers} with {per_worker} processes each are {found.workers * per_worker} processes; "
        f"a job on this machine may have {MAX_PROCESSES}",
        hint=f"the largest that fits: {way_out}",
    )


def notices(spec: JobSpec, submitter: Submitter, needs: Needs, machine: Machine, gpus: Sequence[Gpu]) -> list[str]:
    """One notice for each field with another effect than on a cluster."""
    gpus_each = needs.gpus or (len(needs.allowed) // needs.workers if needs.gpus is None else 0)
    lines = [
        _image(spec, submitter),
        *fields.ignored(spec, "local"),
        _runs_on_cpu(spec, needs, gpus),
        _too_few_gpus(spec, needs),
        _other_cards(needs, gpus),
        _not_enforced(spec, needs, machine),
        fields.copies_notice(spec, needs.processes_with(gpus_each)),
    ]
    return [line for line in lines if line]


def _image(spec: JobSpec, submitter: Submitter) -> str:
    if spec.base_image is None:
        return ""
    if spec.python_script is None:
        programs = "the programs of this machine"
    elif spec.conda_env is not None:
        programs = f"the python of conda_env={spec.conda_env!r}"
    else:
        programs = submitter.python or "the server's own python, as the request names none"
    return f"base_image={spec.base_image!r} is not pulled here: the job runs with {programs}"


def _runs_on_cpu(spec: JobSpec, needs: Needs, gpus: Sequence[Gpu]) -> str:
    """Notice where the job asks for GPUs, by its type or by their numbers, and gets none."""
    if needs.wants_gpus or not (needs.size.gpus if needs.size else spec.gpus):
        return ""
    if needs.size is None:
        wish = f"gpus={spec.gpus} asks for GPUs"
    else:
        wish = f"instance_type={needs.size.name!r} asks for {needs.size.gpus} GPUs per worker"
    if spec.type is JobType.NOGPU:
        return f"{wish}, but type 'nogpu' uses none: {fields.ON_CPU}"
    why = "this machine has no GPU" if not gpus else "the submitter may use no GPU of this machine"
    count = needs.processes_with(0)
    return f"{wish}, and {why}: {fields.ON_CPU}, {'1 process' if count == 1 else f'{count} processes'} per worker"


def _too_few_gpus(spec: JobSpec, needs: Needs) -> str:
    if needs.size is not None or needs.wants_gpus or not needs.allowed or spec.type is JobType.NOGPU:
        return ""
    return f"n_workers={needs.workers} can't share {len(needs.allowed)} GPUs, one each at least: {fields.ON_CPU}"


def _other_cards(needs: Needs, gpus: Sequence[Gpu]) -> str:
    if needs.size is None or not needs.size.gpus or not needs.wants_gpus:
        return ""
    names = sorted({gpu.name for gpu in gpus if gpu.index in needs.allowed})
    if needs.size.family in {family_of(name) for name in names}:
        return ""
    return f"instance_type={needs.size.name!r}: the GPUs of this machine are {', '.join(names)}"


def _not_enforced(spec: JobSpec, needs: Needs, machine: Machine) -> str:
    if not needs.memory_gib or needs.size is None:
        return ""
    line = (
        f"instance_type={needs.size.name!r}: {needs.size.memory_gib:g} GiB of memory per worker are counted when the "
        "job is admitted, and not enforced"
    )
    if needs.size.memory_gib * spec.n_workers > machine.memory_gib:
        line += f"; that is more than the {machine.memory_gib:.0f} GiB of this machine, so it counts as all of it"
    return line
