"""Accepts jobs: admitted, written to disk, and only then answered and driven. Safe to repeat by Idempotency-Key."""

from __future__ import annotations

import asyncio
import random
import shutil
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path

from pydantic_core import to_json
from sqlalchemy import Connection

from client_lib.errors import ClientLibError, Conflict, KeyReused, NotFound, StorageFull
from client_lib.spec.state_dir import mounts, on_network
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import CodeInPlace, CodeSnapshot, SubmitRequest
from server_stub.service.active import accepted
from server_stub.service.admission import (
    Admission,
    Admitted,
    code_text,
    draw_name,
    fingerprint,
    folder_of,
)
from server_stub.service.clock import Clock
from server_stub.service.conductor import Conductor
from server_stub.service.desk import Desk, text_of
from server_stub.service.values import JobText
from server_stub.settings import Settings
from server_stub.store import Store, rows
from server_stub.store.rows import Added, JobRow, Key, NewJob
from server_stub.submissions import Place, Submissions
from server_stub.users import User

FreeBytes = Callable[[Path], int]
_FREE_SEEN_FOR = timedelta(seconds=1)
_FOLDERS_KNOWN = 1024
_NAMES_DRAWN = 8  # of 33 million: more collisions than this are a bug
_ACCEPTED = f'"state":"{State.PENDING}","reason":"{Reason.QUEUED}","message":"","attempt":1'


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


class Intake:
    """One per service."""

    def __init__(
        self,
        settings: Settings,
        runtime_name: str,
        admission: Admission,
        submissions: Submissions,
        store: Store,
        desk: Desk,
        conductor: Conductor,
        clock: Clock,
        free: FreeBytes,
    ) -> None:
        self._settings, self._runtime_name, self._admission = settings, runtime_name, admission
        self._submissions, self._store, self._desk = submissions, store, desk
        self._conductor, self._clock, self._free = conductor, clock, free
        self._on_network: Callable[[str], bool] = lambda _: True
        self._free_seen: tuple[datetime, int] | None = None

    def open(self) -> None:
        """Look at the mounts. May block."""
        found = mounts()
        self._on_network = lru_cache(_FOLDERS_KNOWN)(lambda folder: on_network(Path(folder), found))

    async def submit(
        self, user: User, request: SubmitRequest, key: str | None, *, sent: bytes | None = None, shared: bool = False
    ) -> tuple[JobText, bool]:
        """See `Service.submit`."""
        used = Key(user.name, key, fingerprint(request)) if key else None
        try:
            admitted = await self._admit(user, request, shared)
            if sent is None or admitted.request is not request:  # then there are secrets of the server's own in it
                sent = admitted.request.model_dump_json(exclude={"code": {"proof"}}).encode()
            return await self._store_new(user, admitted, sent, used)
        except ClientLibError:
            # a repeat of what was accepted answers as the first did, whatever would be refused by now
            if used and (before := await self._store.read(lambda connection: rows.key_used(connection, used))):
                return await self._repeated(used, before), False
            raise

    async def _admit(self, user: User, request: SubmitRequest, shared: bool) -> Admitted:
        self._check_room()
        admitted = self._admission.admit(user, request)
        if request.checkpoints_of is not None:
            await self._check_own(user, request.checkpoints_of)
        in_place = isinstance(request.code, CodeInPlace)
        if in_place and not (shared or await self._known_in_place(user, request, admitted)):
            await self._check_shared(request, admitted.script_path)
        return admitted

    async def _check_own(self, user: User, job_id: str) -> None:
        """Raises NotFound: this user has no such job. That of an admin's choice is no exception: it is a copy."""
        if not await self._desk.owns(user, job_id):
            raise NotFound(f"there is no job {job_id} of {user.name} whose checkpoints could be copied")

    async def _check_shared(self, request: SubmitRequest, script_path: str | None) -> None:
        folder = folder_of(request, script_path) or ""
        if self._on_network(folder):  # where one that is gone would stop the loop; a thread costs 0.3 ms
            await asyncio.to_thread(self._admission.check_shared, request, script_path)
        else:
            self._admission.check_shared(request, script_path)

    def _check_room(self) -> None:
        if len(self._conductor) >= self._settings.max_pending_jobs:
            raise StorageFull(
                f"{len(self._conductor)} jobs are not final yet, which is the limit of this server",
                hint="cancel some, or wait until they have run",
            )
        free = self._free_bytes()
        if free < self._settings.min_free_bytes:
            raise StorageFull(
                f"the server's disk has {free / 1e6:.0f} MB left; nothing was accepted",
                hint=f"make room in {self._settings.data_dir}: `client-lib delete` removes finished jobs",
            )

    def _free_bytes(self) -> int:
        """As it was at most a second ago."""
        now = self._clock.now()
        if self._free_seen is None or abs(now - self._free_seen[0]) >= _FREE_SEEN_FOR:
            self._free_seen = (now, self._free(self._settings.data_dir))
        return self._free_seen[1]

    async def _known_in_place(self, user: User, request: SubmitRequest, admitted: Admitted) -> bool:
        """A resubmit: this user ran this very script in place before."""
        path = admitted.script_path
        if path is None or (isinstance(request.code, CodeInPlace) and request.code.proof):
            return False
        return await self._store.read(lambda connection: rows.knows_script(connection, user.name, path))

    async def _store_new(self, user: User, admitted: Admitted, sent: bytes, key: Key | None) -> tuple[JobText, bool]:
        self._admission.check_size(admitted.request, len(sent))
        for _ in range(_NAMES_DRAWN):
            new = _NewJob(self._runtime_name, user, admitted, sent + b"\n", key, self._clock.now())
            added = await self._store.write_along(self._add, new)
            if added.seq is not None:
                active = accepted(new.row(added.seq), admitted.request)
                text = active.text  # before the runtime has anything to say about it
                self._conductor.take(active)
                return text, True
            if added.same_key and key:
                return await self._repeated(key, added.same_key), False
            if admitted.request.spec.name:
                break
        raise Conflict(
            f"the name {new.name} is taken by another job of {user.name}",
            hint=f"choose another name, or remove the old job: client-lib delete {new.name}",
        )

    def _add(self, connection: Connection, new: Sequence[_NewJob]) -> list[Added]:
        """For the store's writer; repeating it writes no record twice."""
        unwritten = [job for job in new if job.place is None]
        for job, place in zip(unwritten, self._submissions.append(*[job.record for job in unwritten]), strict=True):
            job.place = place
        return rows.add_jobs(connection, [NewJob(job.row(), job.labels, job.key) for job in new])

    async def _repeated(self, key: Key, before: tuple[str, str]) -> JobText:
        fingerprint_before, job_id = before
        if fingerprint_before != key.fingerprint:
            raise KeyReused(
                f"the Idempotency-Key {key.key!r} was used for another spec or code",
                hint="use a new key for each job that you mean; the same key only to repeat a request",
            )
        found = await self._desk.by_id(job_id)
        if found is None:
            raise Conflict(f"the job of the Idempotency-Key {key.key!r} was deleted", hint="use a new key")
        return text_of(found)


class _NewJob:
    """One job to be stored under one name."""

    def __init__(
        self, runtime_name: str, user: User, admitted: Admitted, record: bytes, key: Key | None, now: datetime
    ) -> None:
        self._admitted, self._owner, self._now = admitted, user.name, now
        self.key = key
        self.record = record
        """What the submitter sent."""
        self.place: Place | None = None
        """Where it was written."""
        self.name = draw_name(admitted.request.spec)
        self._id = uuid.UUID(int=random.getrandbits(128), version=4).hex  # seeded once, not asked each time
        self._info = _info_text(runtime_name, user.name, self.name, self._id, admitted, now)

    @property
    def labels(self) -> dict[str, str]:
        return self._admitted.request.spec.labels

    def row(self, seq: int = 0) -> JobRow:
        """Once it has its place."""
        assert self.place
        request = self._admitted.request
        return JobRow(
            id=self._id,
            owner=self._owner,
            name=self.name,
            state=State.PENDING,
            version=1,
            attempt=1,
            created_at=self._now,
            info=self._info,
            place=self.place,
            script_path=self._admitted.script_path,
            snapshot=request.code.sha256 if isinstance(request.code, CodeSnapshot) else None,
            function=request.function.sha256 if request.function else None,
            seq=seq,
        )


def _info_text(runtime_name: str, owner: str, name: str, job_id: str, admitted: Admitted, now: datetime) -> str:
    """The JobInfo of a job that was accepted just now, as it is stored and answered.

    Written out, as most of it is known: the model is made (in a tenth of the time of a submit) when the job changes. A
    test compares both.
    """
    request = admitted.request
    return (
        f'{{"name":"{name}","id":"{job_id}","owner":{_json(owner)},"version":1,"runtime":"{runtime_name}",{_ACCEPTED},'
        f'"spec":{request.spec.masked().model_dump_json()},"code":{code_text(request.code)},'
        f'"function":{request.function.model_dump_json() if request.function else "null"},'
        f'"created_at":"{now.isoformat().replace("+00:00", "Z")}","started_at":null,"finished_at":null,"workers":[],'
        f'"notices":{_json(admitted.notices)},"failure":null}}'
    )


def _json(value: str | list[str]) -> str:
    return to_json(value).decode()
