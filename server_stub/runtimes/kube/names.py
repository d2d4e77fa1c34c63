"""What the objects of an attempt are called, and the labels by which they are found again. Pure.

The renderer gives these names, the observer reads them back. Names are deterministic: a submit that is repeated after a
crash finds its own objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from client_lib.spec.job import NAME_MAX

GROUP, VERSION, PLURAL, KIND = "kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"

JOB_ID = "client-lib.io/job-id"
ATTEMPT = "client-lib.io/attempt"
JOB_NAME = "client-lib.io/job-name"
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "client-lib"
"""Value of MANAGED_BY. `app.kubernetes.io/managed-by=client-lib` selects all objects of all servers in a namespace."""
ELASTIC = "client-lib.io/elastic"
"""Label of the pods of an elastic job: all are workers to the operator, and none is a master."""
HASH = "client-lib.io/hash"
"""Annotation of every object of an attempt: an object of that name with another value is someone else's."""
QUEUE = "kueue.x-k8s.io/queue-name"

REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
CONTAINER = "pytorch"  # the operator's webhook refuses a replica without a container of this name


def object_name(job_name: str, attempt: int, owner: str | None = None) -> str:
    """Of the PyTorchJob: the job's name; for attempt n > 1 `name[:42]-<4 hex of the name>-r<n>`, less of the name where
    n has more digits. At most NAME_MAX characters, as the operator appends `-worker-9997` and a label has 63.

    `owner`: where another user's job has that name, `name[:43]-<6 hex of owner and name>`, and `-r<n>` behind it.
    """
    if attempt == 1 and owner is None:
        return job_name
    told = _hex(job_name)[:4] if owner is None else _hex(f"{owner}/{job_name}")[:6]
    suffix = f"-{told}" if attempt == 1 else f"-{told}-r{attempt}"
    return job_name[: NAME_MAX - len(suffix)] + suffix


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plan_name(object_name: str) -> str:
    """Of its ConfigMap."""
    return f"{object_name}-plan"


def code_name(object_name: str) -> str:
    """Of the ConfigMap that carries a snapshot where pods can't fetch it."""
    return f"{object_name}-code"


def secret_name(object_name: str) -> str:
    """Of the Secret with the workers' token."""
    return f"{object_name}-worker"


def environment_name(object_name: str) -> str:
    """Of the Secret whose entries become variables of the ranks."""
    return f"{object_name}-env"


def policy_name(object_name: str) -> str:
    """Of its NetworkPolicy."""
    return f"{object_name}-egress"


def launcher_name(launcher: bytes, job_id: str) -> str:
    """Of the ConfigMap with this very zipapp, which some jobs share.

    Not all: each owner is written with every change of it, and the cluster's garbage collector looks for each other
    owner when one is deleted, so that among n jobs of one ConfigMap n deletions cost n * n requests.
    """
    return f"client-lib-launcher-{hashlib.sha256(launcher).hexdigest()[:12]}-{job_id[:2]}"


def pod_name(object_name: str, worker: int, *, elastic: bool = False) -> str:
    """Of the pod of a worker; worker 0 is the operator's master, but of an elastic job, which has none."""
    if elastic:
        return f"{object_name}-worker-{worker}"
    return f"{object_name}-master-0" if worker == 0 else f"{object_name}-worker-{worker - 1}"


def worker_of(labels: Mapping[str, str]) -> int | None:
    """Index of the worker whose pod has these labels; None: it is none of a PyTorchJob."""
    index = labels.get(REPLICA_INDEX, "")
    if not index.isdigit():
        return None
    masters = 0 if ELASTIC in labels else 1
    return {"master": 0, "worker": int(index) + masters}.get(labels.get(REPLICA_TYPE, "").lower())


@dataclass(frozen=True)
class AttemptKey:
    """Which attempt of which job an object belongs to."""

    job_id: str
    attempt: int


def labels(job_id: str, attempt: int, job_name: str) -> dict[str, str]:
    """Of every object of an attempt, its pods too."""
    return {MANAGED_BY: OURS, JOB_ID: job_id, JOB_NAME: job_name, ATTEMPT: str(attempt)}


def attempt_of(labels: Mapping[str, str]) -> AttemptKey | None:
    """The attempt of an object with these labels; None: it is none of ours."""
    job_id, attempt = labels.get(JOB_ID, ""), labels.get(ATTEMPT, "")
    if not job_id or not attempt.isdigit() or labels.get(MANAGED_BY) != OURS:
        return None
    return AttemptKey(job_id, int(attempt))
