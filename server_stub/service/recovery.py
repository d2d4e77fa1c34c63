"""Rebuilds the rows of a lost database from other files: headings and requests in the request log, `job.json` in the
folder of each job that has ended or was restarted, and `stop.json` in that of a job that is to end. A job that has not
ended is given to the runtime, which finds its attempt again and reports its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, SubmitRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.validation import STORED
from client_lib.spec.wire import GroupInfo, JobInfo, Membership
from client_lib.worker.directory import Directory, read_json, sync, write_json
from server_stub.files.owned import opener
from server_stub.files.request_log import UNWRITTEN, Heading, Place, RequestLog
from server_stub.runtimes import worker_dir
from server_stub.service.active import row_of
from server_stub.service.attempts import without_proof
from server_stub.service.lifecycle import COUNTS
from server_stub.store.rows import JobRow, Key, NewJob

JOB, STOP = "job.json", "stop.json"
LOST = "lost are their events, and the idempotency keys of deleted jobs"
_ID = re.compile(r"[0-9a-f]{32}")
_NOTICE = "its row in the database was rebuilt from its files"


def note(job_dir: Path, row: JobRow) -> None:
    """Write the end or the restart of a job, or the order that ends it, into its folder, before its row is stored: a
    job that was cancelled must not start again with a rebuilt row, also after a loss of power. A full disk only makes
    the row harder to rebuild."""
    name, text = (STOP, row.stop) if row.stop and not row.state.final else (JOB, row.info)
    with contextlib.suppress(OSError):
        if not job_dir.exists():
            job_dir.mkdir(mode=0o700)
            sync(job_dir.parent)
        write_json(str(job_dir / name), json.loads(text), durable=True)
        sync(job_dir)


def needs_note(row: JobRow) -> bool:
    """True for a job that has ended, was restarted, or ends without another attempt."""
    return (
        row.state.final or row.state is State.RESTARTING or (row.stop is not None and not json.loads(row.stop)["retry"])
    )


def folders(jobs_dir: Path) -> list[str]:
    """The ids of the jobs that have a folder."""
    return [entry.name for entry in os.scandir(jobs_dir) if _ID.fullmatch(entry.name)]


def jobs_beside(jobs_dir: Path, request_log: RequestLog) -> bool:
    """True if there are files of a job, so that the database can't be new."""
    return bool(folders(jobs_dir)) or any(True for _ in request_log.headings())


def lost_jobs(jobs_dir: Path, request_log: RequestLog, runtime: str) -> tuple[list[NewJob], list[GroupInfo]]:
    """All jobs whose files are there, in the order of their acceptance, and their groups. A member that a resubmit has
    replaced is in none."""
    found: dict[str, NewJob] = {}
    headings = [(heading, place) for heading, place in request_log.headings() if _ID.fullmatch(heading.id)]
    members = [heading.group for heading, _ in headings if heading.group]
    replaced = {(each["info"]["id"], each["replaces"]) for each in members}
    for heading, place in headings:
        group = heading.group
        member = group["place"] if group and (group["info"]["id"], heading.id) not in replaced else None
        new = found[heading.id] = _of_record(jobs_dir, request_log, runtime, heading, place, member)
        if heading.key:
            new.key = Key(heading.owner, heading.key, heading.fingerprint)
    for job_id in folders(jobs_dir):
        if job_id not in found:
            noted = _noted(jobs_dir / job_id)
            ended = noted if noted and noted.state.final else None
            found[job_id] = _job(ended or _unknown(jobs_dir / job_id, runtime), UNWRITTEN)
    groups = {group["info"]["id"]: GroupInfo.model_validate(group["info"]) for group in members}
    return sorted(found.values(), key=lambda new: new.row.created_at), list(groups.values())


def _of_record(
    jobs_dir: Path, request_log: RequestLog, runtime: str, heading: Heading, place: Place, member: Any
) -> NewJob:
    folder = jobs_dir / heading.id
    noted = _noted(folder)
    group = Membership.model_validate(member) if member else None
    if noted and noted.state.final:
        return _job(noted, place, group=group)
    try:
        request = SubmitRequest.model_validate_json(request_log.read(place), context=STORED)
        created_at = datetime.fromisoformat(heading.created_at)
    except ValueError:
        return _job(_unknown(folder, runtime), place)
    info = _unfinished(heading.id, heading.owner, heading.name, created_at, folder, runtime)
    shown: dict[str, Any] = {
        "spec": request.spec.masked(),
        "code": without_proof(request.code),
        "function": request.function,
    }
    if not (folder / "attempts").exists():  # else it waits no more
        shown["dependencies"] = request.dependencies
    if noted:
        shown["attempt"] = max(info.attempt, noted.attempt)
        shown |= {name: getattr(noted, name) for name in COUNTS}
    return _job(info.model_copy(update=shown), place, _stop(folder), group)


def _job(info: JobInfo, place: Place, stop: str | None = None, group: Membership | None = None) -> NewJob:
    info = info.model_copy(update={"group": group})
    return NewJob(row_of(info, place=place, stop=stop), info.spec.labels, None)


def _stop(folder: Path) -> str | None:
    with contextlib.suppress(OSError, ValueError):
        return (folder / STOP).read_text("utf-8")
    return None


def _noted(folder: Path) -> JobInfo | None:
    """The job at its end or its newest restart; None: it has neither ended nor been restarted."""
    try:
        info = JobInfo.model_validate_json((folder / JOB).read_bytes())
    except (OSError, ValueError):
        return None
    return info if info.id == folder.name else None


def _unknown(folder: Path, runtime: str) -> JobInfo:
    """A job of an earlier version, or with a damaged request: it can only be found again and ended."""
    worker = worker_dir(folder, _newest_attempt(folder), 0)
    plan = read_json(Directory(str(worker)).plan, opener(worker)) or {}
    created_at = datetime.fromtimestamp(folder.stat().st_mtime if folder.exists() else 0, timezone.utc)
    owner, name = str(plan.get("owner") or "unknown"), str(plan.get("job") or f"recovered-{folder.name[:8]}")
    return _unfinished(folder.name, owner, name, created_at, folder, runtime)


def _unfinished(job_id: str, owner: str, name: str, created_at: datetime, folder: Path, runtime: str) -> JobInfo:
    return JobInfo(
        name=name,
        id=job_id,
        owner=owner,
        version=1,
        runtime=runtime,
        state=State.PENDING,
        reason=Reason.QUEUED,
        attempt=_newest_attempt(folder),
        spec=JobSpec(script="unknown"),
        code=CodeInPlace(),
        created_at=created_at,
        notices=[_NOTICE],
    )


def _newest_attempt(folder: Path) -> int:
    attempts = (folder / "attempts").glob("*")
    return max((int(path.name) for path in attempts if path.name.isdecimal()), default=1)
