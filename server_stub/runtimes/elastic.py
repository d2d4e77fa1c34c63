"""Decides which losses of workers an attempt of `pytorch_elastic` survives, for every runtime. Pure.

The ranks of a killed agent, or launcher, die with it. The remaining agents form a smaller group, which the restarted
worker joins again. The group needs worker 0, which holds the rendezvous, and `elastic_min_workers`. A worker whose
ranks have failed more often than allowed is not lost but failed, and ends the attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.states import Reason
from client_lib.worker.outcome import is_peer_loss
from server_stub.runtimes.verdict import Stage, WorkerStatus

_KILLED = (Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.LAUNCHER_LOST)


@dataclass(frozen=True)
class Bounds:
    least: int
    """Number of workers sufficient to continue."""
    returns: int
    """Number of restarts of each lost worker."""


def bounds(spec: JobSpec) -> Bounds | None:
    """None: the loss of any worker ends the attempt."""
    if spec.type is not JobType.PYTORCH_ELASTIC:
        return None
    least = spec.elastic_min_workers if isinstance(spec.elastic_min_workers, int) else spec.n_workers
    return Bounds(least, 5 if spec.elastic_max_restarts is None else spec.elastic_max_restarts)


def survived(workers: Sequence[WorkerStatus], bounds: Bounds, returned: Collection[int] = ()) -> frozenset[int]:
    """Numbers of the lost workers without which the attempt continues, or has succeeded. `returned`: numbers of the
    restarted workers."""
    lost = frozenset(worker.number for worker in workers[1:] if _is_lost(worker, worker.number in returned))
    if workers[0].stage is Stage.ENDED and not workers[0].failed:  # there is no group to join any more
        return lost | {number for number in returned if workers[number].failed}
    enough = len(workers) - len(lost) >= bounds.least
    return lost if enough and not workers[0].failed else frozenset()


def is_loss(report: Mapping[str, Any], *, returned: bool) -> bool:
    """True if a worker with this report was killed, and has not failed by itself. `returned`: it is a restarted one."""
    # a worker that returns too late, or while the others are lost, too, finds no rendezvous
    alone = returned and is_peer_loss(None, str(report["message"]), None, ())
    return report["reason"] in _KILLED or alone


def _is_lost(worker: WorkerStatus, returned: bool) -> bool:
    if worker.stage is Stage.LOST:
        return worker.lost_reason is not Reason.START_FAILED
    return worker.report is not None and is_loss(worker.report, returned=returned)


def who_is_missing(numbers: Collection[int], workers: int) -> str:
    """The message of an attempt that continues without these of its workers."""
    if not numbers:
        return ""
    listed = ", ".join(map(str, sorted(numbers)))
    who = f"worker {listed} was" if len(numbers) == 1 else f"workers {listed} were"
    return f"{who} lost; {workers - len(numbers)} of {workers} go on"
