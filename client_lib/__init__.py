"""Run a distributed PyTorch script as a job with one call: on this machine, or on a cluster through the same service.

    from client_lib import Job

    job = Job(script="train.py", n_workers=2)
    job.submit()
    job.logs()

Public is what `__all__` lists, and nothing else. Every name is loaded when it is first used, so that
`import client_lib` loads neither requests, pydantic, the server nor torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # checkers read it as True; importing it from typing would double the cost of this import

if TYPE_CHECKING:
    from client_lib.client import Client, get_job, list_jobs
    from client_lib.errors import (
        BadResponse,
        ClientLibError,
        Conflict,
        Forbidden,
        InvalidRequest,
        JobCancelled,
        JobEnded,
        JobFailed,
        KeyReused,
        NeverFits,
        NotFound,
        NotShared,
        NotSupported,
        ServerError,
        ServerUnreachable,
        StorageFull,
        TooLarge,
        Unauthorized,
        Unavailable,
        WaitTimeout,
    )
    from client_lib.job import Job
    from client_lib.log_reader import LogEntry
    from client_lib.spec.job import HealthParams, JobSpec, JobType, PriorityClass
    from client_lib.spec.states import Reason, State
    from client_lib.spec.wire import Event, Failure, JobInfo, Manifest

__version__ = "0.1.0"

__all__ = [
    "BadResponse",
    "Client",
    "ClientLibError",
    "Conflict",
    "Event",
    "Failure",
    "Forbidden",
    "HealthParams",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobInfo",
    "JobSpec",
    "JobType",
    "KeyReused",
    "LogEntry",
    "Manifest",
    "NeverFits",
    "NotFound",
    "NotShared",
    "NotSupported",
    "PriorityClass",
    "Reason",
    "ServerError",
    "ServerUnreachable",
    "State",
    "StorageFull",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "WaitTimeout",
    "__version__",
    "get_job",
    "list_jobs",
]

_ELSEWHERE = {
    "client": ("Client", "get_job", "list_jobs"),
    "job": ("Job",),
    "log_reader": ("LogEntry",),
    "spec.job": ("HealthParams", "JobSpec", "JobType", "PriorityClass"),
    "spec.states": ("Reason", "State"),
    "spec.wire": ("Event", "Failure", "JobInfo", "Manifest"),
}
_MODULE = {name: module for module, names in _ELSEWHERE.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'client_lib' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"client_lib.{_MODULE.get(name, 'errors')}"), name)
    globals()[name] = value  # the next look does not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
