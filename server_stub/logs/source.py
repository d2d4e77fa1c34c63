"""What the log rooms must be told about a job. The service gives it; tests give it from a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from client_lib.spec.states import Reason, State

LogDirectory = Callable[[Path, int, int], Path]
"""(job_dir, attempt, worker) -> where the segments of that worker are, there or not."""


class JobLogs(Protocol):
    """One job as it stands; `server_stub.service.JobLogs` is one."""

    @property
    def job_id(self) -> str: ...
    @property
    def job_dir(self) -> Path: ...
    @property
    def n_workers(self) -> int: ...
    @property
    def attempt(self) -> int:
        """The newest, from 1."""
        ...

    @property
    def version(self) -> int: ...
    @property
    def state(self) -> State: ...
    @property
    def reason(self) -> Reason: ...
    @property
    def message(self) -> str: ...


class LogSource(Protocol):
    """`server_stub.service.Service` is one."""

    async def next_logs(self, logs: Any) -> Any:
        """The job (a JobLogs) as soon as its version is greater than that of `logs`. Raises NotFound: it is deleted."""
        ...
