"""Request bodies of the platform's clients. Strict: an unknown field is a 422, as on the platform."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from client_lib.spec.job import WORKERS_MAX, HealthAction, PriorityClass, Scalar, Strict
from client_lib.spec.mlspace import DEFAULT_REGION, PlatformType

Count = Annotated[int, Field(ge=1)]
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
    # deprecated on the platform, and still sent by scripts
    cuda11: Flag = None
    preflight_check: Flag = None
    forbid_s3: Flag = None
    forbid_internet: Flag = None
    in_communal_cluster: Flag = None


class RestartRequest(Strict):
    job_name: str
