"""Sentences for the job's events about what can't be had on this cluster, or was lost. Pure; `gang` tells them."""

from __future__ import annotations

from collections.abc import Sequence

from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import storage
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.options import ClusterSettings
from server_stub.workers import WorkerView

_ALONE = "pods can't reach this server: their logs come from the Kubernetes API alone, which may lose lines"


def remarks(
    attempt: Attempt, views: Sequence[WorkerView], settings: ClusterSettings, catalogue: Catalogue
) -> tuple[str, ...]:
    missing = [f"{view.missing} lines of worker {view.worker} are lost" for view in views if view.missing]
    lost = storage.not_handed_on(attempt, catalogue)
    alone = _ALONE if settings.server_url is None else None
    return (*missing, *(each for each in (lost, alone) if each is not None))
