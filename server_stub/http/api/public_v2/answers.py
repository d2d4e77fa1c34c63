"""Response models of the platform's API; `translate` and `catalogue` fill them in.

Times whose names end in `_at` are whole seconds since 1970, 0 for "not yet"; those that end in `_dt` are ISO 8601.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from client_lib.errors import ClientLibError, InvalidRequest, TooLarge
from client_lib.spec.mlspace import PlatformType

JSON = "application/json"
"""Platform: exactly this. With `; charset=utf-8` added its command line treats a response as text and fails."""


class Failed(BaseModel):
    """Any error except 422."""

    error_code: int
    error_message: str


class FieldError(BaseModel):
    loc: list[str | int]
    msg: str
    type: str


class WrongForm(BaseModel):
    """422: a request does not match its schema."""

    detail: list[FieldError]


class Token(BaseModel):
    access_token: str
    token_type: str = "Bearer"
    expires_in: int = 3600
    """Platform: 3600, after which clients ask for a new token. Ours stays valid until it is removed from the users."""


class Ok(BaseModel):
    """Fields that most responses have."""

    status: str = "ok"
    error_code: int = 0
    error_message: str = ""


class Authenticated(Ok):
    token: Token


class Created(BaseModel):
    """A job that was accepted."""

    job_name: str
    status: str = "Pending"
    created_at: int


class ListedJob(BaseModel):
    """A job in a list. Every key is always present: the platform's command line makes a table of them."""

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


class JobList(Ok):
    count: int
    """Number of matching jobs on all pages."""
    jobs: list[ListedJob]


class JobSummary(BaseModel):
    """One job; for an unknown name with status "job not found"."""

    uid: str
    job_name: str
    status: str
    region: str
    created_at: int
    pending_at: int
    running_at: int
    completed_at: int
    error_code: int = 0
    error_message: str = ""


class Deleted(BaseModel):
    job_name: str
    deleted_at: str
    """Seconds since 1970. Platform: a string here, a number elsewhere."""
    status: str
    """`deleted` or `job not found`."""
    error_code: int = 0
    error_message: str = ""


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


class JobParams(BaseModel):
    """The parameters of a job; values of variables that look like secrets are masked."""

    script: str
    base_image: str | None
    instance_type: str | None
    region: str | None
    type: PlatformType
    n_workers: int
    processes_per_worker: int | str
    job_desc: str | None
    flags: dict[str, Any]
    env_variables: dict[str, Any]
    conda_env: str | None
    pytorch_use_env: bool | None
    elastic_min_workers: int | str | None
    elastic_max_workers: int | str | None
    elastic_max_restarts: int | None
    max_retry: int | None
    priority_class: str
    queue_name: str | None
    allocation_name: str | None
    checkpoint_dir: str | None
    logs_dir: str | None
    health_params: dict[str, Any] | None
    internet: bool | None
    shm_size_class: str | None
    tmp_storage: str | None
    include_nodes: list[str] | None
    exclude_nodes: list[str] | None
    stop_timer: int | None


def failed(status: int, message: str) -> Response:
    text = Failed(error_code=1, error_message=message).model_dump_json()
    return Response(text, status, media_type=JSON)


def error(problem: ClientLibError) -> Response:
    """One of our errors in the platform's form. An InvalidRequest becomes 400: 422 is for wrong schemas there."""
    message = "\n".join(filter(None, [problem.message, problem.hint]))
    status = 400 if isinstance(problem, InvalidRequest) and not isinstance(problem, TooLarge) else problem.http_status
    return failed(status, message)


def wrong_form(findings: list[dict[str, Any]]) -> Response:
    """The 422 response. Values are left out of the findings: they may be secrets."""
    detail = [{key: finding[key] for key in ("loc", "msg", "type")} for finding in findings]
    return Response(json.dumps({"detail": detail}), 422, media_type=JSON)
