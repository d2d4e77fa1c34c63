"""Finds jobs that a user may see, and returns them as JSON. It changes nothing."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from client_lib.errors import Conflict, Forbidden, InvalidRequest, NoResult, NotFound
from client_lib.spec.states import State
from client_lib.spec.wire import EventList, GroupInfo, JobInfo, StateChanges
from server_stub.files import outputs
from server_stub.files.job_dirs import OpenFile, log_dir
from server_stub.logs.records import LoggedJob
from server_stub.logs.stream import refuse_unknown
from server_stub.runtimes.inputs import newest_result
from server_stub.service.active import ActiveJob, ActiveJobs, StoredJob
from server_stub.service.job_files import JobFiles
from server_stub.service.job_json import Live, with_live
from server_stub.service.near_names import near_names
from server_stub.service.stored import found
from server_stub.store import Store, group_rows, rows
from server_stub.store.rows import JobFilters, JobRow
from server_stub.users import User

_NAMES_COMPARED = 1000
"""Newest names of a user among which a mistyped name is looked for."""
ALL_OWNERS = "*"
"""An owner in the filters of a list that stands for all users."""


def check_owner(user: User, job: JobInfo, act: str) -> None:
    """Raises Forbidden: the user is neither the owner of the job nor an
    admin, who alone may do this.
    """
    if job.owner != user.name and not user.admin:
        raise Forbidden(f"only {job.owner}, the owner of job {job.name}, and admins {act}")


def check_observable(user: User, job: JobInfo, what: str) -> None:
    """Raises Forbidden: the user is neither the owner of the job nor an admin; Conflict: the job
    was submitted with `observe=False`. `what`: what the user asks for, for messages.
    """
    check_owner(user, job, f"can see its {what}")
    if not job.spec.observe:
        raise Conflict(f"job {job.name} was submitted with observe=False: it shows no {what}")


def check_running(job: JobInfo, why: str) -> None:
    """Raises Conflict: the job does not run."""
    if job.state != State.RUNNING:
        raise Conflict(
            f"job {job.name} is {job.state}: {why}",
            hint=f"`client-lib explain {job.name}` shows why it does not run",
        )


PAGE_CHARACTERS = 8 * 2**20
"""Characters of jobs at which a page of a list is full. 1000 usual jobs have 1.5 million, and the
spec of one may have a million: the last job of the page may exceed the bound."""
SEARCH_CHARACTERS = 4 * PAGE_CHARACTERS
"""The same for a search. The platform's command line asks for 6000 jobs at once."""


def _newest(page: list[JobRow], active: Mapping[str, JobInfo]) -> list[JobInfo]:
    """The jobs of these rows; `active`: jobs that may be newer than their rows, by id."""
    return [active.get(row.id) or found(row).public for row in page]


class Page(NamedTuple):
    """A page of the list, newest first."""

    jobs: list[JobRow]
    groups: list[GroupInfo]
    next_cursor: int | None
    """None: this is the last page."""


class JobLookup:
    """The lookup of one service."""

    def __init__(self, store: Store, jobs: ActiveJobs, files: JobFiles, share_jobs: bool) -> None:
        self._store = store
        self._jobs = jobs
        self._files = files
        self._share_jobs = share_jobs

    async def find(self, user: User, name: str, owner: str | None) -> StoredJob:
        """The job. Raises NotFound: there is none, or this user may not see it."""
        job = None
        if owner is None or owner == user.name or self._sees_all(user):
            job = await self._find_by_name(owner or user.name, name)
        if job is None and owner is None and self._sees_all(user):
            job = await self._find_of_anybody(name)
        if job is not None:
            return job
        known = await self._store.read(rows.names, user.name, _NAMES_COMPARED)
        near = near_names(name, known)
        hint = "`client-lib list` shows the jobs you have"
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        raise NotFound(f"no job named {name}", hint=hint)

    async def _find_of_anybody(self, name: str) -> StoredJob | None:
        """Raises InvalidRequest: several users have a job of this name."""
        owners = await self._store.read(rows.find_anywhere, name)
        if len(owners) > 1:
            raise InvalidRequest(
                f"more than one user has a job {name}", hint=f"say whose: owner={owners[0]}"
            )
        return await self._find_by_name(owners[0], name) if owners else None

    async def wait(
        self, user: User, name: str, after_version: int, timeout_s: float, owner: str | None = None
    ) -> StoredJob:
        """Wait until the version of the job is greater than `after_version`, at most `timeout_s`,
        and not at all if it is final; then the job. Raises NotFound."""
        job = await self.find(user, name, owner)
        await self._wait_for_change(job, after_version, timeout_s)
        return job

    async def state_changes(self, user: User, after: str | None, timeout_s: float) -> StateChanges:
        """The changes of states since the cursor `after` of the jobs that the user sees: waits for
        one, at most `timeout_s`, and not at all without a cursor or if some are no longer known."""
        until = time.monotonic() + timeout_s
        sees_all = self._sees_all(user)
        while True:
            changes = self._jobs.changes_since(after or "")
            cursor = self._jobs.cursor
            mine = [change for owner, change in changes or () if sees_all or owner == user.name]
            left = until - time.monotonic()
            if changes is None or mine or left <= 0:
                return StateChanges(changes=mine, complete=changes is not None, cursor=cursor)
            after = cursor
            await asyncio.wait({self._jobs.next_change()}, timeout=left)

    async def next_logs(self, job: LoggedJob) -> LoggedJob:
        """Wait without limit until the job's version is greater than `job.version`, not at all for
        a final job. A waiting call needs no thread and no timer, and may be cancelled."""
        current = await self.by_id(job.job_id)
        if current is None:  # deleted: only final jobs are
            return job
        await self._wait_for_change(current, job.version, None)
        return self.logs(current.public)

    async def _wait_for_change(self, job: StoredJob, version: int, timeout_s: float | None) -> None:
        began = time.monotonic()
        while (
            isinstance(job, ActiveJob)
            and job.public.version <= version
            and job.row.id in self._jobs.by_id
        ):
            left = None if timeout_s is None else began + timeout_s - time.monotonic()
            if left is not None and left <= 0:
                return
            await asyncio.wait({self._jobs.next_change(job.row.id)}, timeout=left)

    async def page(self, user: User, wanted: JobFilters, limit: int, cursor: str | None) -> Page:
        """The jobs and groups that match; the user's own if the filters have no owners. A page of
        large jobs is shorter than `limit`.

        Raises InvalidRequest: the cursor is not from this server; Forbidden: the user may not see
        the jobs of an owner.
        """
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
            why = f"cursor {cursor[:50]!r} is not from this server"
            raise InvalidRequest(why, hint="pass the next_cursor of a page")
        before = int(cursor) if cursor else None
        if wanted.owners in (None, (user.name,)):
            wanted = replace(wanted, owners=(user.name,))
        elif not self._sees_all(user):
            raise Forbidden(f"{user.name} may list no jobs but their own", hint="leave `owner` out")
        elif wanted.owners == (ALL_OWNERS,):
            wanted = replace(wanted, owners=None)
        if wanted.group:
            owner = next(iter(wanted.owners or ()), None)
            group = await self.group(user, wanted.group, owner)
            wanted = replace(wanted, group=group.id)
        jobs = await self._store.read(rows.page, wanted, limit + 1, before, enough=PAGE_CHARACTERS)
        groups = await self._store.read(group_rows.page, wanted, limit + 1, before)
        seqs = sorted([*groups, *(row.seq for row in jobs)], reverse=True)
        last = seqs[limit - 1] if len(seqs) > limit else None
        if sum(len(row.info) for row in jobs) >= PAGE_CHARACTERS:
            last = max(last or 0, jobs[-1].seq)
        least = last or 0
        return Page(
            jobs=[row for row in jobs if row.seq >= least],
            groups=[info for seq, info in groups.items() if seq >= least],
            next_cursor=last,
        )

    async def group(self, user: User, name: str, owner: str | None) -> GroupInfo:
        """The group. `owner` None: the user's own, also of an admin. Raises NotFound."""
        if owner is None or owner == user.name or self._sees_all(user):
            group = await self._store.read(group_rows.find, owner or user.name, name)
            if group is not None:
                return group
        raise NotFound(
            f"no group named {name}", hint="`client-lib list` shows the jobs and groups you have"
        )

    async def search(
        self, user: User, wanted: JobFilters, limit: int, offset: int
    ) -> tuple[int, list[JobInfo]]:
        """The number of matching jobs, and a page of them, newest first. Owners whose jobs the user
        may not see are left out. A page of large jobs is shorter than `limit`."""
        owners = wanted.owners or [user.name]
        if not self._sees_all(user):
            owners = [owner for owner in owners if owner == user.name]
        count, page = await self._store.read(
            rows.search, replace(wanted, owners=owners), limit, offset, SEARCH_CHARACTERS
        )
        active = {row.id: job.public for row in page if (job := self._jobs.by_id.get(row.id))}
        # thousands of jobs: on the event loop they would keep other requests waiting
        return count, await asyncio.to_thread(_newest, page, active)

    def newest_text(self, stored: JobRow, live: Live | None = None) -> bytes:
        """The newest JobInfo as JSON: messages and workers of an active job
        may be newer than `stored`.
        """
        active = self._jobs.by_id.get(stored.id)
        if active is None:
            return found(stored).text
        return with_live(active.text, active.public.attention, live) if live else active.text

    async def counts(self) -> dict[State, int]:
        """The number of jobs of all users in each state."""
        return await self._store.read(rows.counts)

    async def events(self, user: User, name: str, owner: str | None = None) -> bytes:
        """An EventList as JSON, oldest first."""
        job = await self.find(user, name, owner)
        events = await self._store.read(rows.list_events, job.row.seq)
        return EventList(events=events).model_dump_json().encode()

    async def find_logs(self, user: User, name: str, owner: str | None = None) -> LoggedJob:
        """The place of the logs of a job and its state. Raises NotFound."""
        return self.logs((await self.find(user, name, owner)).public)

    def logs(self, info: JobInfo) -> LoggedJob:
        return LoggedJob(
            job_id=info.id,
            job_dir=self._files.job_dir(info.id),
            n_workers=info.spec.n_workers,
            attempt=info.attempt,
            version=info.version,
            state=info.state,
            reason=info.reason,
            message=info.message,
        )

    async def find_result(
        self, user: User, name: str, rank: int, owner: str | None = None
    ) -> OpenFile:
        """The file with the result of a rank's function in the newest attempt; see
        `client_lib.worker.function_runner`.

        Raises NotFound: there is no such job; NoResult: the rank has no result (yet), with the
        reason.
        """
        info = (await self.find(user, name, owner)).public
        if info.function is None:
            raise NoResult(f"job {info.name} runs a script; only a function returns something")
        job_dir = self._files.job_dir(info.id)
        result = await asyncio.to_thread(newest_result, job_dir, info.attempt, rank)
        if result is not None:
            return result
        await asyncio.to_thread(refuse_unknown, [rank], [log_dir(job_dir, info.attempt, 0)])
        if info.state.final:
            raise NoResult(f"rank {rank} of job {info.name}, which {info.state}, left no result")
        raise NoResult(f"job {info.name} is {info.state}, and rank {rank} has not returned yet")

    async def find_output(
        self, user: User, name: str, path: str, sha256: str | None, owner: str | None = None
    ) -> tuple[OpenFile, str]:
        """An output of a job, and its digest; with `sha256` only these bytes. Raises NotFound."""
        job = await self.find(user, name, owner)
        job_dir = self._files.job_dir(job.row.id)
        output = await asyncio.to_thread(outputs.find, job_dir, path, sha256)
        if output is not None:
            return output
        which = f" with the SHA-256 {sha256} any more" if sha256 else ""
        raise NotFound(
            f"job {name} keeps no output {path}{which}",
            hint=f"`client-lib download {name} --list` shows its outputs",
        )

    async def by_id(self, job_id: str) -> StoredJob | None:
        active = self._jobs.by_id.get(job_id)
        if active is not None:
            return active
        stored = await self._store.read(rows.find_by_id, job_id)
        return found(stored) if stored else None

    async def own_id(self, user: User, name: str) -> str:
        """Id of the user's own job or group of this name. Raises NotFound, also for
        a job of another user.
        """
        group = await self._store.read(group_rows.find, user.name, name)
        return group.id if group else (await self.find(user, name, user.name)).row.id

    def _sees_all(self, user: User) -> bool:
        return user.admin or self._share_jobs

    async def _find_by_name(self, owner: str, name: str) -> StoredJob | None:
        if (active := self._jobs.by_name.get((owner, name))) is not None:
            return active
        stored = await self._store.read(rows.find, owner, name)
        return found(stored) if stored else None
