"""Makes the Kubernetes runtime from the server's settings. Reads files and makes no request to the cluster."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.worker import zipapp_build
from server_stub.runtimes.kube.api import connect, default_namespace
from server_stub.runtimes.kube.catalogue import file as catalogue_file
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.runtime import KubeRuntime
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.settings import Settings
from server_stub.worker_gateway import WorkerRegistry

KEPT_CATALOGUE = "catalogue.yaml"
"""Copy of the last valid catalogue, in the data directory."""
_log = logging.getLogger(__name__)


def assemble(settings: Settings, registry: WorkerRegistry, namespaces: Collection[str]) -> KubeRuntime:
    """Make the runtime. `namespaces`: those of the teams, beside that of the server.

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
    namespace = settings.kube_namespace or default_namespace(settings.kubeconfig, settings.kube_context)
    chosen, other = (TRAINJOB, PYTORCHJOB) if settings.job_kind == "trainjob" else (PYTORCHJOB, TRAINJOB)
    options = ClusterOptions(settings, chosen, catalogue, namespace, _launcher(), _text(settings.worker_server_ca))
    api = connect(settings.kubeconfig, settings.kube_context)
    jobs = settings.data_dir / "jobs"
    cluster = Cluster.of(api, options, registry, [other])
    return KubeRuntime(cluster, lambda job_id: jobs / job_id, problem, namespaces)


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
