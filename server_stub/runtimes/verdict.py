"""What the workers of a gang need next, and how the attempt ended: the same for every runtime. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport, WorkerInfo
from client_lib.worker import outcome
from client_lib.worker.report import rank_of_json


class Stage(Enum):
    """How far a worker is."""

    STARTING = auto()
    READY = auto()
    """Prepared; its ranks wait for the other workers."""
    STARTED = auto()
    ENDED = auto()
    """Its report is in."""
    LOST = auto()
    """Its launcher died without a report, and nothing of it lives any more."""

    @property
    def over(self) -> bool:
        return self in (Stage.ENDED, Stage.LOST)


@dataclass(frozen=True)
class Worker:
    """What is known of one worker."""

    number: int
    stage: Stage
    host: str
    report: dict[str, Any] | None = None
    lost_because: str = ""
    lost_reason: Reason = Reason.LAUNCHER_LOST
    warm: bool | None = None
    """Its ranks came out of the warm pool; None: they don't run yet."""
    fresh_because: str | None = None
    """Why not, where there was a pool."""

    @property
    def failed(self) -> bool:
        return self.stage is Stage.LOST or (self.report is not None and self.report["reason"] != Reason.COMPLETED)

    def info(self, **known: Any) -> WorkerInfo:
        """`known`: fields of which somebody knows more."""
        state = {Stage.STARTED: "running", Stage.ENDED: "ended", Stage.LOST: "ended"}.get(self.stage, "starting")
        report = self.report or {}
        return WorkerInfo.model_validate(
            {
                "worker": self.number,
                "state": state,
                "host": self.host,
                "message": self.lost_because or report.get("message"),
                "exit_code": report.get("exit_code"),
                "warm": self.warm,
                **known,
            }
        )

    def ranks(self) -> list[RankReport]:
        return [RankReport.model_validate(rank) for rank in (self.report or {}).get("ranks", ())]


class Step(Enum):
    WAIT = auto()
    GO = auto()
    """Order those that are ready to start their ranks."""
    STOP = auto()
    """Order all that are not over to stop."""


def next_step(workers: Sequence[Worker], stopping: bool) -> Step:
    """All or none: ranks start when every worker is prepared; the first that fails ends the others."""
    if stopping or any(worker.failed for worker in workers):
        return Step.STOP
    return Step.WAIT if any(worker.stage is Stage.STARTING for worker in workers) else Step.GO


def verdict(workers: Sequence[Worker], stopped: bool, lost_first: bool) -> tuple[Reason, str]:
    """Why the attempt ended, when all its workers are over.

    `stopped`: it was ordered to, before any worker failed. `lost_first`: the first that failed was lost.
    """
    if not any(worker.failed for worker in workers):
        return Reason.COMPLETED, "every rank ended with exit code 0"
    if stopped:
        return Reason.CANCELLED, "stopped"
    lost = next((worker for worker in workers if worker.stage is Stage.LOST), None)
    first = first_failing(workers)
    if lost is not None and (lost_first or first is None):
        return lost.lost_reason, lost.lost_because
    if first is not None:
        return Reason(first["reason"]), str(first["message"])
    return Reason.CANCELLED, "stopped"


def first_failing(workers: Sequence[Worker]) -> dict[str, Any] | None:
    """The report of the worker that failed first, not of one that was stopped or died of it."""
    own = [w.report for w in workers if w.report and w.report["reason"] not in (Reason.COMPLETED, Reason.CANCELLED)]
    if len(own) < 2:
        return own[0] if own else None
    by_rank = {rank["rank"]: (report, rank) for report in own for rank in report["ranks"]}
    cause = outcome.first_failure([rank_of_json(rank) for _, rank in by_rank.values()])
    return by_rank[cause.rank][0] if cause else own[0]


def ended_at(workers: Sequence[Worker]) -> datetime | None:
    """The last end that a report tells; None: there is no report."""
    times = [datetime.fromisoformat(worker.report["ended_at"]) for worker in workers if worker.report]
    return max(times, default=None)
