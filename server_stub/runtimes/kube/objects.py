"""Creates the objects of one attempt on the cluster, with repeated tries, and removes them.

A try whose response was lost may have created them nevertheless: the next try finds them by their name. Attempts that
have ended are removed a few at a time: the garbage collector of a cluster makes 40 requests/s in total (twice the
kube-controller-manager's --kube-api-qps, 20 by default), of which each deleted object needs two. With many deletions at
once it forgets which owners are gone and asks for them repeatedly; and an attempt that is deleted while it runs would
wait for all that have ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from client_lib.errors import ClientLibError
from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube.api import FIRST_PAUSE_S, LONGEST_PAUSE_S, ApiError, call_in_thread, call_until_answered
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects_api import BeingDeleted, NameTaken
from server_stub.runtimes.kube.observe.inventory import WorkerPod, parse_workload
from server_stub.runtimes.kube.observe.messages import Refusal, Retry, refusal
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.render import Objects, Payload, needs_payload, render
from server_stub.runtimes.kube.workload import Object, is_missing
from server_stub.runtimes.tasks import is_set_within

FEW_TRIES = 8  # 45 s: an API server does not know its users and custom resources at once after its start
SUCCEEDED_PODS_S = 30.0  # pods that succeeded end by themselves in less
TURN_S = 30.0  # longest time one removal may block the others while a foreign finalizer holds its objects
LOOK_AGAIN_S = 15.0

_USE_SECOND_NAME = Refusal(Reason.QUEUED, "another user's job has this name", Retry.ALWAYS)


class GivenUp(NamedTuple):
    """The reason why the objects were not created, or are to be removed."""

    reason: Reason
    message: str
    uid: str | None
    """UID of a workload that was created nevertheless and must be removed."""


class ObjectCreator:
    """Creates the objects of one attempt.

    `created` is awaited with the name and UID of the workload as soon as it exists; `report` gets reason and message
    of what blocks the creation; `pause` returns after a number of seconds, or earlier after a change.
    """

    def __init__(
        self,
        attempt: Attempt,
        cluster: Cluster,
        created: Callable[[str, str], Awaitable[None]],
        report: Callable[[Reason, str], None],
        pause: Callable[[float], Awaitable[object]],
    ) -> None:
        self._attempt, self._cluster = attempt, cluster
        self._created, self._report, self._pause = created, report, pause
        self.name = cluster.name_of(attempt)
        """Name of the workload: the first choice, or the second if another user's job has the first."""
        self._second_name = cluster.name_of(attempt, attempt.owner)
        self._uid: str | None = None
        self._may_exist = not attempt.never_started
        """True if an earlier server process, or a try without a response, may have created the workload."""

    async def create(self, token: str, known: Record, stopped: Callable[[], bool]) -> GivenUp | None:
        """Create the objects. None: they exist, or existed and are gone. `known` has the UID of a known workload."""
        self._uid, self.name = known.uid, known.name or self.name
        try:
            objects = await asyncio.to_thread(self._render, token)
        except ClientLibError as error:  # the spec was valid when it was accepted: the catalogue has changed
            return GivenUp(Reason.START_FAILED, error.message, known.uid)
        tries, pause_s = 0, FIRST_PAUSE_S
        while not stopped():
            blocked = await self._try(objects)
            if blocked is None:
                return None
            if blocked is _USE_SECOND_NAME:
                self.name = self._second_name
                objects = await asyncio.to_thread(self._render, token)
                continue
            tries += blocked.retry is Retry.BRIEFLY
            if blocked.retry is Retry.NEVER or tries >= FEW_TRIES:
                return GivenUp(blocked.reason, blocked.message, await self._uid_of_own(objects))
            self._report(blocked.reason, blocked.message)
            await self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return GivenUp(Reason.CANCELLED, "stopped while it waited", await self._uid_of_own(objects))

    def _render(self, token: str) -> Objects:
        attempt, cluster, payload = self._attempt, self._cluster, Payload()
        if needs_payload(attempt, cluster.options):
            payload = Payload(
                attempt.snapshot.read_bytes() if attempt.snapshot else None,
                attempt.function.read_bytes() if attempt.function else None,
            )
        return render(attempt, cluster.options, token, payload, self.name)

    async def _try(self, objects: Objects) -> Refusal | None:
        kind = self._cluster.kind
        try:
            if self._may_exist and self._may_use_second_name and await self._exists_as_second(objects):
                return _USE_SECOND_NAME
            await self._create_all(objects)
        except ApiError as error:
            if objects.base is not None and is_missing(objects.base, error.message):
                return await self._create_base(objects.base)
            self._may_exist = self._may_exist or error.status == 0 or error.status >= 500
            return refusal(error.status, error.message, f"{kind.name} {self.name}", kind.operator)
        except BeingDeleted as error:
            return Refusal(Reason.QUEUED, f"waits until {error}, which is being deleted, is gone", Retry.ALWAYS)
        except NameTaken as error:
            if error.by is not None and self._may_use_second_name:
                return _USE_SECOND_NAME
            if error.by is not None and error.by in self._cluster.ended:
                return Refusal(Reason.QUEUED, f"waits until {error}, of a job that has ended, is gone", Retry.ALWAYS)
            text = f"{error} is there already, and not of this job: give the job another name"
            return Refusal(Reason.START_FAILED, text, Retry.NEVER)
        return None

    async def _create_base(self, base: Object) -> Refusal:
        """Create what the workload is based on. Its operator knows it a moment later, so the workload waits."""
        name, operator = f"{base['kind']} {base['metadata']['name']}", self._cluster.kind.operator
        try:
            await call_in_thread(self._cluster.objects.create_base, base)
        except ApiError as error:
            return refusal(error.status, error.message, name, operator)
        return Refusal(Reason.QUEUED, f"waits until {operator} knows {name}", Retry.BRIEFLY)

    async def _create_all(self, objects: Objects) -> None:
        api = self._cluster.objects
        if self._uid is None:
            workload = await call_in_thread(api.create_workload, objects.workload, objects.owned())
        else:
            found = await call_in_thread(api.find_by_uid, self.name, self._uid)
            if found is None:  # it existed and is gone: the gang notices it
                return
            workload = found
        work: list[Awaitable[None]] = [call_in_thread(create) for create in api.creations(objects, workload)]
        known = parse_workload(workload, self._cluster.kind)
        if self._uid is None and known is not None:
            self._uid = known.uid
            self._cluster.inventory.put_workload(known)
            work.append(self._created(known.name, known.uid))
        await asyncio.gather(*work)

    @property
    def _may_use_second_name(self) -> bool:
        return self._uid is None and self.name != self._second_name

    async def _exists_as_second(self, objects: Objects) -> bool:
        """True if an earlier server process has created it with the second name; the first may be free again now."""
        metadata = {**objects.workload["metadata"], "name": self._second_name}
        second = {**objects.workload, "metadata": metadata}
        return await call_in_thread(self._cluster.objects.find_own, second) is not None

    async def _uid_of_own(self, objects: Objects) -> str | None:
        """UID of the workload of this attempt, if it exists."""
        if self._uid is None and self._may_exist:
            found = await call_until_answered(lambda: self._cluster.objects.find_own(objects.workload))
            self._uid = found["metadata"]["uid"] if found else None
        return self._uid


class ObjectRemoval:
    """The removal of one attempt's objects. `uid` is that of its workload; None: there is none. `changed` is set after
    each change of the inventory."""

    def __init__(self, key: AttemptKey, cluster: Cluster, changed: asyncio.Event, name: str, uid: str | None) -> None:
        self._key, self._cluster, self._changed, self._name, self._uid = key, cluster, changed, name, uid
        self._objects, self._inventory = cluster.objects, cluster.inventory

    async def delete(self, *, in_background: bool = False) -> None:
        """Begin to delete the workload with all that it owns."""
        if self._uid is not None:
            delete = partial(self._objects.delete_workload, self._name, self._uid, in_background=in_background)
            await call_until_answered(delete)

    async def is_gone(self) -> bool:
        """True if the workload was deleted; its absence from the inventory alone may be a late watch."""
        if self._uid is None or not self._inventory.workloads_known(self._objects.kind.name):
            return False
        try:
            return await call_in_thread(self._objects.find_by_uid, self._name, self._uid) is None
        except ApiError:
            return False

    async def until_gone(self, limit_s: float = math.inf) -> None:
        """Wait until the workload and its pods are gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while self._uid is not None and loop.time() < until:
            self._changed.clear()
            pods_are_gone = all(pod.gone for pod in self._inventory.pods(self._key))
            known = self._inventory.workloads_known(self._objects.kind.name)
            if known and pods_are_gone and self._inventory.workload(self._key) is None:
                return
            await is_set_within(self._changed, min(LOOK_AGAIN_S, until - loop.time()))

    async def after_end(self, pods: Callable[[], Sequence[WorkerPod]] | None) -> None:
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
            async with self._cluster.removal_turns:
                await self.delete(in_background=True)
                await self.until_gone(TURN_S)
        else:
            await self.delete()
        await self.until_gone()
