"""The settings of the Kubernetes runtime as values, for its pure modules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PodSecurity = Literal["restricted", "baseline", "privileged"]


@dataclass(frozen=True)
class ClusterSettings:
    """Settings for jobs on a cluster, and facts about the cluster that the runtime has found out."""

    namespace: str
    """Namespace of the objects of all jobs."""
    launcher: bytes = field(repr=False)
    """The zipapp of the worker launcher (client_lib.worker.zipapp_build)."""
    server_url: str | None = None
    """URL of this server for pods. None: they can't reach it; then logs come from `pods/log` alone, and code is sent in
    a ConfigMap."""
    server_ca: str | None = None
    """Certificates (PEM) of the authority that signed the server's certificate; None: those of the image."""
    pod_security: PodSecurity = "restricted"
    """Level of the Pod Security Standards that pods keep to."""
    gang_timeout_s: float = 900.0
    """Time after which an incomplete gang is deleted and queued again, without the time of image pulls."""
    kueue: bool = False
    """True if a Kueue takes the workloads of this server, so that jobs may give a `queue_name`."""
    log_limit_bytes: int = 10 * 2**30
    """Limit for the log of one job; its beginning and end are kept, and the lost lines are counted."""
    outputs_limit_bytes: int = 10 * 2**30
    """Limit for the outputs of a job, of all its workers and attempts together."""
    observe: bool = True
    """True: the stacks of running jobs can be taken."""
    max_result_bytes: int = 2 * 2**30
    """Largest pickled result of a function in one rank."""
