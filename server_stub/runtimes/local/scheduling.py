"""Who goes first: which of the waiting attempts start now, and what each other one waits for. Pure.

Order: priority class, then submission. An attempt that doesn't fit keeps what is free for it from those behind it, so
nobody starves; what it couldn't use anyway is theirs. One that a stranger's process keeps from starting holds back
nothing, as no end of a job would help it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from server_stub.runtimes.local.needs import Needs

MANY = 20
"""Jobs before one, up to which they are counted."""

Grant = tuple[tuple[int, ...], ...]
"""Indices of the GPUs of each worker, worker 0 first."""


@dataclass(frozen=True)
class Waiting:
    key: str
    priority: int
    """Higher goes first."""
    created_at: datetime
    arrival: int
    """Tells those apart that were created at the same time."""
    needs: Needs

    @property
    def place(self) -> tuple[int, datetime, int]:
        return (-self.priority, self.created_at, self.arrival)


@dataclass(frozen=True)
class Capacity:
    """What is there, and what of it is free."""

    gpus: int
    free_gpus: frozenset[int]
    """Neither handed out nor held by a stranger."""
    held_gpus: dict[int, str]
    """By index: the clause that says which process holds it. None of these is handed out."""
    max_cpu_jobs: int
    cpu_jobs: int
    """Running."""
    memory_gib: float
    memory_free_gib: float

    @property
    def exhausted(self) -> bool:
        """Nothing can start, whatever it needs."""
        return not self.free_gpus and self.cpu_jobs >= self.max_cpu_jobs


@dataclass(frozen=True)
class Decision:
    grants: dict[str, Grant]
    """By key: start these, in this order."""
    waits: dict[str, str]
    """By key: what it waits for. Where nothing is left to give, those far back in the queue are not looked at."""
    left: Capacity
    """What is left for those behind."""


def decide(queue: Iterable[Waiting], capacity: Capacity, before: int = 0) -> Decision:
    """Start what fits of `queue`, which is in order of `place`; say of the others what they wait for.

    `before`: how many wait before the first of `queue`, where `capacity` is what the decision about those has left."""
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
            waits[waiting.key] = why + _before(before + len(waits))
            capacity = _kept_back(capacity, waiting.needs, usable)
    return Decision(grants, waits, capacity)


def far_back(waiting: Waiting, left: Capacity) -> str:
    """What one waits for that `decide` didn't look at."""
    usable = sorted(left.free_gpus & set(waiting.needs.allowed))
    return (_obstacle(waiting.needs, usable, left) or "waits for its turn") + _before(MANY + 1)


def grant(needs: Needs, usable: Sequence[int]) -> Grant:
    """The first of `usable`, shared out; there are at least `needs.least_gpus` of them."""
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
    bound = f" ({_these(needs.allowed)})" if len(needs.allowed) < capacity.gpus else ""
    return "; ".join([f"waits for {needs.least_gpus} of {capacity.gpus} GPUs{bound}", *held])


def _these(indices: Sequence[int]) -> str:
    return "GPU " + ", ".join(map(str, sorted(indices)))


def _before(count: int) -> str:
    """Exact for the first ones only: else each start of a job would be news for thousands."""
    if count > MANY:
        return f"; more than {MANY} jobs before it"
    return "" if not count else f"; {count} job{'s' if count > 1 else ''} before it"


def _taken(capacity: Capacity, needs: Needs, given: Grant) -> Capacity:
    return replace(
        capacity,
        free_gpus=capacity.free_gpus.difference(*given),
        cpu_jobs=capacity.cpu_jobs + (not needs.wants_gpus),
        memory_free_gib=capacity.memory_free_gib - needs.memory_gib,
    )


def _kept_back(capacity: Capacity, needs: Needs, usable: Sequence[int]) -> Capacity:
    reachable = len([i for i in needs.allowed if i not in capacity.held_gpus])
    if reachable < needs.least_gpus:
        return capacity
    return replace(
        capacity,
        free_gpus=capacity.free_gpus.difference(usable[: needs.least_gpus]),
        cpu_jobs=capacity.cpu_jobs + (not needs.wants_gpus),
        memory_free_gib=capacity.memory_free_gib - needs.memory_gib,
    )
