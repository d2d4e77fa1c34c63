"""Which losses of workers an attempt of `pytorch_elastic` survives: the same for every runtime. Pure.

An agent that is killed, or whose launcher is, takes its ranks along; the agents that are left form a smaller group, and
take the lost worker in again when it comes back. Not without worker 0, which holds the rendezvous, nor with fewer than
`elastic_min_workers`. A worker whose ranks failed once too often is no loss but a failure, and ends the attempt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client_lib.errors import NotSupported
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.states import Reason
from server_stub.runtimes import orders
from server_stub.runtimes.verdict import Stage, Worker

_KILLED = (Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.LAUNCHER_LOST)
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


def refuse_command(spec: JobSpec) -> None:
    """Raises NotSupported for what no agent could start."""
    if spec.type is JobType.PYTORCH_ELASTIC and spec.python_script is None and not orders.calls_function(spec):
        raise NotSupported(
            f"type 'pytorch_elastic' starts a .py file, and script={spec.script!r} is a command",
            hint="type='binary' starts a command; it may be torchrun itself",
        )


def survived(workers: Sequence[Worker], bounds: Bounds, returned: Collection[int] = ()) -> frozenset[int]:
    """Numbers of the lost workers without which the attempt goes on, or has ended well. `returned`: of those that were
    started again."""
    lost = frozenset(worker.number for worker in workers[1:] if _is_lost(worker, worker.number in returned))
    if workers[0].stage is Stage.ENDED and not workers[0].failed:  # nothing is left that they could join
        return lost | {number for number in returned if workers[number].failed}
    enough = len(workers) - len(lost) >= bounds.least
    return lost if enough and not workers[0].failed else frozenset()


def is_loss(report: Mapping[str, Any], *, returned: bool) -> bool:
    """Whether a worker that ended like this was killed, and has not failed by itself. `returned`: it was started
    again."""
    # one that came back too late, or while the others were lost, too, finds no rendezvous
    alone = returned and any(word in str(report["message"]) for word in _RENDEZVOUS)
    return report["reason"] in _KILLED or alone


def _is_lost(worker: Worker, returned: bool) -> bool:
    if worker.stage is Stage.LOST:
        return worker.lost_reason is not Reason.START_FAILED
    return worker.report is not None and is_loss(worker.report, returned=returned)


def who_is_missing(numbers: Collection[int], workers: int) -> str:
    """The message of an attempt that goes on without these of so many."""
    if not numbers:
        return ""
    listed = ", ".join(map(str, sorted(numbers)))
    who = f"worker {listed} was" if len(numbers) == 1 else f"workers {listed} were"
    return f"{who} lost; {workers - len(numbers)} of {workers} go on"
