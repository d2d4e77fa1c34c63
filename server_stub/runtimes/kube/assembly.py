"""Makes the Kubernetes runtime from the server's settings. Reads files and makes no request to the cluster."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.worker import zipapp_build
from server_stub.runtimes.kube.api import connect, default_namespace
from server_stub.runtimes.kube.catalogue import file as catalogue_file
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.runtime import KubeRuntime
from server_stub.settings import Settings
from server_stub.worker_gateway import WorkerRegistry

KEPT_CATALOGUE = "catalogue.yaml"
"""Copy of the last valid catalogue, in the data directory."""
_log = logging.getLogger(__name__)


def assemble(settings: Settings, registry: WorkerRegistry) -> KubeRuntime:
    """Make the runtime.

    Raises InvalidRequest: a file is missing or wrong; ServerError: there is no usable kubeconfig.
    """
    catalogue, problem = catalogue_file.load_or_kept(
        settings.catalogue,
        settings.data_dir / KEPT_CATALOGUE,
        by_pattern=settings.parse_instance_types is True,
        pod_security=settings.pod_security,
    )
    if problem:
        _log.error("%s", problem)
    cluster = ClusterSettings(
        namespace=settings.kube_namespace or default_namespace(settings.kubeconfig, settings.kube_context),
        launcher=_launcher(),
        server_url=settings.worker_server_url,
        server_ca=_text(settings.worker_server_ca),
        pod_security=settings.pod_security,
        gang_timeout_s=settings.gang_timeout_s,
        log_limit_bytes=settings.log_limit_bytes,
        observe=settings.observe,
        max_result_bytes=settings.max_snapshot_bytes,
        outputs_limit_bytes=settings.outputs_limit_bytes,
    )
    api = connect(settings.kubeconfig, settings.kube_context)
    jobs = settings.data_dir / "jobs"
    parts = Cluster.of(api, PYTORCHJOB, cluster, catalogue, registry)
    return KubeRuntime(parts, lambda job_id: jobs / job_id, problem)


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
