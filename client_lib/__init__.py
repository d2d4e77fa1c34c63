"""Run a distributed PyTorch script as a job with one call: on this machine, or on a cluster through
the same service.

    from client_lib import Job

    job = Job(script="train.py", n_workers=2)
    job.submit()
    job.logs()

`__all__` has the public names. Each is loaded when it is first used, so that `import client_lib`
loads neither requests, pydantic, the server nor torch.
"""

# checkers read it as True; importing it from typing would double the cost of this import
TYPE_CHECKING = False

if TYPE_CHECKING:  # "X as X" is how a checker recognizes a name that others may import from here
    from client_lib.cli.commands.run import (
        load_ipython_extension as load_ipython_extension,
    )
    from client_lib.client import (
        Client as Client,
        get_group as get_group,
        get_job as get_job,
        list_jobs as list_jobs,
        resubmit as resubmit,
    )
    from client_lib.errors import (
        BadResponse as BadResponse,
        ClientLibError as ClientLibError,
        Conflict as Conflict,
        Forbidden as Forbidden,
        InvalidRequest as InvalidRequest,
        JobCancelled as JobCancelled,
        JobEnded as JobEnded,
        JobFailed as JobFailed,
        KeyReused as KeyReused,
        NeverFits as NeverFits,
        NoResult as NoResult,
        NotFound as NotFound,
        NotShared as NotShared,
        NotSupported as NotSupported,
        RemoteError as RemoteError,
        ServerError as ServerError,
        ServerUnreachable as ServerUnreachable,
        StorageFull as StorageFull,
        TooLarge as TooLarge,
        Unauthorized as Unauthorized,
        Unavailable as Unavailable,
        WaitTimeout as WaitTimeout,
    )
    from client_lib.futures import (
        Executor as Executor,
        as_completed as as_completed,
        wait_all as wait_all,
    )
    from client_lib.groups import (
        Group as Group,
    )
    from client_lib.job import (
        Job as Job,
    )
    from client_lib.log_reading.reader import (
        LogEntry as LogEntry,
    )
    from client_lib.mlspace.calls import (
        ImageBuildJob as ImageBuildJob,
        S3CopyJob as S3CopyJob,
        copy_from_nfs as copy_from_nfs,
        get_available_resources_count as get_available_resources_count,
        get_docker_images as get_docker_images,
        get_instance_types as get_instance_types,
        get_job_status as get_job_status,
        get_transfer_data_logs as get_transfer_data_logs,
        job_status as job_status,
        jobs as jobs,
        kill as kill,
        logs as logs,
        save_aws_credentials as save_aws_credentials,
        update as update,
    )
    from client_lib.mlspace.constants import (
        ClusterType as ClusterType,
        Environment as Environment,
        JobHealthAction as JobHealthAction,
        JobHealthParams as JobHealthParams,
        JobHealthSubAction as JobHealthSubAction,
        RegionEnum as RegionEnum,
        RegionMT as RegionMT,
        environment as environment,
    )
    from client_lib.remote_function import remote as remote
    from client_lib.spec.checkpoints import JobCheckpoint as JobCheckpoint
    from client_lib.spec.job import (
        CheckpointParams as CheckpointParams,
        HealthParams as HealthParams,
        JobSpec as JobSpec,
        JobType as JobType,
        PriorityClass as PriorityClass,
    )
    from client_lib.spec.metrics import (
        Curve as Curve,
        JobGoodput as JobGoodput,
        JobMetrics as JobMetrics,
    )
    from client_lib.spec.stacks import (
        JobStacks as JobStacks,
    )
    from client_lib.spec.states import (
        Reason as Reason,
        State as State,
    )
    from client_lib.spec.wire import (
        Event as Event,
        Explanation as Explanation,
        Failure as Failure,
        JobInfo as JobInfo,
        Manifest as Manifest,
    )
    from client_lib.tracking import (
        alert as alert,
        config as config,
        finish as finish,
        init as init,
        log as log,
    )

__version__ = "0.2.0.dev0"

_MODULES = {
    "client_lib.cli.commands.run": "load_ipython_extension",
    "client_lib.client": "Client get_group get_job list_jobs resubmit",
    "client_lib.errors": (
        "BadResponse ClientLibError Conflict Forbidden InvalidRequest JobCancelled JobEnded "
        "JobFailed KeyReused NeverFits NoResult NotFound NotShared NotSupported RemoteError "
        "ServerError ServerUnreachable StorageFull TooLarge Unauthorized Unavailable WaitTimeout"
    ),
    "client_lib.futures": "Executor as_completed wait_all",
    "client_lib.groups": "Group",
    "client_lib.job": "Job",
    "client_lib.log_reading.reader": "LogEntry",
    "client_lib.mlspace.calls": (
        "get_available_resources_count get_docker_images get_instance_types get_job_status "
        "job_status jobs kill logs ImageBuildJob S3CopyJob copy_from_nfs get_transfer_data_logs "
        "save_aws_credentials update"
    ),
    "client_lib.mlspace.constants": (
        "ClusterType Environment JobHealthAction JobHealthParams JobHealthSubAction RegionEnum "
        "RegionMT environment"
    ),
    "client_lib.remote_function": "remote",
    "client_lib.spec.checkpoints": "JobCheckpoint",
    "client_lib.spec.job": "CheckpointParams HealthParams JobSpec JobType PriorityClass",
    "client_lib.spec.metrics": "Curve JobGoodput JobMetrics",
    "client_lib.spec.stacks": "JobStacks",
    "client_lib.spec.states": "Reason State",
    "client_lib.tracking": "alert config finish init log",
    "client_lib.spec.wire": "Event Explanation Failure JobInfo Manifest",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(["__version__", *_MODULE_OF])


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'client_lib' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_MODULE_OF[name]), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return list(__all__)
