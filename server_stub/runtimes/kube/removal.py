"""Removes the objects of attempts from the cluster; attempts that have ended are removed a few at a time.

The garbage collector of a cluster makes 40 requests/s in total (twice the kube-controller-manager's --kube-api-qps, 20
by default), of which each deleted object needs two. With many deletions at once it forgets which owners are gone and
asks for them repeatedly; and an attempt that is deleted while it runs would wait for all that have ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

from server_stub.runtimes.kube.api import ApiError, call_in_thread, call_until_answered
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.observe.parse import WorkerPod
from server_stub.runtimes.tasks import is_set_within

AT_ONCE = 4
SUCCEEDED_PODS_S = 30.0  # pods that succeeded end by themselves in less
TURN_S = 30.0  # longest time one removal may block the queue while a foreign finalizer holds its objects
LOOK_AGAIN_S = 15.0


class RemovalQueue:
    """The attempts of one cluster that have ended and whose objects are still there."""

    def __init__(self) -> None:
        self.ended: set[AttemptKey] = set()
        self.turns = asyncio.Semaphore(AT_ONCE)
        """Admits removals in the order of their requests."""


class ObjectRemoval:
    """The removal of one attempt's objects. `changed` is set after each change of the inventory."""

    def __init__(self, key: AttemptKey, objects: ObjectsApi, inventory: Inventory, changed: asyncio.Event) -> None:
        self._key, self._objects, self._inventory, self._changed = key, objects, inventory, changed

    @property
    def _known(self) -> bool:
        """True if the workload, if there is one, is in the inventory."""
        return self._inventory.workloads_known(self._objects.kind.name)

    async def delete(self, name: str, uid: str | None, *, in_background: bool = False) -> None:
        """Begin to delete the workload, if there is one, with all that it owns."""
        if uid is not None:
            delete = self._objects.delete_workload
            await call_until_answered(lambda: delete(name, uid, in_background=in_background))

    async def is_gone(self, name: str, uid: str | None) -> bool:
        """True if the workload does not exist; its absence from the inventory alone may be a late watch."""
        if uid is None or not self._known:
            return False
        try:
            return await call_in_thread(self._objects.find_by_uid, name, uid) is None
        except ApiError:
            return False

    async def until_gone(self, uid: str | None, limit_s: float = math.inf) -> None:
        """Wait until the workload and its pods are gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while uid is not None and loop.time() < until:
            self._changed.clear()
            pods_are_gone = all(pod.gone for pod in self._inventory.pods(self._key))
            if pods_are_gone and self._inventory.workload(self._key) is None and self._known:
                return
            await is_set_within(self._changed, min(LOOK_AGAIN_S, until - loop.time()))

    async def after_end(
        self, name: str, uid: str | None, queue: RemovalQueue, pods: Callable[[], Sequence[WorkerPod]] | None
    ) -> None:
        """Delete the objects of an ended attempt and wait until they are gone.

        `pods` returns pods that succeeded and are given time to end; None: the workload is being deleted already.
        """
        loop = asyncio.get_running_loop()
        until, pods_ended = loop.time() + SUCCEEDED_PODS_S, False
        while pods is not None and loop.time() < until:
            self._changed.clear()
            if pods_ended := all(pod.over for pod in pods()):
                break
            await is_set_within(self._changed, until - loop.time())
        if pods_ended:
            async with queue.turns:
                await self.delete(name, uid, in_background=True)
                await self.until_gone(uid, TURN_S)
        else:
            await self.delete(name, uid)
        await self.until_gone(uid)
