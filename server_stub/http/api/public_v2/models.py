"""The bodies of the platform's API.

Requests are strict: an unknown field is answered with 422, as by the platform. Times whose names
end in `_at` are whole seconds since 1970, 0 for "not yet"; those that end in `_dt` are ISO 8601.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, create_model

from client_lib.spec.job import WORKERS_MAX, HealthAction, JobSpec, PriorityClass
from client_lib.spec.mlspace import DEFAULT_REGION, PlatformType
from client_lib.spec.validation import ARGUMENTS_MAX, Label, Scalar, Strict, up_to

OrDefault = Annotated[int, Field(ge=1)] | Literal["default"]
Flag = bool | None
_Values = Annotated[dict[str, Scalar], up_to(ARGUMENTS_MAX, "object")]


# --- requests


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
    flags: _Values | None = None
    env_variables: _Values | None = None
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
