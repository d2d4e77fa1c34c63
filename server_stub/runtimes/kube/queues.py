"""Asks Kueue about the queues in which jobs wait, and keeps how long the jobs of each queue ran.

All waiting jobs of a queue share one answer. Used on the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple

from server_stub.runtimes.kube.api import Api, ApiError, call_in_thread, get_if_visible
from server_stub.runtimes.kube.observe import messages, queue
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.observe.parse import WorkerPod, Workload
from server_stub.runtimes.kube.observe.queue import LocalQueue

LOOK_S = 8.0
"""Age at which an answer is asked for again."""
EARLIER_MAX = 20
"""Number of ended jobs of a queue that count for an estimate, the newest."""
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
VISIBILITY = "/apis/visibility.kueue.x-k8s.io/v1beta2"

_log = logging.getLogger(__name__)


class _Seen(NamedTuple):
    at: float
    queue: LocalQueue


class Queues:
    """The queues of Kueue in one namespace."""

    def __init__(self, api: Api, namespace: str, inventory: Inventory) -> None:
        self._api, self._namespace, self._inventory = api, namespace, inventory
        self._seen: dict[str, _Seen] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._earlier_s: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=EARLIER_MAX))

    async def place(self, workload: Workload | None, *, gpus: bool) -> str:
        """The place of a suspended workload in its queue, in words; empty if it has none."""
        if workload is None or workload.queue is None or not workload.suspended:
            return ""
        async with self._locks[workload.queue]:
            found = await self._look(workload.queue)
        left_s = None
        if workload.uid in found.waiting:
            ages = self._ages_s(found.name)
            left_s = queue.wait_s(found.waiting.index(workload.uid), ages, self._earlier_s[found.name])
        return queue.describe(found, workload.uid, gpus=gpus, left_s=left_s)

    def ended(self, name: str | None, pods: Iterable[WorkerPod]) -> None:
        """Note how long a job of this queue has had pods."""
        if name is not None and (age_s := _age_s(pods)) is not None:
            self._earlier_s[name].append(age_s)

    async def _look(self, name: str) -> LocalQueue:
        loop, seen = asyncio.get_running_loop(), self._seen.get(name)
        if seen is None or loop.time() - seen.at >= LOOK_S:
            try:
                found = await call_in_thread(self._read, name)
            except ApiError as error:
                _log.warning("queue %s can't be read: %s", name, error)
                found = LocalQueue(name)
            seen = self._seen[name] = _Seen(loop.time(), found)  # of the answer: gangs that have waited take it, too
        return seen.queue

    def _read(self, name: str) -> LocalQueue:
        try:
            local = self._api.get(f"{KUEUE}/namespaces/{self._namespace}/localqueues/{name}")
        except ApiError as error:
            if error.status == 403:
                return LocalQueue(name)
            if error.not_found and name in error.message:
                return LocalQueue(name, f"namespace {self._namespace} has no LocalQueue of this name")
            raise
        cluster = get_if_visible(self._api, f"{KUEUE}/clusterqueues/{local['spec']['clusterQueue']}")
        path = f"{VISIBILITY}/namespaces/{self._namespace}/localqueues/{name}/pendingworkloads"
        return queue.parse(name, local, cluster, get_if_visible(self._api, path))

    def _ages_s(self, name: str) -> list[float]:
        """Times for which the admitted jobs of this server in a queue have had pods."""
        admitted = [each for each in self._inventory.workloads() if each.queue == name and not each.suspended]
        ages = (_age_s(self._inventory.pods(each.key)) for each in admitted)
        return [age for age in ages if age is not None]


def _age_s(pods: Iterable[WorkerPod]) -> float | None:
    created = [time for pod in pods if (time := messages.moment(pod.created_at))]
    return (datetime.now(timezone.utc) - min(created)).total_seconds() if created else None
