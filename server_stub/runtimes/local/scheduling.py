"""Decides which waiting attempts start now, and what each of the others waits for. Pure.

Order: priority class, then submission. Resources that are free but not enough for an attempt are reserved for it, so
that later ones cannot starve it; resources that it could not use stay available to them. An attempt that waits for a
GPU held by a foreign process reserves nothing, because the end of other jobs would not help it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from server_stub.runtimes import Attempt, place
from server_stub.runtimes.local.needs import Needs

MANY = 20
"""Largest number of preceding jobs that is shown exactly."""

Grant = tuple[tuple[int, ...], ...]
"""Indices of the GPUs of each worker, worker 0 first."""


@dataclass
class Waiting:
    key: str
    priority: int
    """Higher values start first."""
    created_at: datetime
    arrival: int
    """Orders attempts that were created at the same time."""
    needs: Needs
    take: Callable[[], Attempt]
    """Returns the attempt, to be started. Raises ServerError if it cannot be read from disk."""
    message: str = ""
    """The last reported reason why it waits; empty: not reported yet."""

    @property
    def order(self) -> tuple[int, datetime, int]:
        return (-self.priority, self.created_at, self.arrival)

    def unload(self) -> None:
        """Drop the attempt, mostly the environment of its submitter, from memory if it is on disk. Call it once."""
        self.take = self.take().reload or self.take


_order = attrgetter("order")


class WaitingQueue:
    """Attempts by key, and in order of `Waiting.order`. Adding to a queue of thousands is cheap."""

    def __init__(self) -> None:
        self._by_key: dict[str, Waiting] = {}
        self._in_order: list[Waiting] = []
        self.wanting_gpus = 0
        """Number of attempts that need GPUs."""

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __getitem__(self, key: str) -> Waiting:
        return self._by_key[key]

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._in_order)

    def add(self, waiting: Waiting) -> bool:
        """Returns True if it is the last one in order."""
        self._by_key[waiting.key] = waiting
        self.wanting_gpus += waiting.needs.wants_gpus
        if not self._in_order or self._in_order[-1].order < waiting.order:
            self._in_order.append(waiting)
            return True
        insort(self._in_order, waiting, key=_order)
        return False

    def pop(self, key: str) -> Waiting | None:
        waiting = self._by_key.pop(key, None)
        if waiting is not None:
            del self._in_order[bisect_left(self._in_order, waiting.order, key=_order)]
            self.wanting_gpus -= waiting.needs.wants_gpus
        return waiting


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

    @property
    def exhausted(self) -> bool:
        """No attempt can start, whatever it needs."""
        return not self.free_gpus and self.cpu_jobs >= self.max_cpu_jobs


@dataclass(frozen=True)
class Schedule:
    grants: dict[str, Grant]
    """Attempts to start, in this order."""
    waits: dict[str, str]
    """Key -> reason why it waits. Once nothing is left to give, attempts far back in the queue are left out."""
    left: Capacity
    """The capacity for attempts after these."""


def decide(queue: Collection[Waiting], capacity: Capacity, before: int = 0) -> Schedule:
    """Start the attempts of `queue` (in their order) that fit, and give the reason why each of the others waits.

    `before`: number of attempts before the first of `queue`; `capacity` is then the part that they have left.
    """
    grants: dict[str, Grant] = {}
    waits: dict[str, str] = {}
    for waiting in queue:
        if before + len(waits) > MANY and capacity.exhausted:
            break
        usable = sorted(capacity.free_gpus & set(waiting.needs.allowed))
        why = _obstacle(waiting.needs, usable, capacity)
        if why is None:
            grants[waiting.key] = grant(waiting.needs, usable)
            capacity = _taken(capacity, waiting.needs, grants[waiting.key])
        else:
            waits[waiting.key] = why
            capacity = _kept_back(capacity, waiting.needs, usable)
    total = before + len(queue) - len(grants)
    placed = {key: _place_of(number, total) + why for number, (key, why) in enumerate(waits.items(), before + 1)}
    return Schedule(grants, placed, capacity)


def far_back(waiting: Waiting, left: Capacity) -> str:
    """The reason why an attempt waits that `decide` has left out."""
    usable = sorted(left.free_gpus & set(waiting.needs.allowed))
    return f"more than {MANY} jobs before it; {_obstacle(waiting.needs, usable, left) or 'waits for its turn'}"


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


def _kept_back(capacity: Capacity, needs: Needs, usable: Sequence[int]) -> Capacity:
    reachable = len([i for i in needs.allowed if i not in capacity.held_gpus])
    if reachable < needs.least_gpus:
        return capacity
    kept = tuple(usable[: needs.least_gpus])
    return _taken(capacity, needs, (kept,), len(kept))
