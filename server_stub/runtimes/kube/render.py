"""From an attempt to the objects that it is on a cluster. Pure: no client, no clock, no chance, no environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from server_stub.runtimes import Attempt
from server_stub.runtimes.kube.catalogue import Catalogue
from server_stub.runtimes.kube.objects import Objects
from server_stub.runtimes.kube.options import ClusterSettings


@dataclass(frozen=True)
class Payload:
    """Bytes of the attempt's code, read only where pods can't fetch them (`needs_payload`)."""

    snapshot: bytes | None = field(default=None, repr=False)
    function: bytes | None = field(default=None, repr=False)


def needs_payload(attempt: Attempt, cluster: ClusterSettings) -> bool:
    """Whether the code must ride in a ConfigMap, because pods can't reach the server."""
    return cluster.server_url is None and (attempt.snapshot is not None or attempt.function is not None)


def render(
    attempt: Attempt, cluster: ClusterSettings, catalogue: Catalogue, worker_token: str, payload: Payload | None = None
) -> Objects:
    """The objects of one attempt; the same arguments give the same objects.

    Raises InvalidRequest, NotSupported, TooLarge: as `check` does, and for code that is too large for a ConfigMap.
    """
    raise NotImplementedError
