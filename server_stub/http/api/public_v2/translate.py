"""The bodies of the platform's API, and their translation: a request becomes our spec, our job a
response. Pure.

Requests are strict: an unknown field is answered with 422, as by the platform. Times whose names
end in `_at` are whole seconds since 1970, 0 for "not yet"; those that end in `_dt` are ISO 8601.
"""

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, create_model

from client_lib.errors import InvalidRequest
from client_lib.spec import mlspace
from client_lib.spec.job import WORKERS_MAX, HealthAction, JobSpec, JobType, PriorityClass
from client_lib.spec.mlspace import DEFAULT_REGION, PlatformType, duration, iso, unix
from client_lib.spec.refusals import invalid_request
from client_lib.spec.validation import Label, Scalar, Strict
from client_lib.spec.wire import InstanceType, JobInfo, WorkerInfo
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

# --- requests

OrDefault = Annotated[int, Field(ge=1)] | Literal["default"]
Flag = bool | None


class Credentials(Strict):
    """`POST /service_auth`."""

    client_id: str
    """A user's name on this server."""
    client_secret: str
    """A token of that user."""


class HealthParams(Strict):
    log_period: Annotated[int, Field(ge=20, le=720)]
    """Minutes."""
    action: HealthAction | None = None
    sub_actions: list[Literal["notify"]] | None = None


class RunJobRequest(Strict):
    """`POST /jobs`. docs/mlspace.md describes the fields."""

    script: Annotated[str, Field(min_length=1)]
    base_image: str
    instance_type: str
    region: str = DEFAULT_REGION
    type: PlatformType = PlatformType.horovod
    """Platform: absent means horovod, which this server refuses."""
    n_workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = 1
    processes_per_worker: Annotated[int, Field(ge=1, le=1024)] | Literal["default"] = "default"
    job_desc: str | None = None
    flags: dict[str, Scalar] | None = None
    env_variables: dict[str, Scalar] | None = None
    conda_env: str | None = None
    pytorch_use_env: Flag = None
    elastic_min_workers: OrDefault | None = None
    elastic_max_workers: OrDefault | None = None
    elastic_max_restarts: Annotated[int, Field(ge=0)] | None = None
    max_retry: Annotated[int, Field(ge=3, le=100)] | None = None
    priority_class: PriorityClass | None = None
    queue_name: str | None = None
    allocation_name: str | None = None
    checkpoint_dir: str | None = None
    logs_dir: str | None = None
    health_params: HealthParams | None = None
    internet: Flag = None
    shm_size_class: Literal["small", "medium", "large"] | None = None
    tmp_storage: str | None = None
    include_nodes: list[str] | None = None
    exclude_nodes: list[str] | None = None
    stop_timer: Annotated[int, Field(ge=0)] | None = None
    max_infrastructure_retry: Annotated[int, Field(ge=0, le=100)] | None = None
    """Not on the platform."""
    # deprecated on the platform, and still sent by scripts
    cuda11: Flag = None
    preflight_check: Flag = None
    forbid_s3: Flag = None
    forbid_internet: Flag = None
    in_communal_cluster: Flag = None


class RestartRequest(Strict):
    job_name: Label


# --- responses


class Failed(BaseModel):
    """Any error except 422."""

    error_code: int
    error_message: str


class Token(BaseModel):
    access_token: str
    token_type: str = "Bearer"
    expires_in: int = 3600
    """Platform: 3600, after which clients ask for a new token. Ours is valid until it is removed
    from the users file; one of an issuer may end earlier, and a client that still sends it gets
    401."""


class Outcome(BaseModel):
    """Fields that most responses have."""

    status: str = "ok"
    error_code: int = 0
    error_message: str = ""


class Authenticated(Outcome):
    token: Token


class Created(BaseModel):
    """A job that was accepted."""

    job_name: str
    status: str = "Pending"
    created_at: int


class ListedJob(BaseModel):
    """A job in a list. Every key is always present: the platform's command
    line makes a table of them.
    """

    uid: str
    job_name: str
    status: str
    region: str
    instance_type: str
    job_desc: str
    job_author: str
    created_dt: str
    updated_dt: str
    completed_dt: str | None
    cost: str = "0"
    gpu_count: int
    duration: str
    namespace: str
    queue_name: str
    queue_id: str
    allocation_name: str
    allocation_id: str


class JobList(Outcome):
    count: int
    """Number of matching jobs on all pages."""
    jobs: list[ListedJob]


class JobSummary(Outcome):
    """One job; for an unknown name with status "job not found"."""

    job_name: str
    uid: str = ""
    region: str = ""
    created_at: int = 0
    pending_at: int = 0
    running_at: int = 0
    completed_at: int = 0


class Deleted(Outcome):
    """The status is `deleted` or `job not found`."""

    job_name: str
    deleted_at: str
    """Seconds since 1970. Platform: a string here, a number elsewhere."""


class Nodes(BaseModel):
    node_names: list[str]


class Preemptors(BaseModel):
    preemptors: list[str]


class Pod(BaseModel):
    """A worker of the newest attempt."""

    uid: str
    running_at: int
    completed_at: int
    updated_at: int
    status: str
    reason: str
    job_name: str
    job_version: str
    duration: str


class Pods(BaseModel):
    pods: list[Pod]


PARAMETERS = [name for name in RunJobRequest.model_fields if name in JobSpec.model_fields]
"""The parameters of a job that are fields of our spec, too, with equal meaning."""

JobParams = create_model(
    "JobParams",
    __doc__="The parameters of a job; values of variables that look like secrets are masked.",
    # mypy can't match fields whose names are known at run time alone
    **{name: (JobSpec.model_fields[name].annotation, ...) for name in PARAMETERS},  # type: ignore[call-overload]
)


# --- translation


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
