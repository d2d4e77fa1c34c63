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
    from client_lib.client import Client, get_job, list_jobs, resubmit
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
        NoResult,
        NotFound,
        NotShared,
        NotSupported,
        RemoteError,
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
    from client_lib.mlspace.elsewhere import (
        ImageBuildJob,
        S3CopyJob,
        copy_from_nfs,
        get_transfer_data_logs,
        save_aws_credentials,
        update,
    )
    from client_lib.mlspace.environment import Environment, environment
    from client_lib.mlspace.instance_types import get_available_resources_count, get_docker_images, get_instance_types
    from client_lib.mlspace.verbs import get_job_status, job_status, jobs, kill, logs
    from client_lib.mlspace.words import (
        ClusterType,
        JobHealthAction,
        JobHealthParams,
        JobHealthSubAction,
        RegionEnum,
        RegionMT,
    )
    from client_lib.remote_function import remote
    from client_lib.spec.explanation import Explanation
    from client_lib.spec.job import HealthParams, JobSpec, JobType, PriorityClass
    from client_lib.spec.states import Reason, State
    from client_lib.spec.wire import Event, Failure, JobInfo, Manifest

__version__ = "0.1.0"

__all__ = [
    "BadResponse",
    "Client",
    "ClientLibError",
    "ClusterType",
    "Conflict",
    "Environment",
    "Event",
    "Explanation",
    "Failure",
    "Forbidden",
    "HealthParams",
    "ImageBuildJob",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobEnded",
    "JobFailed",
    "JobHealthAction",
    "JobHealthParams",
    "JobHealthSubAction",
    "JobInfo",
    "JobSpec",
    "JobType",
    "KeyReused",
    "LogEntry",
    "Manifest",
    "NeverFits",
    "NoResult",
    "NotFound",
    "NotShared",
    "NotSupported",
    "PriorityClass",
    "Reason",
    "RegionEnum",
    "RegionMT",
    "RemoteError",
    "S3CopyJob",
    "ServerError",
    "ServerUnreachable",
    "State",
    "StorageFull",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "WaitTimeout",
    "__version__",
    "copy_from_nfs",
    "environment",
    "get_available_resources_count",
    "get_docker_images",
    "get_instance_types",
    "get_job",
    "get_job_status",
    "get_transfer_data_logs",
    "job_status",
    "jobs",
    "kill",
    "list_jobs",
    "logs",
    "remote",
    "resubmit",
    "save_aws_credentials",
    "update",
]

_ELSEWHERE = {
    "client": ("Client", "get_job", "list_jobs", "resubmit"),
    "job": ("Job",),
    "log_reader": ("LogEntry",),
    "mlspace.elsewhere": (
        "ImageBuildJob",
        "S3CopyJob",
        "copy_from_nfs",
        "get_transfer_data_logs",
        "save_aws_credentials",
        "update",
    ),
    "mlspace.environment": ("Environment", "environment"),
    "mlspace.instance_types": ("get_available_resources_count", "get_docker_images", "get_instance_types"),
    "mlspace.verbs": ("get_job_status", "job_status", "jobs", "kill", "logs"),
    "remote_function": ("remote",),
    "mlspace.words": (
        "ClusterType",
        "JobHealthAction",
        "JobHealthParams",
        "JobHealthSubAction",
        "RegionEnum",
        "RegionMT",
    ),
    "spec.explanation": ("Explanation",),
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
