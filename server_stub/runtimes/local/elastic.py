"""Which losses of workers an attempt of `pytorch_elastic` survives. Pure; only `gang` uses it.

An agent that is killed, or whose launcher is, takes its ranks along; the agents that are left form a smaller group, and
take the lost worker in again when it comes back. Not without worker 0, which holds the rendezvous, nor with fewer than
`elastic_min_workers`. A worker whose ranks failed once too often is no loss but a failure, and ends the attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.states import Reason
from server_stub.runtimes.verdict import Stage, Worker

_KILLED = (Reason.SIGNAL, Reason.OUT_OF_MEMORY)
_RENDEZVOUS = ("Rendezvous", "DistNetworkError", "DistStoreError")


@dataclass(frozen=True)
class Bounds:
    """Of one attempt."""

    least: int
    """Workers that are enough to go on."""
    returns: int
    """How often each lost worker is started again."""


def bounds(spec: JobSpec) -> Bounds | None:
    """None: the loss of any worker ends the attempt."""
    if spec.type is not JobType.PYTORCH_ELASTIC:
        return None
    least = spec.elastic_min_workers if isinstance(spec.elastic_min_workers, int) else spec.n_workers
    return Bounds(least, 5 if spec.elastic_max_restarts is None else spec.elastic_max_restarts)


def survived(workers: Sequence[Worker], bounds: Bounds, returned: Collection[int] = ()) -> frozenset[int]:
    """Numbers of the lost workers without which the attempt goes on, or has ended well. `returned`: of those that were
    started again."""
    lost = frozenset(worker.number for worker in workers[1:] if _is_lost(worker, worker.number in returned))
    if workers[0].stage is Stage.ENDED and not workers[0].failed:  # nothing is left that they could join
        return lost | {number for number in returned if workers[number].failed}
    enough = len(workers) - len(lost) >= bounds.least
    return lost if enough and not workers[0].failed else frozenset()


def _is_lost(worker: Worker, returned: bool) -> bool:
    if worker.stage is Stage.LOST:
        return worker.lost_reason is not Reason.START_FAILED
    if worker.report is None:
        return False
    # one that came back too late, or while the others were lost, too, finds no rendezvous
    alone = returned and any(word in str(worker.report["message"]) for word in _RENDEZVOUS)
    return worker.report["reason"] in _KILLED or alone
