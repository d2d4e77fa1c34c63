"""`/public/v2/jobs`: run, list, one job and what hangs on it. Logs are in `logs`."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BeforeValidator

from client_lib.errors import ClientLibError, NotFound
from client_lib.spec import mlspace
from client_lib.spec.mlspace import Status
from client_lib.spec.wire import JobInfo
from server_stub.api.context import context, user
from server_stub.api.public_v2 import translate
from server_stub.api.public_v2.answers import (
    Created,
    Deleted,
    JobList,
    JobParams,
    JobStatus,
    Nodes,
    Pods,
    Preemptors,
)
from server_stub.api.public_v2.requests import RestartRequest, RunJobRequest
from server_stub.api.public_v2.roots import Roots
from server_stub.service import JobSearch

JOBS = "/public/v2/jobs"
PAGE_MAX = 6000  # Platform: its command line asks for so many at once

router = APIRouter()

Region = Annotated[str | None, Query(description="Absent: every region.")]
_Time = Annotated[datetime | None, BeforeValidator(lambda text: text or None)]


@router.post(JOBS)
async def run_job(request: Request, order: RunJobRequest) -> Created:
    """Run a job. It is on disk before this answers."""
    parts = context(request)
    translate.check_region(order.region, parts.settings.regions)
    whole = await Roots.of(parts.settings).place(translate.spec_of(order))
    job, _ = await parts.service.submit(user(request), whole, None, shared=True)
    return translate.created(JobInfo.model_validate_json(job.json))


@router.get(JOBS)
async def list_jobs(
    request: Request,
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
    """One's jobs, newest first.

    Platform: an absent region means DGX2-MT there, and so no job at all for almost everybody; here it means every one.
    """
    parts = context(request)
    wanted = JobSearch(
        limit=min(limit, PAGE_MAX),
        offset=offset,
        owners=tuple(job_author) or None,
        states=frozenset().union(*(mlspace.STATES_OF[name] for name in status)) if status else None,
        since=_utc(start_date),
        until=_utc(end_date),
        fields=tuple(_fields(region, queue_id, allocation_name)),
    )
    count, found = await parts.service.search(user(request), wanted)
    gpus = {kind.name: kind.gpus for kind in parts.service.instance_types()}
    now = datetime.now(timezone.utc)
    items = [translate.item(JobInfo.model_validate_json(text), region, gpus, now) for text in found]
    return JobList(count=count, jobs=items)


def _fields(region: str | None, queue: str | None, allocation: str | None) -> list[tuple[str, str, bool]]:
    """A job that names no region is in every one; one that names no queue or allocation is in the server's own."""
    asked = [
        ("region", region, True),
        ("queue_name", queue, queue == translate.QUEUE),
        ("allocation_name", allocation, allocation == translate.ALLOCATION),
    ]
    return [(name, value, or_none) for name, value, or_none in asked if value is not None]


def _utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=timezone.utc) if time is not None and time.tzinfo is None else time


@router.post(f"{JOBS}/restart")
async def restart_job(request: Request, order: RestartRequest) -> Created:
    """Run what was run as this job once more, as a new job."""
    try:
        job = await context(request).service.again(user(request), order.job_name)
    except NotFound as error:
        raise NotFound("not found") from error  # Platform: this very sentence
    return translate.created(JobInfo.model_validate_json(job.json))


@router.get(f"{JOBS}/{{name}}")
async def get_job(request: Request, name: str) -> JobStatus:
    """How a job is. Of a name that is none: 200 with the status `job not found`."""
    try:
        return translate.status(await _find(request, name))
    except NotFound:
        return translate.unknown(name)


@router.delete(f"{JOBS}/{{name}}")
async def delete_job(
    request: Request, name: str, region: Annotated[str, Query(description="Needed, and any will do.")]
) -> Deleted:
    """Order the end of a job, which stays to be asked for with its logs. A job that has ended keeps its status."""
    del region  # Platform: 422 without it
    now = str(mlspace.unix(datetime.now(timezone.utc)))
    try:
        await context(request).service.cancel(user(request), name)
    except NotFound:  # Platform: 200, as for `GET`
        words = translate.NOT_FOUND
        return Deleted(job_name=name, deleted_at=now, status=words, error_code=1, error_message=words)
    return Deleted(job_name=name, deleted_at=now, status="deleted")


@router.get(f"{JOBS}/{{name}}/params")
async def get_params(request: Request, name: str) -> JobParams:
    """The parameters of a job as they are stored."""
    return translate.params((await _find(request, name)).spec)


@router.get(f"{JOBS}/{{name}}/nodes")
async def get_nodes(request: Request, name: str) -> Nodes:
    """The machines that the newest attempt runs on."""
    workers = (await _find(request, name)).workers
    return Nodes(node_names=sorted({worker.host for worker in workers if worker.host}))


@router.get(f"{JOBS}/{{name}}/preemptors")
async def get_preemptors(request: Request, name: str) -> Preemptors:
    """The jobs that pushed this one aside; none does here."""
    await _find(request, name)
    return Preemptors(preemptors=[])


@router.get(f"{JOBS}/elastic/{{name}}/pods")
async def get_pods(request: Request, name: str) -> Pods:
    """The workers of a job's newest attempt, of any type."""
    return Pods(pods=translate.pods(await _find(request, name), datetime.now(timezone.utc)))


async def _find(request: Request, name: str) -> JobInfo:
    """Raises NotFound, with the platform's words."""
    try:
        return JobInfo.model_validate_json((await context(request).service.get(user(request), name)).json)
    except ClientLibError as error:
        raise (NotFound("not found") if isinstance(error, NotFound) else error) from error
