"""Translates the platform's API: a request becomes our spec, our job a response. Pure."""

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from client_lib.errors import InvalidRequest
from client_lib.spec import mlspace
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.mlspace import duration, iso, unix
from client_lib.spec.refusals import invalid_request
from client_lib.spec.wire import InstanceType, JobInfo, WorkerInfo
from server_stub.http.api.public_v2.models import (
    PARAMETERS,
    Created,
    JobSummary,
    ListedJob,
    Pod,
    RunJobRequest,
)
from server_stub.runtimes import instance_types as instances
from server_stub.runtimes.fields import ON_CPU

ALLOCATION = QUEUE = "default"
"""The one allocation of this server and its one queue, for jobs that name no queue. The ids of both
are their names.
"""
NAMESPACE = "client-lib"
MISSING: dict[str, Any] = {
    "status": "job not found",
    "error_code": 1,
    "error_message": "job not found",
}
"""Fields of a response about a job that is not there."""


def spec_of(request: RunJobRequest) -> JobSpec:
    """The requested job.

    Raises InvalidRequest: a value that no job can have, or a type that this service does not offer.
    """
    given = request.model_dump(include={*PARAMETERS}, exclude_none=True)
    if request.type != "pytorch2":
        given.pop("pytorch_use_env", None)  # Platform: sent with every type, read by this one
    if request.forbid_internet and request.internet is None:
        given["internet"] = False
    try:
        return JobSpec.model_validate(given)
    except ValidationError as error:
        absent = (
            None
            if "type" in request.model_fields_set
            else f"an absent type means {request.type}; name another"
        )
        raise InvalidRequest(invalid_request(error, JobSpec).message, hint=absent) from error


def created(info: JobInfo) -> Created:
    return Created(job_name=info.name, created_at=unix(info.created_at))


def item(
    info: JobInfo, asked_region: str | None, gpus: Mapping[str, int], now: datetime
) -> ListedJob:
    """A job in a list. `asked_region`: region of the list, for jobs without one.
    `gpus`: per instance type.
    """
    spec = info.spec
    created_dt = iso(info.created_at) or ""
    return ListedJob(
        uid=str(uuid.UUID(info.id)),
        job_name=info.name,
        status=mlspace.listed_status(info.state, info.reason),
        region=spec.region or asked_region or "",
        instance_type=spec.instance_type or "",
        job_desc=spec.job_desc or "",  # Platform: its table sorts by it, and fails on null
        job_author=info.owner,
        created_dt=created_dt,
        updated_dt=iso(info.finished_at or info.started_at) or created_dt,
        completed_dt=iso(info.finished_at),
        gpu_count=gpu_count(info, gpus),
        duration=duration(info.started_at, info.finished_at, now),
        namespace=NAMESPACE,
        queue_name=spec.queue_name or QUEUE,
        queue_id=spec.queue_name or QUEUE,
        allocation_name=spec.allocation_name or ALLOCATION,
        allocation_id=spec.allocation_name or ALLOCATION,
    )


def gpu_count(info: JobInfo, gpus: Mapping[str, int]) -> int:
    """Number of GPUs that the job requests for all its workers; 0 where it runs on the CPU."""
    name = info.spec.instance_type or ""
    if info.spec.type is JobType.NOGPU or any(ON_CPU in notice for notice in info.notices):
        return 0
    size = instances.parse(name)
    return info.spec.n_workers * gpus.get(name, size.gpus if size else 0)


def type_name(kind: InstanceType) -> str:
    """The name of an instance type with its cores and memory, from which clients read
    them: `a100.8gpu.64C.1944G`.
    """
    size = instances.parse(kind.name)
    if (
        size is None
        or (size.cpu and size.memory_gib)
        or not (kind.cpu >= 1 and kind.memory_gib >= 1)
    ):
        return kind.name
    return f"{kind.name}.{int(kind.cpu)}C.{int(kind.memory_gib)}G"


def type_label(kind: InstanceType) -> str:
    """The name of an instance type for people, with the words before which clients look for its
    GPUs, cores and memory: `cpu.2C.8G: 2 CPU-cores, 8 GB RAM`.
    """
    gpus = [f"{kind.gpus} GPU"] if kind.gpus else []
    sizes = [*gpus, f"{kind.cpu:g} CPU-cores", f"{int(kind.memory_gib)} GB RAM"]
    return f"{kind.name}: {', '.join(sizes)}"


def catalogue_name(name: str, kinds: Iterable[InstanceType]) -> str:
    """The name of an instance type in the catalogue. `name`: this name, or the name that
    `type_name` gives."""
    return {type_name(kind): kind.name for kind in kinds}.get(name, name)


def status(info: JobInfo) -> JobSummary:
    return JobSummary(
        uid=str(uuid.UUID(info.id)),
        job_name=info.name,
        status=mlspace.shown_status(info.state).lower(),
        region=info.spec.region or "",
        created_at=unix(info.created_at),
        pending_at=unix(info.created_at),
        running_at=unix(info.started_at),
        completed_at=unix(info.finished_at),
    )


def pods(info: JobInfo, now: datetime) -> list[Pod]:
    """One pod per worker, the master first; before the start of the job all pods are pending."""
    workers = {worker.worker: worker for worker in info.workers}
    return [
        _pod(info, workers.get(n, WorkerInfo(worker=n)), now) for n in range(info.spec.n_workers)
    ]


def _pod(info: JobInfo, worker: WorkerInfo, now: datetime) -> Pod:
    ended = info.finished_at if worker.state == "ended" or info.state.final else None
    if worker.state == "ended" and worker.exit_code is not None:
        status = mlspace.Status.FAILED if worker.exit_code else mlspace.Status.COMPLETED
    elif info.state.final:
        status = mlspace.listed_status(info.state, info.reason)
    else:
        status = mlspace.Status.RUNNING if worker.state == "running" else mlspace.Status.PENDING
    return Pod(
        uid=str(uuid.uuid5(uuid.UUID(info.id), f"{info.attempt}.{worker.worker}")),
        running_at=unix(info.started_at),
        completed_at=unix(ended),
        updated_at=unix(ended or info.started_at or info.created_at),
        status=status,
        reason=worker.message or str(info.reason),
        job_name=info.name,
        job_version=mlspace.pod_name(worker.worker),
        duration=duration(info.started_at, ended, now),
    )
