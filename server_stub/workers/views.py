"""What is known of workers elsewhere, as values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
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
    may_return: Callable[[WorkerView], bool] | None = None
    """Whether a worker whose pod, or container, was lost goes on in another one. None: never, the first that speaks
    owns the worker's place to the end, and the first that fails stops the others. Else whoever opened the attempt stops
    it, too: a failure may be survived."""


class Speaker(NamedTuple):
    """Who speaks for a worker: one start of the container of one pod."""

    pod_uid: str
    start: str
    """"": not said, or it doesn't matter."""


@dataclass(frozen=True)
class WorkerView:
    """What is known of one worker by its own words."""

    worker: int
    pod_uid: str | None = None
    """Who owns it: the first that said anything, or who was let in after it. None: nobody did."""
    pod: str | None = None
    """The name of that pod."""
    start: str = ""
    """The start of its container that speaks."""
    former: tuple[Speaker, ...] = ()
    """Those that had its place before; they never get it back."""
    displaced: bool = False
    """Its owner is lost: another one has come for its place, and was not let in."""
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
        return (
            *(self.pod_uid, self.start, self.displaced, self.state, self.missing),
            *(self.report is not None, self.drained),
        )

    def knows(self, speaker: Speaker) -> bool:
        """It is lost for good: it had this worker's place, or its pod had it before another pod."""
        return speaker in self.former or any(each.pod_uid == speaker.pod_uid != self.pod_uid for each in self.former)


class Order(NamedTuple):
    """What a worker is to do."""

    do: Literal["wait", "go", "stop", "exit"]
    grace_s: float | None = None
    """With `stop`: seconds between SIGTERM and SIGKILL; None: as its plan says."""


def order(
    worker: WorkerView,
    others: Sequence[WorkerView],
    gate_open: bool,
    stop: Order | None,
    *,
    stays: bool,
) -> Order:
    """What a worker is to do next. `others`: those that it has to wait for before it may leave, if it `stays`."""
    if worker.state == "ended":
        waits = stays and any(not other.drained for other in others)
        return Order("exit") if worker.drained and not waits else Order("wait")
    if stop is not None:
        return stop
    return Order("go") if gate_open and worker.state in ("ready", "started") else Order("wait")


def stays(worker: WorkerView, gang: Gang) -> bool:
    """Whether a worker that has ended has to wait for the others.

    Worker 0 and one that failed do: the operator takes the master's end, or the first failed pod, for the end of the
    whole job, and deletes all pods that still run. Where workers return, it takes the first success of any for that,
    and the sooner one that was lost leaves, the sooner it is started again.
    """
    if gang.may_return is None:
        return worker.worker == 0 or worker.failed
    return not (worker.failed and gang.may_return(worker))
