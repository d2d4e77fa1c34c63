"""Accepts jobs: they are checked, written to disk, and only then answered and driven. An
Idempotency-Key makes a repeated submit safe."""

import asyncio
import hashlib
import json
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from client_lib.errors import (
    ClientLibError,
    Conflict,
    Forbidden,
    InvalidRequest,
    KeyReused,
    NotFound,
    StorageFull,
    Unavailable,
)
from client_lib.spec.job import from_last_step, split_dependency
from client_lib.spec.refusals import invalid_request
from client_lib.spec.replace import replaced
from client_lib.spec.request import (
    MEMBER_NUMBERS,
    CodeInPlace,
    Dependency,
    GroupRequest,
    SubmitRequest,
)
from client_lib.spec.secrets import MASK, Masking, unmasked_words
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import GroupInfo, JobInfo, Membership
from server_stub.files.request_log import Heading
from server_stub.logs.expressions import MetricChecks
from server_stub.runtimes.tasks import Clock
from server_stub.service.active import ActiveJob, ActiveJobs
from server_stub.service.admission import (
    Admission,
    Admitted,
    draw_name,
    fingerprint,
    refuse_masked_words,
)
from server_stub.service.job_files import JobFiles, without_proof
from server_stub.service.lifecycle import JobStatus
from server_stub.service.lookup import JobLookup
from server_stub.service.reconciler import Reconciler
from server_stub.service.stored import row_of
from server_stub.store import Store, group_rows, rows
from server_stub.store.group_rows import NewGroup
from server_stub.store.rows import Added, JobRow, Key, NewJob
from server_stub.users import User

_Run = tuple[Membership, SubmitRequest]
MAX_UNFINISHED_JOBS = 100_000  # a loop that submits without end is refused before it fills the disk
_STORED = TypeAdapter(SubmitRequest)
_INDEXED_BYTES = 2000  # of one column: PostgreSQL's indexes hold 2704 of a row
_NAMES_DRAWN = 8  # of 33 million names: more collisions than this are a bug


@dataclass(frozen=True)
class Submits:
    """Accepts the jobs of one service. When a method returns, what it has accepted is on disk."""

    _runtime_name: str
    _admission: Admission
    _store: Store
    _jobs: ActiveJobs
    _lookup: JobLookup
    _files: JobFiles
    _reconciler: Reconciler
    _clock: Clock
    _metric_checks: MetricChecks

    async def submit(
        self, user: User, request: SubmitRequest, key: str | None, *, shared: bool = False
    ) -> tuple[bytes, bool]:
        """Accept a job. Returns its JobInfo as JSON, and False if a job with this key exists.

        `shared`: True if the caller knows that this server sees the folder of an in-place job, so
        that no proof is needed.

        Raises:
            KeyReused: the key belongs to another spec or code.
            Conflict: the name is taken.
            NotShared: `code` is in place and the server doesn't see the folder; nothing was stored,
                the key is free.
            NotFound: the snapshot was not uploaded by this user.
            InvalidRequest, NotSupported, NeverFits, TooLarge: with the field, its value and a hint.
            StorageFull: nothing was accepted.
        """
        used = Key(user.name, key, fingerprint(request)) if key else None
        try:
            admitted = await self._admit(user, request, shared, request.spec.name)
            return await self._store_new(user, admitted, used)
        except ClientLibError:
            # a repeat of an accepted submit gets the first answer, even if it would be refused now
            if first := await self._first_answer(used):
                return first, False
            raise

    async def resubmit(
        self,
        user: User,
        name: str,
        changes: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> bytes:
        """Submit the request of this job again under a new name, with its environment and secrets.
        `changes`: other values for fields of its spec, where `***` keeps the stored value of a
        variable; with changes the new job starts without checkpoints. `key`: as of `submit`. Raises
        NotFound; Forbidden: the job belongs to another user, as do the values of its secrets; and
        what `submit` raises."""
        row = (await self._lookup.find(user, name, None)).row
        if row.owner != user.name:
            raise Forbidden(f"job {name} belongs to {row.owner}, who alone can start it again")
        request = await asyncio.to_thread(self._files.request_of, row)
        changes = dict(changes or {})
        if variables := changes.get("env_variables"):
            stored = {name: request.spec.env_variables.get(name, MASK) for name in variables}
            kept = {
                name: stored[name] if value == MASK else value for name, value in variables.items()
            }
            changes["env_variables"] = kept
        if isinstance(args := changes.get("args"), list):
            changes["args"] = unmasked_words(args, request.spec.args)
        unnamed = _with(request, **{"name": None, **changes})
        if changes:
            last = from_last_step(unnamed.spec)
            unnamed = replaced(unnamed, spec=last, checkpoints_of=None, checkpoints_name=None)
        try:  # an earlier version had no bounds
            unnamed = SubmitRequest.model_validate_json(unnamed.model_dump_json())
        except ValidationError as error:
            raise invalid_request(error, SubmitRequest) from error
        text, _ = await self.submit(user, unnamed, key, shared=True)
        return text

    async def submit_group(
        self, user: User, order: GroupRequest, key: str | None
    ) -> tuple[GroupInfo, bool]:
        """Accept a group with all of its members. Returns False if a group with this key exists.
        Raises as `submit`, and then no member is stored."""
        # in a thread: a group may have 16 MB and 200 000 arguments
        fingerprinted = await asyncio.to_thread(fingerprint, order.request, order) if key else ""
        used = Key(user.name, key, fingerprinted) if key else None
        try:
            # before the members are made: they take seconds, and up to 64 MiB
            if await self._store.read(rows.names_taken, [user.name], [order.name]):
                raise _taken(order.name, user)
            await asyncio.to_thread(self._check_group, order)
            admitted = await self._admit(user, order.request, False, order.name, len(order.members))
            new, jobs = await asyncio.to_thread(self._new_group, user, order, admitted, used)
            created = await self._add_group(user, new, jobs, used)
        except ClientLibError:
            if not await self._first_answer(used):
                raise
            created = False
        return await self._lookup.group(user, order.name, user.name), created

    def _check_group(self, order: GroupRequest) -> None:
        """Raises TooLarge, and InvalidRequest: a member has a masked argument."""
        self._admission.check_group(order.request, len(order.members))
        for run in order.members:
            refuse_masked_words("args", run.args)

    async def resubmit_group(
        self, user: User, name: str, key: str | None, *, failed: bool
    ) -> GroupInfo:
        """Run all members of a group again, or with `failed` those that are FAILED or CANCELLED,
        from their stored requests and with copies of their checkpoints. The new members take the
        places of the old ones, which move to another group.

        Raises Conflict: an old member has not ended, or there is no member to run again; NotFound;
        and what `submit` raises.
        """
        group = await self._lookup.group(user, name, user.name)
        which = (State.FAILED, State.CANCELLED) if failed else tuple(State)
        used = (
            Key(user.name, key, hashlib.sha256(f"{group.id} {sorted(which)}".encode()).hexdigest())
            if key
            else None
        )
        if await self._first_answer(used):
            return group
        members = await self._store.read_all(group_rows.members, group.id)
        chosen = [row for row in members if row.state in which]
        if not chosen or not all(row.state.final for row in chosen):
            what = (
                "no job that has failed or was cancelled"
                if not chosen
                else "jobs that have not ended"
            )
            raise Conflict(
                f"the group {group.name} has {what}",
                hint=f"`client-lib list {group.name}` shows its jobs",
            )
        runs = await asyncio.to_thread(_again, members, chosen, self._files.request_of)
        runs = [(place, self._admission.of_team(user, run)) for place, run in runs]
        admitted = await self._admit(user, runs[0][1], True, group.name, len(chosen))
        new, jobs = await asyncio.to_thread(self._with_members, user, group, runs, admitted, used)
        await self._add_group(user, replace(new, replaces=chosen), jobs, used)
        return await self._lookup.group(user, name, user.name)

    async def _add_group(
        self, user: User, new: NewGroup, jobs: list[ActiveJob], key: Key | None
    ) -> bool:
        """Store the members and begin to drive them. Returns False if an earlier request with this
        key has made them.

        Raises Conflict: a name is taken.
        """

        async def store() -> Added:
            with self._files.room.claim(sum(len(member.record) for member in new.members)):
                added = await self._store.add_group(new)
            if added.seq is not None:
                for seq, (active, member) in enumerate(
                    zip(jobs, new.members, strict=True), added.seq
                ):
                    active.row = member.row._replace(seq=seq)
                self._reconciler.add_group(new.info, jobs)
            return added

        # a caller that is cancelled here would leave members that are stored and never started
        added = await asyncio.shield(asyncio.ensure_future(store()))
        if added.seq is None and not await self._first_answer(key, added.same_key):
            raise _taken(added.same_name, user)
        return added.seq is not None

    def _new_group(
        self, user: User, order: GroupRequest, admitted: Admitted, key: Key | None
    ) -> tuple[NewGroup, list[ActiveJob]]:
        """The group with its members. Called in a thread: it serialises up to 64 MiB."""
        named = {"name": order.name, "id": uuid.uuid4().hex}
        script = shlex.join(admitted.request.spec.with_masked_command().command())
        asked = order.model_dump(include={"max_parallel", "stop_on_failure"})
        made = {
            "size": len(order.members),
            "created_at": self._clock.now(),
            "owner": user.name,
            "script": script,
        }
        group = GroupInfo.model_validate({**named, **asked, **made})
        runs = [
            (
                Membership(**named, index=index, values=Masking().values(run.values)),
                _with(admitted.request, args=run.args),
            )
            for index, run in enumerate(order.members)
        ]
        return self._with_members(user, group, runs, admitted, key)

    def _with_members(
        self,
        user: User,
        group: GroupInfo,
        runs: Sequence[_Run],
        admitted: Admitted,
        key: Key | None,
    ) -> tuple[NewGroup, list[ActiveJob]]:
        members: list[NewJob] = []
        jobs = []
        shown = group.model_dump(mode="json", exclude={"state", "counts", "earlier"})
        for place, run in runs:
            request = _with(run, name=f"{place.name}-{place.index}")
            request = replaced(request, dependencies=admitted.request.dependencies)
            sent = _stored_text(request)
            self._admission.check_size(request, len(sent))
            info = replaced(self._new_info(user, replace(admitted, request=request)), group=place)
            noted = {
                "info": shown,
                "place": place.model_dump(mode="json"),
                "replaces": run.checkpoints_of,
            }
            members.append(
                _new_job(info, sent, admitted.script_path, None if members else key, noted)
            )
            jobs.append(ActiveJob(members[-1].row, info, JobStatus(info), request))
        return NewGroup(group, members), jobs

    async def _admit(
        self, user: User, request: SubmitRequest, shared: bool, name: str | None, new: int = 1
    ) -> Admitted:
        """`name`: of the job or group; None: it is drawn later."""
        if (unfinished := len(self._jobs.by_id)) + new > MAX_UNFINISHED_JOBS:
            raise StorageFull(
                f"{unfinished} jobs are not final yet, which is the limit of this server",
                hint="cancel some, or wait until they have run",
            )
        admitted = self._admission.admit(user, request)
        if (expression := request.spec.metrics) is not None:
            await self._metric_checks.check(user.name, expression)
        if request.spec.after or request.dependencies:
            found = [await self._dependency(user, entry, name) for entry in request.spec.after]
            admitted = replace(admitted, request=replaced(admitted.request, dependencies=found))
        if request.checkpoints_of is not None or request.spec.checkpoint_from is not None:
            parent = await self._parent(user, request)
            asked = replaced(
                admitted.request, checkpoints_of=parent.id, checkpoints_name=parent.name
            )
            admitted = replace(admitted, request=asked)
        code = request.code
        path = admitted.script_path
        if isinstance(code, CodeInPlace) and not shared:
            # a script that this user ran in place before needs no proof: it may be a resubmit
            known = (
                path
                and code.proof is None
                and await self._store.read(rows.knows_script, user.name, path)
            )
            if not known:
                await self._admission.check_in_place(user, request, path, code.proof)
        return admitted

    async def _dependency(self, user: User, entry: str, own_name: str | None) -> Dependency:
        """The job or group that this entry of `after` names.

        The one possible cycle is a job that waits for itself: other jobs that it waits for were
        accepted before it, and `after` never changes.

        Raises InvalidRequest: the entry names the job itself; NotFound: this user has no job or
        group of that name.
        """
        condition, name = split_dependency(entry)
        if name == own_name:
            raise InvalidRequest(
                f"after: {name} would wait for itself", hint="name another job, or none"
            )
        return Dependency(name=name, id=await self._lookup.own_id(user, name), condition=condition)

    async def _parent(self, user: User, request: SubmitRequest) -> JobInfo:
        """The job whose checkpoints are copied: `checkpoints_of` has its id, `checkpoint_from` its
        name.

        Raises NotFound: this user has no such job (an admin, too, copies from own jobs alone);
        InvalidRequest: the checkpoints can't be copied.
        """
        if (job_id := request.checkpoints_of) is not None:
            found = await self._lookup.by_id(job_id)
            if found is None or found.row.owner != user.name:
                raise NotFound(
                    f"there is no job {job_id} of {user.name} whose checkpoints could be copied"
                )
            return found.public
        info = (await self._lookup.find(user, request.spec.checkpoint_from or "", user.name)).public
        if (folder := info.spec.checkpoint_dir) is not None:
            raise InvalidRequest(
                f"checkpoint_from: the checkpoints of {info.name} are in {folder}, which is not "
                "copied",
                hint="give that as checkpoint_dir, or copy it",
            )
        if not info.state.final and info.name not in (
            split_dependency(entry)[1] for entry in request.spec.after
        ):
            raise InvalidRequest(
                f"checkpoint_from: {info.name} has not ended, and still writes its checkpoints",
                hint=f"--after any:{info.name} (after=...) waits for its end",
            )
        return info

    async def _store_new(
        self, user: User, admitted: Admitted, key: Key | None
    ) -> tuple[bytes, bool]:
        sent = _stored_text(admitted.request)
        self._admission.check_size(admitted.request, len(sent))
        for _ in range(_NAMES_DRAWN):
            info = self._new_info(user, admitted)
            new = _new_job(info, sent, admitted.script_path, key)
            with self._files.room.claim(len(sent)):
                added = await self._store.add_job(new)
            if added.seq is not None:
                active = ActiveJob(
                    new.row._replace(seq=added.seq), info, JobStatus(info), admitted.request
                )
                text = active.text  # read here: the runtime changes the job after the next line
                self._reconciler.add(active)
                return text, True
            if added.same_key and (first := await self._first_answer(key, added.same_key)):
                return first, False
            if admitted.request.spec.name:
                break
        raise _taken(info.name, user)

    def _new_info(self, user: User, admitted: Admitted) -> JobInfo:
        """The job with a drawn name and id."""
        request = admitted.request
        return JobInfo(
            name=draw_name(request.spec),
            id=uuid.uuid4().hex,
            owner=user.name,
            version=1,
            runtime=self._runtime_name,
            state=State.PENDING,
            reason=Reason.QUEUED,
            spec=request.spec.masked(),
            code=without_proof(request.code),
            function=request.function,
            dependencies=request.dependencies,
            created_at=self._clock.now(),
            notices=admitted.notices,
        )

    async def _first_answer(
        self, key: Key | None, before: tuple[str, str] | None = None
    ) -> bytes | None:
        """The answer to an earlier request with this key; None: there was none. `before`: its
        fingerprint and the id of its job, if they are known."""
        before = before or (await self._store.read(rows.key_used, key) if key else None)
        if key is None or before is None:
            return None
        fingerprint_before, job_id = before
        if fingerprint_before != key.fingerprint:
            raise KeyReused(
                f"the Idempotency-Key {key.key!r} was used for another spec or code",
                hint="use a new key for each job that you mean; the same key only to repeat a "
                "request",
            )
        found = await self._lookup.by_id(job_id)
        if found is None:
            raise Conflict(
                f"the job of the Idempotency-Key {key.key!r} was deleted", hint="use a new key"
            )
        # its commit is in doubt, and will be undone
        if not (isinstance(found, ActiveJob) or found.row.state.final):
            raise Unavailable("the job is being accepted", hint="try again")
        return found.text


def _stored_text(request: SubmitRequest) -> bytes:
    # not model_dump_json, which makes a str of it: a request may have 16 MB
    return _STORED.dump_json(request, exclude={"code": {"proof"}})


def _new_job(
    info: JobInfo,
    sent: bytes,
    script_path: str | None,
    key: Key | None,
    group: Mapping[str, Any] | None = None,
) -> NewJob:
    heading = Heading(info.id, info.owner, info.name, info.created_at.isoformat(), group=group)
    if key:
        heading = heading._replace(key=key.key, fingerprint=key.fingerprint)
    # an index can't hold a longer path: the next job of this script needs a proof too
    known = script_path if script_path and len(script_path.encode()) <= _INDEXED_BYTES else None
    return NewJob(row_of(info, script_path=known), info.spec.labels, key, heading.above(sent))


def _again(
    members: Sequence[JobRow],
    chosen: Sequence[JobRow],
    request_of: Callable[[JobRow], SubmitRequest],
) -> list[_Run]:
    """New runs of members that have ended, with copies of their checkpoints; their
    numbers follow on all others.
    """
    place_of = {row.id: Membership.model_validate(json.loads(row.info)["group"]) for row in members}
    first = 1 + max(place.index for place in place_of.values())
    runs = []
    for index, row in enumerate(chosen, first):
        stored = request_of(row)
        request = replaced(
            stored,
            spec=from_last_step(stored.spec),
            checkpoints_of=row.id,
            checkpoints_name=row.name,
        )
        runs.append((replaced(place_of[row.id], index=index), request))
    if first + len(chosen) > MEMBER_NUMBERS:
        raise InvalidRequest(
            f"a group has at most {MEMBER_NUMBERS} jobs over all resubmits",
            hint="submit a new group",
        )
    return runs


def _with(request: SubmitRequest, **fields: Any) -> SubmitRequest:
    """The request with other fields of its spec."""
    return replaced(request, spec=replaced(request.spec, **fields))


def _taken(name: str, user: User) -> Conflict:
    return Conflict(
        f"the name {name} is taken by another job or group of {user.name}",
        hint=f"choose another name, or remove the old one: client-lib delete {name}",
    )
