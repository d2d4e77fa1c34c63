"""The functions of the platform's module: jobs by name, with the platform's texts, and the catalogue of the server.
Those beyond jobs are not supported; each error names an alternative.

`region` is accepted everywhere. A name is unique among one's jobs whatever the region, so only `jobs` filters by it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from client_lib.client import get_job
from client_lib.errors import NotSupported
from client_lib.mlspace.constants import ClusterType
from client_lib.mlspace.table import Table
from client_lib.spec.mlspace import REGIONS, iso, listed_status
from client_lib.transport.api import configured

# --- jobs


def jobs(region: str | None = None) -> None:
    """Print a line for each job, sorted by name: `2020-02-28T14:54:31Z : lm-mpi-job-... : Completed`.

    A job without a region is in every one. `client_lib.list_jobs()` is typed and lists the newest first.
    """
    found = [info for info in configured().list_jobs() if region is None or info.spec.region in (None, str(region))]
    sys.stdout.writelines(
        f"{iso(info.created_at)} : {info.name} : {listed_status(info.state, info.reason)}\n"
        for info in sorted(found, key=lambda info: info.name)
    )


def logs(name: str, region: str | None = None, tail: int | None = None, verbose: bool | None = None) -> None:
    """Print the job's lines and follow until it ends, as `Job.logs`. `tail` 0: all lines. Raises NotFound."""
    get_job(name).logs(tail=tail or None, verbose=verbose)


def kill(name: str, region: str | None = None) -> str:
    """Cancel the job: `Job "<name>" deleted`. Its logs stay. Raises NotFound."""
    return get_job(name).kill()


def get_job_status(name: str, region: str | None = None) -> str:
    """`Job status=Running`, as `Job.status`. Raises NotFound."""
    return get_job(name).status()


job_status = get_job_status


# --- the catalogue


def get_instance_types(
    cluster_type: ClusterType | str | None = None, regions: str | Sequence[str] | None = None
) -> Table:
    """A row for each region and instance type: region, instance_type, memory (GiB), cpu (cores), gpu.

    `regions`: one or several; None: all of the platform's. The types are the same in each: one server has one
    catalogue. `cluster_type` INF: no row, because there is no inference here.
    """
    is_inference = cluster_type is not None and ClusterType(cluster_type) is ClusterType.INF
    kinds = [] if is_inference else configured().instance_types()
    rows = [
        {"region": region, "instance_type": kind.name, "memory": kind.memory_gib, "cpu": kind.cpu, "gpu": kind.gpus}
        for region in _regions(regions)
        for kind in kinds
    ]
    return Table(("region", "instance_type", "memory", "cpu", "gpu"), rows)


def get_available_resources_count(region: str | Sequence[str] | None = None) -> Table:
    """The number of workers of each instance type that fit right now: instance_type, available; `?` if it is not known.

    The capacity is the same in every region; with `region` a column names it.
    """
    kinds = configured().instance_types()
    columns = ("instance_type", "available") if region is None else ("region", "instance_type", "available")
    rows = [
        {"region": name, "instance_type": kind.name, "available": kind.available}
        for name in ([""] if region is None else _regions(region))
        for kind in kinds
    ]
    return Table(columns, rows)


def get_docker_images(cluster_type: ClusterType | str | None = None) -> list[str]:
    """The images of the server: always none, and a warning explains what runs instead."""
    warnings.warn(
        "this server lists no images: jobs on this machine run with your own interpreter, and base_image is only noted",
        stacklevel=2,
    )
    return []


def _regions(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return list(REGIONS)
    return [str(given)] if isinstance(given, str) else [str(name) for name in given]


# --- not supported: classes raise in their constructor, so that no unusable object exists


class ImageBuildJob:
    """On the platform: builds an image."""

    def __init__(
        self,
        from_image: str | None = None,
        requirements_file: str | None = None,
        install_type: str = "pip",
        conda_env: str | None = None,
        poetrylock_file: str | None = None,
    ) -> None:
        """Raises NotSupported; the hint tells how to get the packages."""
        raise NotSupported("ImageBuildJob: no image is built here", hint=_packages(requirements_file, poetrylock_file))


def _packages(requirements_file: str | None, poetrylock_file: str | None) -> str:
    if poetrylock_file:
        return f"install what {poetrylock_file} locks (`poetry install`) into the environment that submits"
    file = requirements_file or "requirements.txt"
    return f"pass Job(requirements={file!r}): they are installed before the script starts, beside those of the image"


class S3CopyJob:
    """On the platform: copies to and from object storage."""

    def __init__(self, path: str | None = None, bucket: str | None = None, recursive: bool = False) -> None:
        """Raises NotSupported."""
        raise NotSupported(
            "S3CopyJob: nothing is copied here",
            hint="run `aws s3 cp` or `rclone copy`, by itself or as Job(script='aws s3 cp ...', type='binary')",
        )


def copy_from_nfs(
    source_path: str | None = None, from_region: str | None = None, destination_path: str | None = None
) -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported("copy_from_nfs: there are no regions to copy between", hint="`rsync` copies between machines")


def get_transfer_data_logs(id: object = None) -> NoReturn:
    """Raises NotSupported."""
    raise NotSupported("get_transfer_data_logs: nothing is transferred here", hint="`rsync -v` lists what it copies")


def save_aws_credentials(ns: str | None = None, key: str | None = None, secret: str | None = None) -> NoReturn:
    """Raises NotSupported. The arguments are neither kept nor shown."""
    del ns, key, secret  # a traceback may show local variables
    raise NotSupported(
        "save_aws_credentials: no credentials are kept here",
        hint="put them into the environment and name them: Job(secrets=['AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'])",
    )


def update() -> str:
    """Return the version and the command that installs another. Nothing is changed."""
    return f"client_lib {version('client_lib')}; `pip install --upgrade client-lib` installs the newest"
