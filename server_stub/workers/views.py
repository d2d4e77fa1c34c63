"""What is known of workers elsewhere, as values. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

State = Literal["preparing", "ready", "started", "ended"]


@dataclass(frozen=True)
class Gang:
    """One attempt whose workers will talk to this server."""

    job_id: str
    job_name: str
    attempt: int
    folder: Path
    """`attempt_dir`: here lies whether the gate is open."""
    workers: tuple[Path, ...]
    """`worker_dir` of each; `log/`, `report.json` and `results/` come to lie in it."""
    processes_per_worker: int
    snapshot: Path | None
    """The archive that these workers may fetch, and nobody else's."""
    function: Path | None
    log_limit_bytes: int
    """Of one worker's log: head and tail are kept."""
    segment_bytes: int


@dataclass(frozen=True)
class WorkerView:
    """What is known of one worker by its own words."""

    worker: int
    pod_uid: str | None = None
    """Who owns it: the first that said anything. None: nobody did."""
    pod: str | None = None
    """The name of that pod."""
    state: State | None = None
    """As it said last; also after a restart of the server."""
    log_length: int = 0
    """Offset behind the last record that is here."""
    next_seq: int = 0
    """Of the record that comes next."""
    signs_of_life: int = 0
    """Another one than before when a rank has written something meanwhile, a record or not."""
    missing: int = 0
    """Records that are lost for good: what did not fit into the worker's spool while this server was away."""
    report: dict[str, Any] | None = None
    """Its report.json."""

    @property
    def drained(self) -> bool:
        """The report and the whole log are here."""
        return self.report is not None and self.next_seq >= self.report["log_end_seq"]

    @property
    def failed(self) -> bool:
        return self.report is not None and self.report["reason"] != "Completed"

    @property
    def news(self) -> Hashable:
        """Another one when more has changed than how long the log is, and whether it grows."""
        return self.pod_uid, self.state, self.missing, self.report is not None, self.drained


class Order(NamedTuple):
    """What a worker is to do."""

    do: Literal["wait", "go", "stop", "exit"]
    grace_s: float | None = None
    """With `stop`: seconds between SIGTERM and SIGKILL; None: as its plan says."""


def order(worker: WorkerView, others: Sequence[WorkerView], gate_open: bool, stop: Order | None) -> Order:
    """What a worker is to do next. `others`: those that it has to wait for before it may leave.

    Worker 0 and one that failed stay until the others are drained: the operator takes the master's end, or the first
    failed pod, for the end of the whole job, and deletes all pods that still run.
    """
    if worker.state == "ended":
        stays = (worker.worker == 0 or worker.failed) and any(not other.drained for other in others)
        return Order("exit") if worker.drained and not stays else Order("wait")
    if stop is not None:
        return stop
    return Order("go") if gate_open and worker.state in ("ready", "started") else Order("wait")
