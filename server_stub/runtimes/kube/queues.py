"""Asks Kueue whether it takes jobs and about the queues in which they wait, and describes the place
of a job there.

Sources: Kueue 0.18, apis/visibility/v1beta2/types.go (the order) and apis/kueue/v1beta2
(LocalQueue, ClusterQueue).
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from heapq import heapify, heapreplace
from statistics import median
from typing import Any

from client_lib.spec.wording import about
from server_stub.runtimes.kube.api import Api, ApiError, call_in_thread, find
from server_stub.runtimes.kube.names import PROBE, QUEUE
from server_stub.runtimes.kube.objects_api import ObjectsApi
from server_stub.runtimes.kube.observe import messages
from server_stub.runtimes.kube.observe.inventory import Inventory, WorkerPod, Workload
from server_stub.runtimes.kube.workload import WorkloadKind, is_missing
from server_stub.runtimes.queue_place import place

LOOK_S = 8.0
"""Age at which an answer is asked for again."""
EARLIER_MAX = 20
"""Number of ended jobs of a queue that count for an estimate, the newest."""
_NOTICED_TRIES = 20
"""Number of tries until the webhook of an operator knows a new object on which workloads are
based."""
_NOTICED_S = 0.25
"""Seconds between two of these tries."""
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"

Json = Mapping[str, Any]

_log = logging.getLogger(__name__)


def is_queued(api: Api, kind: WorkloadKind, namespace: str) -> bool:
    """True if a Kueue takes workloads of this kind in a namespace: it suspends each that names a
    queue, until its turn. Blocks. Raises ApiError.

    The presence of Kueue alone is not enough: its integration kubeflow.org/pytorchjob, for one, is
    off by default since 0.19, and a suspended job would then never start. Creates the object on
    which the probe is based, which jobs use, too.
    """
    base = kind.probe_base(namespace)
    tries = _NOTICED_TRIES
    while True:
        try:
            return kind.is_suspended(kind.dry_run(api, namespace, {QUEUE: PROBE}))
        except ApiError as error:
            tries -= 1
            if not tries or base is None or not is_missing(base, error.message):
                raise
        ObjectsApi(api, namespace, kind).create_base(base)
        time.sleep(_NOTICED_S)


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


class Queues:
    """The queues of Kueue in one namespace, and how long the jobs of each ran. All waiting jobs of
    a queue share one answer. Used on the event loop only."""

    def __init__(self, api: Api, namespace: str, inventory: Inventory) -> None:
        self._api = api
        self._namespace = namespace
        self._inventory = inventory
        self._seen: dict[str, tuple[float, LocalQueue]] = {}
        """Queues by name, with the time at which each was read."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._earlier_s: defaultdict[str, deque[float]] = defaultdict(
            partial(deque, maxlen=EARLIER_MAX)
        )

    async def place(self, workload: Workload | None, *, gpus: bool) -> str:
        """The place of a suspended workload in its queue, in words; empty if the workload has no
        place."""
        if workload is None or workload.queue is None or not workload.suspended:
            return ""
        async with self._locks[workload.queue]:
            found = await self._look(workload.queue)
        left_s = None
        if workload.uid in found.waiting:
            admitted = [
                each
                for each in self._inventory.workloads()
                if each.queue == found.name and not each.suspended
            ]
            ages = [
                age
                for each in admitted
                if (age := _age_s(self._inventory.pods(each.key))) is not None
            ]
            left_s = wait_s(found.waiting.index(workload.uid), ages, self._earlier_s[found.name])
        return describe(found, workload.uid, gpus=gpus, left_s=left_s)

    def ended(self, name: str | None, pods: Iterable[WorkerPod]) -> None:
        """Note how long a job of this queue has had pods."""
        if name is not None and (age_s := _age_s(pods)) is not None:
            self._earlier_s[name].append(age_s)

    async def _look(self, name: str) -> LocalQueue:
        loop = asyncio.get_running_loop()
        seen_at, found = self._seen.get(name, (-LOOK_S, LocalQueue(name)))
        if loop.time() - seen_at >= LOOK_S:
            try:
                found = await call_in_thread(self._read, name)
            except ApiError as error:
                _log.warning("queue %s can't be read: %s", name, error)
                found = LocalQueue(name)
            self._seen[name] = loop.time(), found  # other gangs that waited for this answer use it
        return found

    def _read(self, name: str) -> LocalQueue:
        try:
            local = self._api.get(f"{KUEUE}/namespaces/{self._namespace}/localqueues/{name}")
        except ApiError as error:
            if error.status == 403:
                return LocalQueue(name)
            if error.status == 404 and name in error.message:
                return LocalQueue(
                    name, f"namespace {self._namespace} has no LocalQueue of this name"
                )
            raise
        # Kueue admits a queue without one
        backed_by = (local.get("spec") or {}).get("clusterQueue")
        cluster = (
            find(self._api, f"{KUEUE}/clusterqueues/{backed_by}", may_be_hidden=True)
            if backed_by
            else None
        )
        path = f"{VISIBILITY}/namespaces/{self._namespace}/localqueues/{name}/pendingworkloads"
        return parse(name, local, cluster, find(self._api, path, may_be_hidden=True))


def _age_s(pods: Iterable[WorkerPod]) -> float | None:
    created = [time for pod in pods if (time := messages.moment(pod.created_at))]
    return (datetime.now(timezone.utc) - min(created)).total_seconds() if created else None


# --- the objects of Kueue and their meaning


def parse(name: str, local: Json, cluster: Json | None, pending: Json | None) -> LocalQueue:
    """The queue of this LocalQueue. `cluster`, `pending`: its ClusterQueue and its waiting
    workloads; None: this server can't see them."""
    waiting = (pending or {}).get(
        "items"
    ) or ()  # Kueue's workloads, each owned by the object for which it was made
    spec, status = ((cluster or {}).get(part) or {} for part in ("spec", "status"))
    total = _sums(
        (each for group in spec.get("resourceGroups") or () for each in group["flavors"]),
        "nominalQuota",
    )
    used = _sums(status.get("flavorsReservation") or (), "total")
    return LocalQueue(
        name=name,
        problem=_inactive(local) or _inactive(cluster or {}),
        waiting=[
            str(owners[0]["uid"])
            for each in waiting
            if (owners := each["metadata"].get("ownerReferences"))
        ],
        quota={
            resource: (used.get(resource, 0.0), amount)
            for resource, amount in total.items()
            if amount
        },
    )


def describe(queue: LocalQueue, uid: str, *, gpus: bool, left_s: float | None) -> str:
    """`3rd of 7 in queue team-a; 4 of 8 GPUs of the quota are in use; about 12 min`.

    `uid` is the UID of the workload, `gpus` True if it needs any, `left_s` the estimated time until
    it starts.
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
    """Estimate the time until a job starts, if `ahead` other jobs start before it; None: not enough
    is known.

    Every job that ends is taken to let the next one start. `ages_s`: for how long the running jobs
    of the queue have run. `earlier_s`: for how long the ended jobs ran.
    """
    ends = []
    for age_s in ages_s if earlier_s else ():
        # without any it is taken to start now
        longer = [each for each in earlier_s if each > age_s]
        ends.append(median(longer) - age_s if longer else median(earlier_s))
    if not ends:
        return None
    heapify(ends)
    for _ in range(ahead):
        heapreplace(ends, ends[0] + median(earlier_s))
    return ends[0]


def _in_use(quota: Mapping[str, tuple[float, float]], *, gpus: bool) -> Iterator[str]:
    """Message about the resource that the job waits for: GPUs, or the resource of which the largest
    part is used.
    """
    fractions = {
        name: used / total for name, (used, total) in quota.items() if name.endswith("/gpu") is gpus
    }
    if fractions:
        name = max(fractions, key=lambda each: fractions[each])
        used, total = quota[name]
        number, unit = messages.amount(name, total).split(" ", 1)
        yield (
            f"{messages.amount(name, used).split(' ')[0]} of {number} {unit} of the quota are in "
            "use"
        )


def _inactive(queue: Json) -> str:
    for condition in (queue.get("status") or {}).get("conditions") or ():
        if condition["type"] == "Active" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason"))
    return ""


def _sums(flavors: Iterable[Json], field: str) -> dict[str, float]:
    """Sum of this field of each resource over all flavors."""
    found = defaultdict[str, float](float)
    for flavor in flavors:
        for resource in flavor["resources"]:
            found[resource["name"]] += messages.quantity(str(resource.get(field))) or 0.0
    return found
