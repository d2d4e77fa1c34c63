"""`/public/v2/jobs`: run, list, one job and what belongs to it. Logs are in `logs`.

A request names paths of the platform's shared file system. The check of them is no security boundary: a user who may
submit can run any command as the account of the server. It prevents a path that means a file of another machine from
running an unrelated file of the same name here.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BeforeValidator
from starlette.responses import JSONResponse

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec import mlspace
from client_lib.spec.job import JobSpec
from client_lib.spec.mlspace import Status
from client_lib.spec.request import CodeInPlace, SubmitRequest, Submitter
from client_lib.spec.wire import JobInfo
from server_stub.http.api.context import Context, CurrentUser, Parts
from server_stub.http.api.public_v2 import translate
from server_stub.http.api.public_v2.translate import (
    Created,
    Deleted,
    JobList,
    JobParams,
    JobSummary,
    Nodes,
    Pods,
    Preemptors,
    RestartRequest,
    RunJobRequest,
)
from server_stub.service import JobFilters
from server_stub.service.values import User
from server_stub.settings import Settings

JOBS = "/public/v2/jobs"
PAGE_MAX = 6000  # Platform: the page size of its command line

_OF_ANY_LOGIN = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("CONDA_EXE", "CONDA_PREFIX", "CONDA_ENVS_DIRS", "CONDA_ENVS_PATH", "MAMBA_ROOT_PREFIX"),  # to find conda_env
)
"""Variables of the server that such a job gets: a REST request has no environment of its submitter."""

router = APIRouter()

Region = Annotated[str | None, Query(description="Absent: every region.")]
_Time = Annotated[datetime | None, BeforeValidator(lambda text: text or None)]


@router.post(JOBS)
async def run_job(parts: Parts, user: CurrentUser, order: RunJobRequest) -> Created:
    """Run a job. It is on disk before this answers."""
    spec = translate.spec_of(order)
    known = translate.catalogue_name(order.instance_type, parts.service.runtime.instance_types())
    whole = await place(spec.model_copy(update={"instance_type": known}), parts.settings)
    job, _ = await parts.service.submits.submit(user, whole, None, shared=True)
    return translate.created(JobInfo.model_validate_json(job.json))


@router.get(JOBS)
async def list_jobs(
    parts: Parts,
    user: CurrentUser,
    region: Region = None,
    allocation_name: str | None = None,
    status: Annotated[list[Status], Query()] = [],  # noqa: B006  # FastAPI copies it
    job_author: Annotated[list[str], Query()] = [],  # noqa: B006
    queue_id: str | None = None,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1)] = PAGE_MAX,
    start_date: Annotated[_Time, Query(description="ISO 8601, also with a space; UTC where it has no offset.")] = None,
    end_date: _Time = None,
) -> JobList:
    """The jobs of the user, newest first.

    Platform: an absent region means DGX2-MT there, where most users have no job; here it means every region.
    """
    wanted = JobFilters(
        owners=job_author or None,
        states=frozenset().union(*(mlspace.STATES_OF[name] for name in status)) if status else None,
        since=_utc(start_date),
        until=_utc(end_date),
        fields=_fields(region, queue_id, allocation_name),
    )
    count, found = await parts.service.lookup.search(user, wanted, min(limit, PAGE_MAX), offset)
    gpus = {kind.name: kind.gpus for kind in parts.service.runtime.instance_types()}
    now = datetime.now(timezone.utc)
    items = [translate.item(JobInfo.model_validate_json(text), region, gpus, now) for text in found]
    return JobList(count=count, jobs=items)


def _fields(region: str | None, queue: str | None, allocation: str | None) -> list[tuple[str, str, bool]]:
    """A job without a region is in every region; a job without a queue or allocation is in the server's own."""
    asked = [
        ("region", region, True),
        ("queue_name", queue, queue == translate.QUEUE),
        ("allocation_name", allocation, allocation == translate.ALLOCATION),
    ]
    return [(name, value, or_none) for name, value, or_none in asked if value is not None]


def _utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=timezone.utc) if time is not None and time.tzinfo is None else time


@router.post(f"{JOBS}/restart")
async def restart_job(parts: Parts, user: CurrentUser, order: RestartRequest) -> Created:
    """Run the request of this job again, as a new job."""
    try:
        job = await parts.service.submits.resubmit(user, order.job_name)
    except NotFound as error:
        raise NotFound("not found") from error  # Platform: exactly this message
    return translate.created(JobInfo.model_validate_json(job.json))


@router.get(f"{JOBS}/{{name}}")
async def get_job(parts: Parts, user: CurrentUser, name: str) -> JobSummary:
    """The status of a job; for an unknown name 200 with the status `job not found`."""
    try:
        return translate.status(await find_job(parts, user, name))
    except NotFound:
        return translate.unknown(name)


@router.delete(f"{JOBS}/{{name}}")
async def delete_job(
    parts: Parts,
    user: CurrentUser,
    name: str,
    region: Annotated[str, Query(description="Required; any value is accepted.")],
) -> Deleted:
    """Order the end of a job; it stays visible, with its logs. A job that has ended keeps its status."""
    del region  # Platform: 422 without it
    now = str(mlspace.unix(datetime.now(timezone.utc)))
    try:
        await parts.service.cancel(user, name)
    except NotFound:  # Platform: 200, as for `GET`
        missing = translate.NOT_FOUND
        return Deleted(job_name=name, deleted_at=now, status=missing, error_code=1, error_message=missing)
    return Deleted(job_name=name, deleted_at=now, status="deleted")


@router.get(f"{JOBS}/{{name}}/params", response_model=JobParams)
async def get_params(parts: Parts, user: CurrentUser, name: str) -> JSONResponse:
    """The parameters of a job as they are stored."""
    return JSONResponse(translate.params((await find_job(parts, user, name)).spec))


@router.get(f"{JOBS}/{{name}}/nodes")
async def get_nodes(parts: Parts, user: CurrentUser, name: str) -> Nodes:
    """The machines that the newest attempt runs on."""
    workers = (await find_job(parts, user, name)).workers
    return Nodes(node_names=sorted({worker.host for worker in workers if worker.host}))


@router.get(f"{JOBS}/{{name}}/preemptors")
async def get_preemptors(parts: Parts, user: CurrentUser, name: str) -> Preemptors:
    """The jobs that preempted this one: always none."""
    await find_job(parts, user, name)
    return Preemptors(preemptors=[])


@router.get(f"{JOBS}/elastic/{{name}}/pods")
async def get_pods(parts: Parts, user: CurrentUser, name: str) -> Pods:
    """The workers of a job's newest attempt, of any type."""
    return Pods(pods=translate.pods(await find_job(parts, user, name), datetime.now(timezone.utc)))


async def find_job(parts: Context, user: User, name: str) -> JobInfo:
    """The job. Raises NotFound with the platform's message."""
    try:
        return JobInfo.model_validate_json((await parts.service.get(user, name)).json)
    except NotFound as error:
        raise NotFound("not found") from error


async def place(spec: JobSpec, settings: Settings) -> SubmitRequest:
    """The whole request for a job whose code lies on this server.

    Raises InvalidRequest: there is no such file, or it is outside the folders that this server shares.
    """
    roots, script = _roots(settings), spec.python_script
    first = str(roots[0]) if roots else None  # of relative paths and of commands; on the platform /home/jovyan
    if script is None:
        return SubmitRequest(spec=spec, code=CodeInPlace(), submitter=_submitter(first))
    path = os.path.join(first or "/", script)
    real = await asyncio.to_thread(os.path.realpath, path)  # a network file system may be slow
    if not _shares_everything(settings) and not any(_inside(real, root) for root in roots):
        raise InvalidRequest(
            f"script {path!r} lies outside of the folders that this server shares with /public/v2: "
            f"{', '.join(map(str, roots)) or 'none'}",
            hint="its setting public_v2_roots names them",
        )
    try:
        content = await asyncio.to_thread(Path(real).read_bytes)
    except OSError as error:
        raise InvalidRequest(f"script {path!r} can't be read on this server: {error.strerror}") from error
    code = CodeInPlace(sha256=hashlib.sha256(content).hexdigest())
    return SubmitRequest(spec=spec, code=code, submitter=_submitter(None if os.path.isabs(script) else first))


def _shares_everything(settings: Settings) -> bool:
    """True if no folders are named, and the server has one user, who can read these files anyway."""
    return settings.public_v2_roots is None and settings.users_file is None


def _roots(settings: Settings) -> list[Path]:
    return [Path.home()] if _shares_everything(settings) else settings.public_v2_roots or []


def _inside(path: str, root: Path) -> bool:
    """True if the file is below the root; links are followed on both sides."""
    return Path(path).is_relative_to(os.path.realpath(root))


def _submitter(folder: str | None) -> Submitter:
    environment = {name: value for name, value in os.environ.items() if name in _OF_ANY_LOGIN}
    return Submitter(python=sys.executable, environment=environment, working_dir=folder)
