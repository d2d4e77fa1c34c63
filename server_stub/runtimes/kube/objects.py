"""The objects of one attempt on the cluster: their creation and their removal, and the record of
them on disk.

A try whose response was lost may have created them nevertheless: the next try finds them by their
name. Attempts that have ended are removed a few at a time: the garbage collector of a cluster makes
40 requests/s in total (twice the kube-controller-manager's --kube-api-qps, 20 by default), of which
each deleted object needs two. With many deletions at once it forgets which owners are gone and asks
for them repeatedly; and an attempt that is deleted while it runs would wait for all that have
ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from client_lib.durable import make_private_folders, read_json, sync, write_json
from client_lib.errors import ClientLibError, ServerError
from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt, Observation
from server_stub.runtimes.kube.api import FEW_TRIES, ApiError, call_in_thread, call_until_answered
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects_api import BeingDeleted, NameTaken
from server_stub.runtimes.kube.observe.inventory import WorkerPod, Workload, parse_workload
from server_stub.runtimes.kube.observe.messages import Blocker, refusal
from server_stub.runtimes.kube.render import Objects, payload_files, render
from server_stub.runtimes.kube.workload import Object, is_missing
from server_stub.runtimes.tasks import is_set_within

SUCCEEDED_PODS_S = 30.0  # pods that succeeded end by themselves in less
TURN_S = 30.0
"""Longest time that one removal may block others, while it is refused or a foreign
finalizer holds its objects.
"""
LOOK_AGAIN_S = 15.0
RECORD = "attempt.json"
FIRST_KIND = "PyTorchJob"
"""Kind of a workload in a record without its kind, written before 2026-11-23."""


@dataclass(frozen=True)
class Record:
    """The state of an attempt, `attempt.json` in its directory. A record with a UID means that the
    workload was created: if it is missing now, it was deleted, and it is not created again. After a
    record with an end only the removal of the objects is left."""

    uid: str | None = None
    """UID of the workload; None: none was created yet, as far as is known."""
    name: str | None = None
    """Name of the workload, which is the second choice if another user's job has the first. Without
    a UID: of one that is being removed, as the attempt is taken back."""
    removed_because: tuple[Reason, str] | None = None
    """Reason and message of the deletion of the workload by this server,
    written before the deletion.
    """
    end: Observation | None = None
    """The final observation of the attempt."""
    kind: str | None = None
    """Kind of the workload, written before the first try to create it; None: none was tried."""
    namespace: str | None = None
    """Namespace of the workload, written with its kind, as the request may be unreadable later.
    None: none was tried, or an earlier version has written this."""

    @staticmethod
    def read(folder: Path, key: AttemptKey) -> Record:
        """The record of an attempt; an empty one without a file. Raises ServerError:
        damaged, or of a later version.
        """
        path = str(folder / RECORD)
        data = read_json(path) or {}
        if data.get("uid") is not None:
            data.setdefault("kind", FIRST_KIND)
        try:
            if end := data.get("end"):
                data["end"] = {
                    "job_id": key.job_id,
                    "attempt": key.attempt,
                    "phase": "ended",
                } | _of_this_version(end)
            return _RECORD.validate_python(data)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            raise ServerError(
                f"the record {path} can't be read: {place}={wrong['input']!r}"
            ) from error
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ServerError(f"the record {path} can't be read: end={data['end']!r}") from error

    def write(self, folder: Path) -> None:
        """Write the record and sync it to disk."""
        make_private_folders(str(folder))
        write_json(str(folder / RECORD), _RECORD.dump_python(self, mode="json"), durable=True)
        sync(folder)


_RECORD = TypeAdapter(Record)


def _of_this_version(end: dict[str, Any]) -> dict[str, Any]:
    """An end that an earlier version has written: it named the notes otherwise, and
    had the ends of all ranks.
    """
    known = {"notes": end.get("remarks", ())} | end
    if ranks := end.get("ranks"):
        known["started_at"] = min(
            (rank["started_at"] for rank in ranks if rank["started_at"]), default=None
        )
    if isinstance(first := end.get("first_failing"), list):
        worker, rank = first
        code = rank["exit_code"] if rank["signal"] is None else 128 + rank["signal"]
        number = None if rank["rank"] < 0 else rank["rank"]  # of the job's setup
        known["first_failing"] = {**rank, "worker": worker, "rank": number, "exit_code": code}
    return known


class AttemptObjects:
    """The objects of one attempt, of whose workload `known` has the UID. `changed` is set after
    each change of the inventory."""

    def __init__(
        self, attempt: Attempt, cluster: Cluster, known: Record, changed: asyncio.Event
    ) -> None:
        self._attempt = attempt
        self._cluster = cluster
        self._changed = changed
        self._key = AttemptKey(attempt.job_id, attempt.number)
        self.uid = known.uid
        """UID of the workload; None: there is none, as far as is known."""
        self.name = known.name or cluster.name_of(attempt)
        """Name of the workload: the first choice, or the second if another
        user's job has the first.
        """
        self._second_name = cluster.name_of(attempt, attempt.owner)
        self._may_exist = not attempt.never_started
        """True if an earlier server process, or a try without a response, may
        have created the workload.
        """
        self._rendered: Objects | None = None

    # --- creation

    async def try_to_create(self) -> Blocker | None:
        """Create the objects. None: they exist, or existed and are gone."""
        kind = self._cluster.kind
        may_move = self.name != self._second_name
        try:
            # the first name may be free again now
            look = may_move and self._may_exist and self.uid is None
            if (
                look
                and await call_in_thread(
                    self._cluster.objects.find_own, self._second_name, self._key
                )
                is not None
            ):
                self.name = self._second_name
                may_move = False
            if self._rendered is None or self._rendered.workload["metadata"]["name"] != self.name:
                # not in the thread: it may make the key of all tokens
                token = self._cluster.registry.token(*self._key)
                self._rendered = await asyncio.to_thread(self._render, token)
            await self._create_all(self._rendered)
        except (
            ClientLibError
        ) as error:  # the spec was valid when it was accepted: the catalogue has changed
            return Blocker(Reason.START_FAILED, error.message, permanent=True)
        except ApiError as error:
            base = self._rendered.base if self._rendered is not None else None
            if base is not None and is_missing(base, error.message):
                return await self._create_base(base)
            self._may_exist = self._may_exist or error.status == 0 or error.status >= 500
            return await self._refusal(error, f"{kind.name} {self.name}")
        except BeingDeleted as error:
            return Blocker(Reason.QUEUED, f"waits until {error}, which is being deleted, is gone")
        except NameTaken as error:
            # else what a pod mounts has a taken name
            if error.by is not None and may_move and self.uid is None:
                self.name = self._second_name
                return await self.try_to_create()
            if error.by is not None and error.by in self._cluster.ended:
                return Blocker(
                    Reason.QUEUED, f"waits until {error}, of a job that has ended, is gone"
                )
            text = f"{error} is there already, and not of this job: give the job another name"
            return Blocker(Reason.START_FAILED, text, permanent=True)
        return None

    async def uid_of_own(self) -> str | None:
        """UID of the workload of this attempt, if it exists, also after tries
        that failed, or before any.
        """
        for name in (self.name, self._second_name):
            if self.uid is None and self._may_exist:
                find = partial(self._cluster.objects.find_own, name, self._key)
                with contextlib.suppress(ApiError):  # this server has no rights there any more
                    if found := await call_until_answered(find, FEW_TRIES):
                        self.uid = found["metadata"]["uid"]
                        self.name = name
        return self.uid

    def _render(self, token: str) -> Objects:
        attempt = self._attempt
        options = self._cluster.options
        payload = {
            name: path.read_bytes() for name, path in payload_files(attempt, options).items()
        }
        return render(attempt, options, token, payload, self.name)

    async def _create_base(self, base: Object) -> Blocker:
        """Create what the workload is based on. Its operator knows it a moment
        later, so the workload waits.
        """
        name = f"{base['kind']} {base['metadata']['name']}"
        try:
            await call_in_thread(self._cluster.objects.create_base, base)
        except ApiError as error:
            return await self._refusal(error, name)
        text = f"waits until {self._cluster.kind.operator} knows {name}"
        return Blocker(Reason.QUEUED, text, of_server=True)

    async def _refusal(self, error: ApiError, what: str) -> Blocker:
        explained = await call_in_thread(self._cluster.objects.explained, error)
        return refusal(explained.status, explained.message, what, self._cluster.kind.operator)

    async def _create_all(self, objects: Objects) -> None:
        api = self._cluster.objects
        if self.uid is None:
            workload = await call_in_thread(
                api.create_workload, objects.workload, objects.own.values()
            )
            known = parse_workload(workload, self._cluster.kind)
            if known is not None:
                self.uid = known.uid
                self._cluster.inventory.put(known)
        else:
            found = await call_in_thread(api.find_by_uid, self.name, self.uid)
            if found is None:  # it existed and is gone: the gang notices it
                return
            workload = found
        await asyncio.gather(
            *(call_in_thread(create) for create in api.creations(objects, workload))
        )

    # --- removal

    async def delete(self, *, in_background: bool = False) -> None:
        """Begin to delete the workload with all that it owns."""
        if self.uid is not None:
            delete = self._cluster.objects.delete_workload
            await call_until_answered(
                partial(delete, self.name, self.uid, in_background=in_background)
            )

    async def are_gone(self) -> bool:
        """True if the workload was deleted; its absence from the inventory
        alone may be a late watch.
        """
        if self.uid is None or not self._cluster.inventory.is_listed(self._cluster.kind.name):
            return False
        try:
            return (
                await call_in_thread(self._cluster.objects.find_by_uid, self.name, self.uid) is None
            )
        except ApiError:
            return False

    @property
    def workload(self) -> Workload | None:
        """The workload as the watches report it."""
        return self._cluster.inventory.workload(self._key, self.uid)

    def are_removed(self) -> bool:
        """True if the watches show neither the workload nor a pod of it
        any more, or there was none.
        """
        inventory = self._cluster.inventory
        gone = self.workload is None and all(pod.gone for pod in inventory.pods(self._key))
        return self.uid is None or (gone and inventory.is_listed(self._cluster.kind.name))

    async def until_gone(self, limit_s: float = math.inf) -> None:
        """Wait until the workload and its pods are gone."""
        loop = asyncio.get_running_loop()
        until = loop.time() + limit_s
        while not self.are_removed() and loop.time() < until:
            self._changed.clear()
            await is_set_within(self._changed, min(LOOK_AGAIN_S, until - loop.time()))

    async def remove_after_end(self, pods: Callable[[], Sequence[WorkerPod]] | None) -> None:
        """Delete the objects of an ended attempt and wait until they are gone.

        `pods` returns pods that succeeded and are given time to end; None: the workload is being
        deleted already.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + SUCCEEDED_PODS_S
        pods_ended = False
        ordered = False
        while pods is not None and loop.time() < until:
            self._changed.clear()
            if pods_ended := all(pod.over for pod in pods()):
                break
            await is_set_within(self._changed, until - loop.time())
        if pods_ended:
            async with self._cluster.removal_turns:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.delete(in_background=True), TURN_S)
                    ordered = True
                    await self.until_gone(TURN_S)
        if not ordered:
            await self.delete(in_background=pods_ended)
        await self.until_gone()
