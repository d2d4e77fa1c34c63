"""The facts about a cluster that decide what is created there, as values for the pure modules of the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field

from server_stub.runtimes.kube.catalogue import ClusterCatalogue
from server_stub.runtimes.kube.workload import WorkloadKind
from server_stub.settings import Settings


@dataclass(frozen=True)
class ClusterOptions:
    """The server's settings, and facts about the cluster that the runtime has found out."""

    settings: Settings
    kind: WorkloadKind
    """Kind of the workloads."""
    catalogue: ClusterCatalogue
    namespace: str
    """Namespace of the objects of the jobs."""
    launcher: bytes = field(repr=False)
    """The zipapp of the worker launcher (client_lib.worker.zipapp_build)."""
    server_ca: str | None = None
    """Certificates (PEM) of the authority that signed the server's certificate; None: those of the image."""
    kueue: bool | None = False
    """True if a Kueue takes the workloads of this namespace, so that jobs may give a `queue_name`; None: the server has
    not asked yet."""
