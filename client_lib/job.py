"""One job as an object: the platform's verbs (`submit status logs kill`) and the typed ones that they are built on.

Public. A Job is a description until `submit()`; afterwards, or from `get_job`, it is a handle on a job of a server, and
every call asks that server. What travels and how is `api`; where the script runs from is `source`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Literal

from client_lib.api import Api
from client_lib.logs import LogEntry
from client_lib.spec.job import HealthParams, JobSpec, JobType, PriorityClass, Scalar
from client_lib.spec.states import State
from client_lib.spec.wire import Event, JobInfo, Manifest


class Job:
    def __init__(
        self,
        base_image: str | None = None,
        script: str | os.PathLike[str] | None = None,
        instance_type: str | None = None,
        n_workers: int = 1,
        type: JobType | str = JobType.PYTORCH2,
        *,
        args: Sequence[str] = (),
        flags: Mapping[str, Scalar] | None = None,
        env_variables: Mapping[str, Scalar] | None = None,
        secrets: Sequence[str] = (),
        code: Literal["auto", "in_place", "snapshot"] = "auto",
        working_dir: str | os.PathLike[str] | None = None,
        conda_env: str | None = None,
        pytorch_use_env: bool | None = None,
        log_file: str | None = "train.log",
        checkpoint_dir: str | os.PathLike[str] | None = None,
        outputs: Sequence[str] | None = None,
        requirements: Sequence[str] | None = None,
        processes_per_worker: int | Literal["default"] = "default",
        gpus: Sequence[int] | None = None,
        volumes: Sequence[str] = (),
        shm_size_class: Literal["small", "medium", "large"] | None = None,
        tmp_storage: str | None = None,
        include_nodes: Sequence[str] | None = None,
        exclude_nodes: Sequence[str] | None = None,
        internet: bool | None = None,
        region: str | None = None,
        priority_class: PriorityClass | str = PriorityClass.MEDIUM,
        queue_name: str | None = None,
        allocation_name: str | None = None,
        max_retry: int | None = None,
        stop_timer: int | None = None,
        health_params: HealthParams | Mapping[str, Any] | None = None,
        grace_s: float = 30.0,
        elastic_min_workers: int | Literal["default"] | None = None,
        elastic_max_workers: int | Literal["default"] | None = None,
        elastic_max_restarts: int | None = None,
        name: str | None = None,
        job_desc: str | None = None,
        labels: Mapping[str, str] | None = None,
        logs_dir: str | os.PathLike[str] | None = None,
        client: Api | None = None,
    ) -> None: ...

    @property
    def spec(self) -> JobSpec: ...

    @property
    def name(self) -> str | None:
        """The name that was given, or after the submit the one that the job has."""

    @property
    def job_name(self) -> str | None:
        """The platform's word: the name once the job is submitted, None before and after a failed submit."""

    # --- the platform's verbs
    def submit(self, *, on_upload: Callable[[int, int], None] | None = None) -> str: ...
    def status(self) -> str: ...
    def logs(
        self,
        tail: int | None = None,
        verbose: bool | None = None,
        *,
        follow: bool | None = None,
        since: str | None = None,
        rank: int | Sequence[int] | None = None,
        stream: str | Sequence[str] | None = None,
        timestamps: bool = False,
        attempt: int | None = None,
        file: IO[str] | None = None,
    ) -> None: ...
    def kill(self) -> str: ...

    # --- typed
    def info(self) -> JobInfo: ...
    @property
    def state(self) -> State: ...
    def wait(self, timeout: float | None = None, *, follow: bool = False) -> JobInfo: ...
    def log_lines(self, *, follow: bool = True) -> Iterator[str]: ...  # and the filters of logs()
    def log_entries(self, *, follow: bool = True) -> Iterator[LogEntry]: ...  # and the filters of logs()
    def cancel(self) -> JobInfo: ...
    def delete(self, *, force: bool = False) -> str: ...
    def events(self) -> list[Event]: ...
    def render(self) -> Manifest: ...
