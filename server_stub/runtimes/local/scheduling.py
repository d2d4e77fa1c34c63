"""Computes what an attempt needs of this machine, makes notices about fields with another effect
than on a cluster, and decides which waiting attempts start now, and for what each other attempt
waits. Pure.

Order: priority class, then submission. Resources that are free but not enough for an attempt are
reserved for it, so that later attempts cannot starve it; resources that the attempt could not use
stay available to later ones. An attempt that waits for a GPU held by a foreign process reserves
nothing, because the end of other jobs would not help it.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from client_lib.errors import InvalidRequest, NeverFits
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import Submitter
from server_stub.runtimes import Attempt, fields
from server_stub.runtimes.instance_types import Catalogue, Size, family_of
from server_stub.runtimes.local.gpus import Gpu, visible
from server_stub.runtimes.local.machine import Machine
from server_stub.runtimes.queue_place import place

VISIBLE = "CUDA_VISIBLE_DEVICES"
# of one job: more than any machine can use; protects the machine from a typing error
MAX_PROCESSES = 256
MANY = 20
"""Largest number of preceding jobs that is shown exactly."""

Key = tuple[str, int]
"""Id of a job, and number of the attempt."""
Grant = tuple[tuple[int, ...], ...]
"""Indices of the GPUs of each worker, worker 0 first."""


@dataclass(frozen=True)
class Needs:
    """Resources of all workers together, unless a field is per worker."""

    workers: int
    gpus: int | None
    """GPUs per worker; 0: no GPU. None: all free GPUs, distributed evenly, at least one for each
    worker."""
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


def needs(
    spec: JobSpec, submitter: Submitter, catalogue: Catalogue, machine: Machine, gpus: Sequence[Gpu]
) -> Needs:
    """The needs of `spec` on this machine. Raises NeverFits: it is too small; the hint gives the
    largest job that fits; InvalidRequest: an unknown instance type, or GPUs that cannot be
    distributed evenly."""
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
        memory_gib=0
        if size is None or on_cpu
        else min(size.memory_gib * spec.n_workers, machine.memory_gib),
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
        f"n_workers={spec.n_workers} with {processes} processes each are "
        f"{found.workers * processes} processes; a job on this machine may have {MAX_PROCESSES}",
        hint=f"the largest that fits: {way_out}",
    )


def _allowed(spec: JobSpec, submitter: Submitter, gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs within all limits: the submitter's own,
    CUDA_VISIBLE_DEVICES of the spec, and `gpus`.
    """
    mine = visible(gpus, submitter.gpus)
    variable = spec.environment().get(VISIBLE)
    if variable is not None:
        named = visible(gpus, [part.strip() for part in variable.split(",")])
        mine = [gpu for gpu in named if gpu in mine]
    if spec.gpus is None or not mine:
        return mine
    usable = {gpu.index: gpu for gpu in mine}
    known = {gpu.index for gpu in gpus}
    for index in spec.gpus:
        if index not in known:
            raise NeverFits(f"gpus={[index]}: this machine has {_indices(gpus)}")
        if index not in usable:
            raise NeverFits(
                f"gpus={[index]}: GPU {index} is not among those that you may use here "
                f"({_indices(mine)})",
                hint=f"{VISIBLE} or a SLURM allocation bounds them where you submit",
            )
    return [usable[index] for index in dict.fromkeys(spec.gpus)]


def _indices(gpus: Sequence[Gpu]) -> str:
    return "no GPU" if not gpus else "GPU " + ", ".join(str(gpu.index) for gpu in gpus)


def _gpus_per_worker(
    spec: JobSpec, size: Size | None, allowed: Sequence[Gpu], gpus: Sequence[Gpu]
) -> int | None:
    if spec.type is JobType.NOGPU or not allowed or (size is not None and size.gpus == 0):
        return 0
    if size is not None:
        wanted = spec.n_workers * size.gpus
        if wanted <= len(allowed):
            return size.gpus
        bound = (
            f", of which this job may use {_indices(allowed)}" if len(allowed) < len(gpus) else ""
        )
        if size.gpus <= len(allowed):
            largest = f"n_workers={len(allowed) // size.gpus} of {size.name}"
        else:
            largest = f"n_workers=1 of {size.family}.{len(allowed)}gpu"
        raise NeverFits(
            f"n_workers={spec.n_workers} of {size.name} need {wanted} GPUs; this machine has "
            f"{len(gpus)}{bound}",
            hint=f"the largest that fits: {largest}",
        )
    if spec.gpus is None:
        return None if len(allowed) >= spec.n_workers else 0
    if len(allowed) % spec.n_workers:
        raise InvalidRequest(
            f"gpus={spec.gpus}: {len(allowed)} GPUs can't be shared evenly by "
            f"n_workers={spec.n_workers}",
            hint="give each worker as many, or name an instance_type",
        )
    return len(allowed) // spec.n_workers


def notices(
    spec: JobSpec, submitter: Submitter, needs: Needs, machine: Machine, gpus: Sequence[Gpu]
) -> list[str]:
    """One notice for each field with another effect than on a cluster."""
    size = needs.size
    gpus_each = needs.gpus or (len(needs.allowed) // needs.workers if needs.gpus is None else 0)
    lines = []
    if spec.base_image is not None:
        if spec.python_script is None:
            programs = "the programs of this machine"
        elif spec.conda_env is not None:
            programs = f"the python of conda_env={spec.conda_env!r}"
        else:
            programs = submitter.python or "the server's own python, as the request names none"
        lines.append(
            f"base_image={spec.base_image!r} is not pulled here: the job runs with {programs}"
        )
    lines += fields.ignored(spec, "local")
    if not needs.wants_gpus:
        lines += _why_on_cpu(spec, needs, gpus)
    elif size is not None:
        names = sorted({gpu.name for gpu in gpus if gpu.index in needs.allowed})
        if size.family not in {family_of(name) for name in names}:
            lines.append(
                f"instance_type={size.name!r}: the GPUs of this machine are {', '.join(names)}"
            )
    if needs.memory_gib and size is not None:
        line = (
            f"instance_type={size.name!r}: {size.memory_gib:g} GiB of memory per worker are "
            "counted when the job is admitted, and not enforced"
        )
        if size.memory_gib * spec.n_workers > machine.memory_gib:
            line += (
                f"; that is more than the {machine.memory_gib:.0f} GiB of this machine, so it "
                "counts as all of it"
            )
        lines.append(line)
    copies = fields.copies_notice(spec, needs.processes_with(gpus_each))
    return [*lines, copies] if copies else lines


def _why_on_cpu(spec: JobSpec, needs: Needs, gpus: Sequence[Gpu]) -> Iterator[str]:
    """A notice if the job asks for GPUs, by its type or by their numbers, or could
    have some, and gets none.
    """
    size = needs.size
    if size.gpus if size else spec.gpus:
        wish = f"gpus={spec.gpus} asks for GPUs"
        if size:
            gpus_asked = f"{size.gpus} GPU{'s' if size.gpus > 1 else ''}"
            wish = f"instance_type={size.name!r} asks for {gpus_asked} per worker"
        if spec.type is JobType.NOGPU:
            yield f"{wish}, but type 'nogpu' uses none: {fields.ON_CPU}"
        else:
            why = (
                "this machine has no GPU"
                if not gpus
                else "the submitter may use no GPU of this machine"
            )
            count = (
                "1 process"
                if needs.processes_with(0) == 1
                else f"{needs.processes_with(0)} processes"
            )
            yield f"{wish}, and {why}: {fields.ON_CPU}, {count} per worker"
    if size is None and needs.allowed and spec.type is not JobType.NOGPU:
        yield (
            f"n_workers={needs.workers} can't share {len(needs.allowed)} GPUs, one each at least: "
            f"{fields.ON_CPU}"
        )


# --- the queue


@dataclass(eq=False)
class Waiting:
    key: Key
    priority: int
    """Order of the queue: a higher value starts first, and of equal values the attempt that was
    created first."""
    created_at: datetime
    needs: Needs
    take: Callable[[], Attempt]
    """Returns the attempt, to be started. Raises ServerError if it cannot be read from disk."""
    message: str = ""
    """The last reported reason why it waits; empty: not reported yet."""

    def unload(self) -> None:
        """Drop the attempt, mostly the environment of its submitter, from memory if it
        is on disk. Call it once.
        """
        self.take = self.take().reload or self.take


@dataclass(frozen=True)
class Capacity:
    """Resources of this machine, and the free part of them."""

    gpus: int
    free_gpus: frozenset[int]
    """Neither handed out nor held by a foreign process."""
    held_gpus: dict[int, str]
    """Index -> clause that names the foreign process. These are not handed out."""
    max_cpu_jobs: int
    cpu_jobs: int
    """Running."""
    memory_gib: float
    memory_free_gib: float
    reserved_gpus: int = 0
    """Free, but kept for attempts that wait."""


def available(size: Size, capacity: Capacity, cores: int) -> int:
    """The number of workers of this type that fit right now. On cores, also for a type whose GPUs
    this machine lacks: those that have cores of their own, with a core for each job that runs."""
    if size.gpus and capacity.gpus:
        return len(capacity.free_gpus) // size.gpus
    turns = capacity.max_cpu_jobs - capacity.cpu_jobs
    with_cores = int((cores - capacity.cpu_jobs) // max(size.cpu, 1))
    return max(min(turns, with_cores), 0)


class Schedule(NamedTuple):
    grants: dict[Key, Grant]
    """Attempts to start, in this order."""
    waits: dict[Key, str]
    """Key -> reason why it waits. An attempt far back in the queue, for which nothing is
    left, keeps its first one.
    """


def decide(queue: Collection[Waiting], capacity: Capacity) -> Schedule:
    """Start the attempts of `queue` (as they arrived) that fit, and give the reason why
    each of the others waits.
    """
    grants: dict[Key, Grant] = {}
    waits: dict[Key, str] = {}
    for waiting in sorted(queue, key=lambda each: (-each.priority, each.created_at)):
        needs = waiting.needs
        nothing_left = (
            not capacity.free_gpus
            if needs.wants_gpus
            else capacity.cpu_jobs >= capacity.max_cpu_jobs
        )
        far_back = len(waits) > MANY and nothing_left
        if far_back and waiting.message:
            continue
        usable = sorted(capacity.free_gpus & set(needs.allowed))
        why = _obstacle(needs, usable, capacity)
        if why is None:
            grants[waiting.key] = grant(needs, usable)
            capacity = _taken(capacity, needs, grants[waiting.key])
            continue
        waits[waiting.key] = why
        reachable = [index for index in needs.allowed if index not in capacity.held_gpus]
        if not far_back and len(reachable) >= needs.least_gpus:
            kept = usable[: needs.least_gpus]
            capacity = _taken(capacity, needs, (tuple(kept),), len(kept))
    total = len(queue) - len(grants)
    placed = {
        key: _place_of(number, total) + why for number, (key, why) in enumerate(waits.items(), 1)
    }
    return Schedule(grants, placed)


def grant(needs: Needs, usable: Sequence[int]) -> Grant:
    """Distribute the first GPUs of `usable` to the workers; `usable` has at least
    `needs.least_gpus`.
    """
    each = len(usable) // needs.workers if needs.gpus is None else needs.gpus
    return tuple(tuple(usable[i * each : (i + 1) * each]) for i in range(needs.workers))


def _obstacle(needs: Needs, usable: Sequence[int], capacity: Capacity) -> str | None:
    if len(usable) < needs.least_gpus:
        return _gpu_obstacle(needs, capacity)
    if not needs.wants_gpus and capacity.cpu_jobs >= capacity.max_cpu_jobs:
        return f"waits for its turn: jobs without GPUs run {capacity.max_cpu_jobs} at a time"
    if needs.memory_gib and needs.memory_gib > capacity.memory_free_gib:
        return f"waits for {needs.memory_gib:.0f} of {capacity.memory_gib:.0f} GiB memory"
    return None


def _gpu_obstacle(needs: Needs, capacity: Capacity) -> str:
    held = [capacity.held_gpus[i] for i in sorted(needs.allowed) if i in capacity.held_gpus]
    bound = (
        f" (GPU {', '.join(map(str, sorted(needs.allowed)))})"
        if len(needs.allowed) < capacity.gpus
        else ""
    )
    in_use = (
        capacity.gpus - len(capacity.free_gpus) - len(capacity.held_gpus) - capacity.reserved_gpus
    )
    wanted = f"waits for {needs.least_gpus} GPU{'s' if needs.least_gpus > 1 else ''}{bound}"
    return "; ".join([wanted, f"{in_use} of {capacity.gpus} GPUs are in use", *held])


def _place_of(number: int, total: int) -> str:
    """The place of an attempt among the waiting ones; empty if no other attempt waits. Exact up to
    MANY only: otherwise each start of a job would change the messages of thousands."""
    if number > MANY + 1:
        return f"more than {MANY} jobs before it; "
    return (
        f"{place(number, total if total <= MANY else f'more than {MANY}')}; " if total > 1 else ""
    )


def _taken(capacity: Capacity, needs: Needs, given: Grant, reserved: int = 0) -> Capacity:
    """The capacity that a grant leaves. `reserved`: number of the GPUs that are only kept
    for an attempt that waits.
    """
    return replace(
        capacity,
        free_gpus=capacity.free_gpus.difference(*given),
        reserved_gpus=capacity.reserved_gpus + reserved,
        cpu_jobs=capacity.cpu_jobs + (not needs.wants_gpus),
        memory_free_gib=capacity.memory_free_gib - needs.memory_gib,
    )
