"""What the workers' desk is told of an attempt before its pods speak. Pure."""

from __future__ import annotations

from client_lib.errors import ClientLibError
from client_lib.spec.job import JobSpec
from server_stub.runtimes import Attempt, attempt_dir, orders, worker_dir
from server_stub.runtimes.kube import elastic
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.needs import needs
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.workers import Gang


def opening(attempt: Attempt, settings: ClusterSettings, catalogue: Catalogue) -> Gang:
    """The gang of this attempt, as the desk knows it."""
    return Gang(
        job_id=attempt.job_id,
        job_name=attempt.job_name,
        attempt=attempt.number,
        folder=attempt_dir(attempt.job_dir, attempt.number),
        workers=tuple(worker_dir(attempt.job_dir, attempt.number, each) for each in range(attempt.spec.n_workers)),
        processes_per_worker=_processes(attempt.spec, catalogue),
        snapshot=attempt.snapshot,
        function=attempt.function,
        log_limit_bytes=orders.log_share(attempt.spec, settings.log_limit_bytes),
        segment_bytes=settings.segment_bytes,
        may_return=elastic.may_return(attempt.spec),
    )


def _processes(spec: JobSpec, catalogue: Catalogue) -> int:
    """Of each worker; 1 where the catalogue doesn't know its instance type any more, as then none is started."""
    try:
        return needs(spec, catalogue).processes
    except ClientLibError:
        return 1
