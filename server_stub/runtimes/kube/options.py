"""The options of a cluster: what decides which objects are created there."""

from dataclasses import dataclass, field

from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.settings import Settings


@dataclass(frozen=True)
class ClusterOptions:
    """The server's settings, and facts about the cluster that the runtime has found out: what
    decides which objects are created there."""

    settings: Settings
    kind: WorkloadKind
    """Kind of the workloads."""
    catalogue: ClusterCatalogue
    namespace: str
    """Namespace of the objects of the jobs."""
    launcher: bytes = field(repr=False)
    """The zipapp of the worker launcher (client_lib.worker.zipapp_build)."""
    server_ca: str | None = None
    """Certificates (PEM) of the authority that signed the server's certificate; None: the
    certificates of the image.
    """
    kueue: bool | None = False
    """True if a Kueue takes the workloads of this namespace, so that jobs may give a `queue_name`;
    None: the server has not asked yet."""
