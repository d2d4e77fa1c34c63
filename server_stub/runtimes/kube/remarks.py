"""Sentences for the job's events about what can't be had on this cluster, or was lost. Pure; `gang` tells them."""

from __future__ import annotations

from collections.abc import Mapping

from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import sentences, storage
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.options import ClusterSettings

_ALONE = "pods can't reach this server: their logs come from the Kubernetes API alone, which may lose lines"


def remarks(
    attempt: Attempt, lost_lines: Mapping[int, int], settings: ClusterSettings, catalogue: Catalogue
) -> tuple[str, ...]:
    """`lost_lines`: by worker."""
    missing = [sentences.lost_lines(worker, count) for worker, count in lost_lines.items() if count]
    lost = storage.not_handed_on(attempt, catalogue)
    alone = _ALONE if settings.server_url is None else None
    return (*missing, *(each for each in (lost, alone) if each is not None))
