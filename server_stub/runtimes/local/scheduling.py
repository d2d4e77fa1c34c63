"""Decides which waiting attempts start now, and what each of the others waits for. Pure.

Order: priority class, then submission. Resources that are free but not enough for an attempt are reserved for it, so
that later ones cannot starve it; resources that it could not use stay available to them. An attempt that waits for a
GPU held by a foreign process reserves nothing, because the end of other jobs would not help it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import NamedTuple

from server_stub.runtimes import Attempt, place
from server_stub.runtimes.local.needs import Needs

MANY = 20
"""Largest number of preceding jobs that is shown exactly."""

Grant = tuple[tuple[int, ...], ...]
"""Indices of the GPUs of each worker, worker 0 first."""


@dataclass(eq=False)
class Waiting:
    key: str
    priority: int
    """Higher values start first, and within one of them what was created first."""
    created_at: datetime
    needs: Needs
    take: Callable[[], Attempt]
    """Returns the attempt, to be started. Raises ServerError if it cannot be read from disk."""
    message: str = ""
    """The last reported reason why it waits; empty: not reported yet."""

    @property
    def order(self) -> tuple[int, datetime]:
        return (-self.priority, self.created_at)

    def unload(self) -> None:
        """Drop the attempt, mostly the environment of its submitter, from memory if it is on disk. Call it once."""
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

    @property
    def gpus_in_use(self) -> int:
        return self.gpus - len(self.free_gpus) - len(self.held_gpus) - self.reserved_gpus

    def exhausted_for(self, needs: Needs) -> bool:
        return not self.free_gpus if needs.wants_gpus else self.cpu_jobs >= self.max_cpu_jobs


class Schedule(NamedTuple):
    grants: dict[str, Grant]
    """Attempts to start, in this order."""
    waits: dict[str, str]
    """Key -> reason why it waits. An attempt far back in the queue, for which nothing is left, keeps its first one."""


def decide(queue: Collection[Waiting], capacity: Capacity) -> Schedule:
    """Start the attempts of `queue` (as they arrived) that fit, and give the reason why each of the others waits."""
    grants: dict[str, Grant] = {}
    waits: dict[str, str] = {}
    for waiting in sorted(queue, key=attrgetter("order")):
        needs = waiting.needs
        far_back = len(waits) > MANY and capacity.exhausted_for(needs)
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
    placed = {key: _place_of(number, total) + why for number, (key, why) in enumerate(waits.items(), 1)}
    return Schedule(grants, placed)


def grant(needs: Needs, usable: Sequence[int]) -> Grant:
    """The first of `usable`, distributed to the workers; there are at least `needs.least_gpus` of them."""
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
    bound = f" (GPU {', '.join(map(str, sorted(needs.allowed)))})" if len(needs.allowed) < capacity.gpus else ""
    used = f"{capacity.gpus_in_use} of {capacity.gpus} GPUs are in use"
    return "; ".join([f"waits for {needs.least_gpus} GPU{'s' if needs.least_gpus > 1 else ''}{bound}", used, *held])


def _place_of(number: int, total: int) -> str:
    """The place of an attempt among those that wait, empty for the only one. Exact up to MANY only: otherwise each
    start of a job would change the messages of thousands."""
    if number > MANY + 1:
        return f"more than {MANY} jobs before it; "
    return f"{place(number, total if total <= MANY else f'more than {MANY}')}; " if total > 1 else ""


def _taken(capacity: Capacity, needs: Needs, given: Grant, reserved: int = 0) -> Capacity:
    """The capacity that a grant leaves. `reserved`: number of the GPUs that are only kept for an attempt that waits."""
    return replace(
        capacity,
        free_gpus=capacity.free_gpus.difference(*given),
        reserved_gpus=capacity.reserved_gpus + reserved,
        cpu_jobs=capacity.cpu_jobs + (not needs.wants_gpus),
        memory_free_gib=capacity.memory_free_gib - needs.memory_gib,
    )
