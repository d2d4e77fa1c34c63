"""`jobs logs kill get_job_status job_status`: by name, with the platform's texts.

`region` is accepted everywhere. A name is unique among one's jobs whatever the region, so only `jobs` filters by it.
"""

from __future__ import annotations

import sys

from client_lib.client import get_job, list_jobs
from client_lib.spec.mlspace import iso, listed_status


def jobs(region: str | None = None) -> None:
    """Print a line for each job, sorted by name: `2020-02-28T14:54:31Z : lm-mpi-job-... : Completed`.

    A job that names no region is in every one. Typed, and newest first: `client_lib.list_jobs()`.
    """
    found = [info for info in list_jobs() if region is None or info.spec.region in (None, str(region))]
    sys.stdout.writelines(
        f"{iso(info.created_at)} : {info.name} : {listed_status(info.state, info.reason)}\n"
        for info in sorted(found, key=lambda info: info.name)
    )


def logs(name: str, region: str | None = None, tail: int | None = None, verbose: bool | None = None) -> None:
    """Print the job's lines and follow until it ends, as `Job.logs`. `tail` 0: all of them. Raises NotFound."""
    del region
    get_job(name).logs(tail=tail or None, verbose=verbose)


def kill(name: str, region: str | None = None) -> str:
    """Cancel the job: `Job "<name>" deleted`. Its logs stay. Raises NotFound."""
    del region
    return get_job(name).kill()


def get_job_status(name: str, region: str | None = None) -> str:
    """`Job status=Running`, as `Job.status`. Raises NotFound."""
    del region
    return get_job(name).status()


job_status = get_job_status
