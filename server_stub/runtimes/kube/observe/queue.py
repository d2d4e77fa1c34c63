"""Describes the place of a waiting job in a queue of Kueue. Pure.

Sources: Kueue 0.18, apis/visibility/v1beta2/types.go (the order) and apis/kueue/v1beta2 (LocalQueue, ClusterQueue).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from statistics import median
from typing import Any

from client_lib.spec.summary import about
from server_stub.runtimes import place
from server_stub.runtimes.kube.observe import messages

Json = Mapping[str, Any]


@dataclass(frozen=True)
class LocalQueue:
    """A LocalQueue, as far as this server may see it."""

    name: str
    problem: str = ""
    """Reason why nothing leaves the queue; empty: something may."""
    waiting: Sequence[str] = ()
    """UIDs of the waiting workloads; the first one starts first."""
    quota: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Used and total amount of each resource of its ClusterQueue."""


def parse(name: str, local: Json, cluster: Json | None, pending: Json | None) -> LocalQueue:
    """The queue of this LocalQueue; None: this server can't see its ClusterQueue, or its waiting workloads."""
    total = _sums(_nominal((cluster or {}).get("spec") or {}))
    used = _sums(_reserved((cluster or {}).get("status") or {}))
    return LocalQueue(
        name=name,
        problem=_inactive(local) or _inactive(cluster or {}),
        waiting=[uid for each in (pending or {}).get("items") or () if (uid := _owner(each))],
        quota={resource: (used.get(resource, 0.0), amount) for resource, amount in total.items() if amount},
    )


def describe(queue: LocalQueue, uid: str, *, gpus: bool, left_s: float | None) -> str:
    """`3rd of 7 in queue team-a; 4 of 8 GPUs of the quota are in use; about 12 min`.

    `uid` is the UID of the workload, `gpus` True if it needs any, `left_s` the estimated time until it starts.
    """
    if queue.problem:
        return messages.shortened(f"queue {queue.name} lets no job start: {queue.problem}")
    if uid not in queue.waiting:
        return "; ".join([f"waits for queue {queue.name}", *_in_use(queue.quota, gpus=gpus)])
    ahead = queue.waiting.index(uid)
    estimate = [] if left_s is None else [f"about {about(left_s)}"]
    where = f"{place(ahead + 1, len(queue.waiting))} in queue {queue.name}"
    return "; ".join([where, *_in_use(queue.quota, gpus=gpus), *estimate])


def wait_s(ahead: int, ages_s: Iterable[float], earlier_s: Sequence[float]) -> float | None:
    """Estimated time until a job starts before which `ahead` others start; None: not enough is known.

    Every job that ends is taken to let the next one start. `ages_s`: how long the jobs of the queue run by now.
    `earlier_s`: how long those ran that have ended.
    """
    ends = [_left_s(age, earlier_s) for age in ages_s] if earlier_s else []
    if not ends:
        return None
    heapify(ends)
    for _ in range(ahead):
        heapreplace(ends, ends[0] + median(earlier_s))
    return ends[0]


def _left_s(age_s: float, earlier_s: Sequence[float]) -> float:
    """Time that a job of this age still runs: as those did that ran longer, else as if it started now."""
    longer = [each for each in earlier_s if each > age_s]
    return median(longer) - age_s if longer else median(earlier_s)


def _in_use(quota: Mapping[str, tuple[float, float]], *, gpus: bool) -> Iterator[str]:
    """Message about the resource that the job waits for: GPUs, or the one of which the largest part is used."""
    fractions = {name: used / total for name, (used, total) in quota.items() if name.endswith("/gpu") is gpus}
    if fractions:
        name = max(fractions, key=lambda each: fractions[each])
        used, total = quota[name]
        number, unit = messages.amount(name, total).split(" ", 1)
        yield f"{messages.amount(name, used).split(' ')[0]} of {number} {unit} of the quota are in use"


def _inactive(queue: Json) -> str:
    for condition in (queue.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Active" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    return ""


def _nominal(spec: Json) -> Iterator[tuple[str, float]]:
    for group in spec.get("resourceGroups") or ():
        for flavor in group["flavors"]:
            yield from ((each["name"], _amount(each.get("nominalQuota"))) for each in flavor["resources"])


def _reserved(status: Json) -> Iterator[tuple[str, float]]:
    for flavor in status.get("flavorsReservation") or ():
        yield from ((each["name"], _amount(each.get("total"))) for each in flavor["resources"])


def _amount(text: object) -> float:
    return messages.quantity(str(text)) or 0.0


def _sums(amounts: Iterable[tuple[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, each in amounts:
        found[name] = found.get(name, 0.0) + each
    return found


def _owner(pending: Json) -> str:
    """UID of the object for which Kueue has made a workload."""
    owners = pending["metadata"].get("ownerReferences") or ()
    return str(owners[0]["uid"]) if owners else ""
