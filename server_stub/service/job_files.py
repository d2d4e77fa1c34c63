"""The files of jobs beside the database: requests in the request log, and notes of their ends in
their folders.

The Attempt for a runtime is made from them. A lost database is rebuilt from headings and requests
in the request log, `job.json` in the folder of each job that has ended, was restarted or has
alarms, and `stop.json` in the folder of a job that was ordered to stop. A job that has not ended is
given to the runtime, which finds the job's attempt again and reports the end.
"""

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from client_lib.durable import read_json, sync, write_json
from client_lib.errors import ServerError
from client_lib.launcher_protocol.directory import Directory
from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.request import Code, CodeInPlace, CodeSnapshot, Dependency, SubmitRequest
from client_lib.spec.states import State
from client_lib.spec.validation import STORED
from client_lib.spec.wire import GroupInfo, JobInfo, LastGood, Membership
from server_stub.files.job_dirs import opener, worker_dir
from server_stub.files.request_log import UNWRITTEN, Heading, Place, RequestLog
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.runtimes import CHECKPOINTS, Attempt, Source
from server_stub.service.active import ActiveJob
from server_stub.service.stand_ins import stand_in
from server_stub.service.stored import row_of
from server_stub.store import Store, group_rows
from server_stub.store.rows import JobRow, Key, NewJob

LOST = "lost are their events, and the idempotency keys of deleted jobs"
# ending of the name that the folder of a job has from the beginning of its removal
REMOVED = ".removed"
_JOB = "job.json"
_STOP = "stop.json"
# fields of a JobInfo about its retries and alarms, which a rebuilt row keeps
_KEPT = (
    "infrastructure_retries",
    "retries_from",
    "furthest_step",
    "retry",
    "last_good",
    "alarms",
)
_ID = re.compile(r"[0-9a-f]{32}")
_UNREADABLE = SubmitRequest(spec=JobSpec(script="unreadable"), code=CodeInPlace())


def without_proof(code: Code) -> Code:
    return CodeInPlace(sha256=code.sha256) if isinstance(code, CodeInPlace) else code


@dataclass(frozen=True)
class JobFiles:
    """The files of all jobs of one service."""

    request_log: RequestLog
    snapshots: Snapshots
    jobs_dir: Path
    room: Room
    store: Store

    def job_dir(self, job_id: str) -> Path:
        return self.jobs_dir / job_id

    def request_of(self, row: JobRow) -> SubmitRequest:
        """The submit request with the values of its secrets, unmasked, without the proof of a
        shared folder. Raises ServerError: the file is gone or damaged."""
        try:
            request = SubmitRequest.model_validate_json(
                self.request_log.read(row.place), context=STORED
            )
            return replaced(request, code=without_proof(request.code))
        except Exception as error:  # noqa: BLE001  # damaged; the message leaves out its text, which holds secrets
            raise ServerError(
                f"what was submitted as {row.name} can't be read: {type(error).__name__}"
            ) from None

    def newest(self, active: ActiveJob) -> Attempt:
        """The newest attempt of a job, `unreadable` if its request is. Its directory is made by the
        runtime at the start."""
        row = active.row
        number = active.info.attempt
        last_good = active.info.last_good
        try:
            return self._of_row(row, number, active.request, last_good)
        except ServerError as error:
            unknown = self._of_row(row, number, _UNREADABLE, last_good)
            return replace(unknown, unreadable=error.message, never_started=False, reload=None)

    def stored(self, row: JobRow) -> Attempt:
        return self._of_row(row, row.attempt)

    def dry_run(self, request: SubmitRequest, owner: str, name: str) -> Attempt:
        """The attempt that a submit would make; the same for the same request."""
        long_ago = datetime(1970, 1, 1, tzinfo=timezone.utc)
        return self._of_row(
            JobRow("0" * 32, owner, name, State.PENDING, 1, 1, long_ago, info=""), 1, request
        )

    def _of_row(
        self,
        row: JobRow,
        number: int,
        given: SubmitRequest | None = None,
        last_good: LastGood | None = None,
    ) -> Attempt:
        """`given`: the request of a job that was never started; None: it is read from the disk."""
        request = given or self.request_of(row)
        code = request.code
        return Attempt(
            job_id=row.id,
            owner=row.owner,
            job_name=row.name,
            number=number,
            spec=request.spec,
            code=code,
            submitter=request.submitter,
            secret_values=request.secret_values,
            job_dir=self.job_dir(row.id),
            snapshot=self.snapshots.path(code.sha256) if isinstance(code, CodeSnapshot) else None,
            function=self.snapshots.path(request.function.sha256) if request.function else None,
            checkpoints_from=self.job_dir(request.checkpoints_of) / CHECKPOINTS
            if request.checkpoints_of
            else None,
            checkpoints_name=request.checkpoints_name,
            namespace=request.namespace,
            team=request.team,
            service_account=request.service_account,
            pull_secrets=tuple(request.pull_secrets),
            after=partial(self._sources, request.dependencies) if request.dependencies else None,
            created_at=row.created_at,
            never_started=given is not None,
            last_good=last_good,
            reload=partial(self._of_row, row, number, last_good=last_good),
        )

    async def _sources(self, dependencies: Sequence[Dependency]) -> list[list[Source]]:
        """See `Attempt.after`. Raises StoreError."""
        found = [
            await self.store.read_all(group_rows.job_or_members, each.id) for each in dependencies
        ]
        return [
            [
                Source(
                    self.job_dir(row.id), row.attempt, row.name if row.group_id == each.id else ""
                )
                for row in of_it
            ]
            for each, of_it in zip(dependencies, found, strict=True)
        ]

    # --- notes of ends

    async def note(self, row: JobRow) -> None:
        """Write the end or the restart of a job, the order that ends it, or alarms that gave no
        order, into its folder, before its row is stored: a job that was cancelled must not start
        again with a rebuilt row, also after a loss of power. A full disk only makes the row harder
        to rebuild."""
        ends = row.stop is not None and not json.loads(row.stop)["retry"]
        # an order to retry is not noted, and so its alarm must be found again
        runs = row.stop is None and row.state is State.RUNNING
        tells = runs and bool(json.loads(row.info)["alarms"])
        if row.state.final or row.state is State.RESTARTING or ends or tells:
            await asyncio.to_thread(self.room.spare.run, self._note, row)

    def _note(self, row: JobRow) -> None:
        folder = self.job_dir(row.id)
        name, text = (_STOP, row.stop) if row.stop and not row.state.final else (_JOB, row.info)
        with contextlib.suppress(OSError):
            if not folder.exists():
                folder.mkdir(mode=0o700)
                sync(folder.parent)
            write_json(str(folder / name), json.loads(text), durable=True)
            sync(folder)

    # --- a lost database

    def exist(self) -> bool:
        """True if there are files of a job, so that the database can't be new."""
        return bool(self._ids()) or any(True for _ in self.request_log.headings())

    def _ids(self) -> list[str]:
        """The ids of the jobs that have a folder."""
        return [entry.name for entry in os.scandir(self.jobs_dir) if _ID.fullmatch(entry.name)]

    def lost_jobs(self, runtime: str) -> tuple[list[NewJob], list[GroupInfo]]:
        """All jobs whose files are there, in the order of their acceptance, and their groups. A
        member that a resubmit has replaced, or whose group can't be read, is in none."""
        found: dict[str, NewJob] = {}
        groups: dict[str, GroupInfo] = {}
        members: dict[str, Membership] = {}
        replaced = set()
        headings = [
            (heading, place)
            for heading, place in self.request_log.headings()
            if _ID.fullmatch(heading.id)
        ]
        for heading, _ in headings:
            if heading.group:
                with contextlib.suppress(ValueError, LookupError, TypeError):
                    info = GroupInfo.model_validate(heading.group["info"])
                    members[heading.id] = Membership.model_validate(heading.group["place"])
                    groups[info.id] = info
                    replaced.add((info.id, heading.group["replaces"]))
        members = {
            job_id: member
            for job_id, member in members.items()
            if (member.id, job_id) not in replaced
        }
        for heading, place in headings:
            new = found[heading.id] = self._of_heading(
                heading, place, members.get(heading.id), runtime
            )
            if heading.key:
                new.key = Key(heading.owner, heading.key, heading.fingerprint)
        for job_id in self._ids():
            if job_id not in found:
                noted = _noted(self.job_dir(job_id))
                ended = noted if noted and noted.state.final else None
                found[job_id] = _new(ended or _unknown(self.job_dir(job_id), runtime), UNWRITTEN)
        return sorted(found.values(), key=lambda new: new.row.created_at), list(groups.values())

    def _of_heading(
        self, heading: Heading, place: Place, group: Membership | None, runtime: str
    ) -> NewJob:
        folder = self.job_dir(heading.id)
        noted = _noted(folder) or _noted(folder.with_suffix(REMOVED))
        if noted and noted.state.final:
            return _new(noted, place, group=group)
        try:
            request = SubmitRequest.model_validate_json(
                self.request_log.read(place), context=STORED
            )
            created_at = datetime.fromisoformat(heading.created_at)
        except ValueError:
            return _new(_unknown(folder, runtime), place)
        info = _unfinished(folder, heading.owner, heading.name, created_at, runtime)
        shown: dict[str, Any] = {"spec": request.spec.masked(), "code": without_proof(request.code)}
        shown["function"] = request.function
        if not (folder / "attempts").exists():  # else it waits no more
            shown["dependencies"] = request.dependencies
        if noted:
            shown |= {
                "attempt": max(info.attempt, noted.attempt),
                **{name: getattr(noted, name) for name in _KEPT},
            }
        stop = None
        with contextlib.suppress(OSError, ValueError):
            stop = (folder / _STOP).read_text("utf-8")
        return _new(replaced(info, **shown), place, stop, group)


def _new(
    info: JobInfo, place: Place, stop: str | None = None, group: Membership | None = None
) -> NewJob:
    info = replaced(info, group=group)
    return NewJob(row_of(info, place=place, stop=stop), info.spec.labels, None)


def _noted(folder: Path) -> JobInfo | None:
    """Read the job as it was at its end, its newest restart or its newest alarm; None: it has had
    none of these."""
    try:
        info = JobInfo.model_validate_json((folder / _JOB).read_bytes())
    except (OSError, ValueError):
        return None
    return info if info.id == folder.stem else None


def _unknown(folder: Path, runtime: str) -> JobInfo:
    """A job of an earlier version, or with a damaged request: it can only
    be found again and ended.
    """
    worker = worker_dir(folder, _newest_attempt(folder), 0)
    plan = read_json(Directory(str(worker)).plan, opener(worker)) or {}
    created_at = datetime.fromtimestamp(
        folder.stat().st_mtime if folder.exists() else 0, timezone.utc
    )
    name = plan.get("job") or f"recovered-{folder.name[:8]}"
    return _unfinished(folder, str(plan.get("owner") or "unknown"), str(name), created_at, runtime)


def _unfinished(folder: Path, owner: str, name: str, created_at: datetime, runtime: str) -> JobInfo:
    notices = ["its row in the database was rebuilt from its files"]
    attempt = _newest_attempt(folder)
    return stand_in(
        folder.name, owner, name, created_at, runtime=runtime, attempt=attempt, notices=notices
    )


def _newest_attempt(folder: Path) -> int:
    attempts = (folder / "attempts").glob("*")
    return max((int(path.name) for path in attempts if path.name.isdecimal()), default=1)
