"""Puts the Kubernetes runtime together from the server's settings. Reads files, asks nothing of the cluster yet."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.worker import zipapp_build
from server_stub.runtimes.kube import catalogue_file
from server_stub.runtimes.kube.api import connect, default_namespace
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.runtime import KubeRuntime, Parts
from server_stub.settings import Settings
from server_stub.workers import WorkerDesk


def assemble(settings: Settings, desk: WorkerDesk) -> KubeRuntime:
    """Raises InvalidRequest, ServerError: a file that is missing or wrong; no cluster to be reached."""
    catalogue = catalogue_file.load(
        settings.catalogue,
        by_pattern=settings.parse_instance_types is True,
        pod_security=settings.pod_security,
    )
    cluster = ClusterSettings(
        namespace=settings.kube_namespace or default_namespace(settings.kubeconfig, settings.kube_context),
        launcher=_launcher(),
        server_url=settings.worker_server_url,
        server_ca=_text(settings.worker_server_ca),
        pod_security=settings.pod_security,
        gang_timeout_s=settings.gang_timeout_s,
        spool_bytes=settings.spool_bytes,
        log_limit_bytes=settings.log_limit_bytes,
        segment_bytes=settings.segment_bytes,
        max_result_bytes=settings.max_result_bytes,
        outputs_limit_bytes=settings.outputs_limit_bytes,
        outputs_every_s=settings.outputs_every_s,
        rank_runner=settings.rank_runner,
    )
    _allow_many_connections()
    api = connect(settings.kubeconfig, settings.kube_context)
    jobs = settings.data_dir / "jobs"
    return KubeRuntime(Parts(api, cluster, catalogue, desk, lambda job_id: jobs / job_id))


def _allow_many_connections() -> None:
    """Each worker holds one, waiting for its next order."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _launcher() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "worker.pyz"
        zipapp_build.build(str(target))
        return target.read_bytes()


def _text(path: Path | None) -> str | None:
    try:
        return None if path is None else path.read_text()
    except OSError as error:
        raise InvalidRequest(f"worker_server_ca={path} can't be read: {error.strerror}") from error
