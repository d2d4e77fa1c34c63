"""The settings of the Kubernetes runtime that its pure modules need, as values: no environment, no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

PodSecurity = Literal["restricted", "baseline", "privileged"]


@dataclass(frozen=True)
class ClusterSettings:
    """What an operator can set about jobs on a cluster, and what was found out about the cluster at the start."""

    namespace: str
    """Where the objects of all jobs are."""
    launcher: bytes = field(repr=False)
    """The zipapp of the worker launcher (client_lib.worker.zipapp_build)."""
    server_url: str | None = None
    """How pods reach this server. None: they can't; then logs come from `pods/log` alone, and code that is no shared
    folder rides in a ConfigMap."""
    server_ca: str | None = None
    """PEM of the authority that signed the server's certificate; None: those of the image."""
    pod_security: PodSecurity = "restricted"
    """Level of the Pod Security Standards that pods keep to."""
    gang_timeout_s: float = 900.0
    """A gang that is not complete for so long, pulls of images not counted, is deleted and queued again."""
    kueue: bool = False
    """A Kueue that serves kubeflow.org/pytorchjob was found: `queue_name` can be honoured."""
    spool_bytes: int = 2**30
    """Size of the volume in which a worker keeps its log while the server is away."""
    log_limit_bytes: int = 10 * 2**30
    """Log kept of one job: head and tail, the gap is counted."""
    segment_bytes: int = 64 * 2**20
    """Size of one log file before the next is begun."""
    max_result_bytes: int = 2 * 2**30
    """What a function may return in one rank, pickled."""
    outputs_limit_bytes: int = 10 * 2**30
    """What is kept of the outputs of a job, of all its workers and attempts together."""
    outputs_every_s: float = 60.0
    """Between two looks for outputs while a job runs."""
    rank_runner: bool = True
    """False: ranks start as plain `python script`, without the rank runner that saves a third of start and end."""
