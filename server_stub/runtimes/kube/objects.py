"""Creates the objects of one attempt on the cluster, and removes them.

A try whose response was lost may have created them nevertheless: the next try finds them by their name. Attempts that
have ended are removed a few at a time: the garbage collector of a cluster makes 40 requests/s in total (twice the
kube-controller-manager's --kube-api-qps, 20 by default), of which each deleted object needs two. With many deletions at
once it forgets which owners are gone and asks for them repeatedly; and an attempt that is deleted while it runs would
wait for all that have ended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial

from client_lib.errors import ClientLibError
from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import ApiError, call_in_thread, call_until_answered
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects_api import BeingDeleted, NameTaken
from server_stub.runtimes.kube.observe.inventory import WorkerPod, parse_workload
from server_stub.runtimes.kube.observe.messages import Refusal, Retry, refusal
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.render import Objects, Payload, identity, needs_payload, render
from server_stub.runtimes.kube.workload import Object, is_missing
from server_stub.runtimes.tasks import is_set_within

SUCCEEDED_PODS_S = 30.0  # pods that succeeded end by themselves in less
TURN_S = 30.0  # longest time one removal may block the others while a foreign finalizer holds its objects
LOOK_AGAIN_S = 15.0


class ObjectCreator:
    """Creates the objects of one attempt, by one try after another. `known` has the UID of a known workload."""

    def __init__(self, attempt: Attempt, cluster: Cluster, token: str, known: Record) -> None:
        self._attempt, self._cluster, self._token = attempt, cluster, token
        self.uid = known.uid
        """UID of the workload; None: there is none, as far as is known."""
        self.name = known.name or cluster.name_of(attempt)
        """Name of the workload: the first choice, or the second if another user's job has the first."""
        self._second_name = cluster.name_of(attempt, attempt.owner)
        self._may_exist = not attempt.never_started
        """True if an earlier server process, or a try without a response, may have created the workload."""
        self._objects: Objects | None = None

    async def try_once(self) -> Refusal | None:
        """Create the objects. None: they exist, or existed and are gone."""
        kind = self._cluster.kind
        try:
            if self._objects is None:
                self._objects = await asyncio.to_thread(self._render)
        except ClientLibError as error:  # the spec was valid when it was accepted: the catalogue has changed
            return Refusal(Reason.START_FAILED, error.message, Retry.NEVER)
        objects = self._objects
        try:
            may_have_second_name = self._may_exist and self._may_use_second_name  # the first may be free again now
            if may_have_second_name and await call_in_thread(self._find, self._second_name) is not None:
                return await self._try_second_name()
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
                return await self._try_second_name()
            if error.by is not None and error.by in self._cluster.ended:
                return Refusal(Reason.QUEUED, f"waits until {error}, of a job that has ended, is gone", Retry.ALWAYS)
            text = f"{error} is there already, and not of this job: give the job another name"
            return Refusal(Reason.START_FAILED, text, Retry.NEVER)
        return None

    async def uid_of_own(self) -> str | None:
        """UID of the workload of this attempt, if it exists, also after tries that failed, or before any."""
        for name in (self.name, self._second_name):
            if self.uid is None and self._may_exist:
                found = await call_until_answered(partial(self._find, name))
                if found is not None:
                    self.uid, self.name = found["metadata"]["uid"], name
        return self.uid

    def _find(self, name: str) -> Object | None:
        """The workload of this attempt; None: it does not exist with this name. Blocks. Raises ApiError."""
        attempt = self._attempt
        labels = names.labels(attempt.job_id, attempt.number, attempt.job_name)
        metadata = {"name": name, "labels": labels, "annotations": {names.HASH: identity(attempt)}}
        return self._cluster.objects.find_own({"metadata": metadata})

    async def _try_second_name(self) -> Refusal | None:
        self.name, self._objects = self._second_name, None
        return await self.try_once()

    def _render(self) -> Objects:
        attempt, cluster, payload = self._attempt, self._cluster, Payload()
        if needs_payload(attempt, cluster.options):
            payload = Payload(
                attempt.snapshot.read_bytes() if attempt.snapshot else None,
                attempt.function.read_bytes() if attempt.function else None,
            )
        return render(attempt, cluster.options, self._token, payload, self.name)

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
        if self.uid is None:
            workload = await call_in_thread(api.create_workload, objects.workload, objects.owned())
            known = parse_workload(workload, self._cluster.kind)
            if known is not None:
                self.uid = known.uid
                self._cluster.inventory.put_workload(known)
        else:
            found = await call_in_thread(api.find_by_uid, self.name, self.uid)
            if found is None:  # it existed and is gone: the gang notices it
                return
            workload = found
        await asyncio.gather(*(call_in_thread(create) for create in api.creations(objects, workload)))

    @property
    def _may_use_second_name(self) -> bool:
        return self.uid is None and self.name != self._second_name


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
