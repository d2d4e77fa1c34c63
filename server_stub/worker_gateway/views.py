"""Values that describe remote workers, and the next order for one of them. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from client_lib.spec.request import WorkerOrder
from client_lib.spec.states import Reason
from client_lib.worker.report import Report

State = Literal["preparing", "ready", "started", "ended"]
NOTICED_S = 120.0
"""A job mentions an agent that has been silent for this long; agents ask for orders every 30 s."""
SILENT_S = 600.0
"""The longest wait for a silent agent: of an ended peer, of a complete gang, and for a log that does not grow."""


Quiet = tuple[tuple[int, float], ...]
"""Ranks that do nothing (client_lib.worker.observer), and since when (monotonic seconds)."""


def quiet_since(told: Mapping[int, float], before: Quiet, now: float) -> Quiet:
    """The quiet ranks, by a worker's message, which tells for how many seconds each has done nothing. A rank that was
    quiet `before` keeps its time, so that a repeated message changes nothing."""
    known = dict(before)
    bounded = {rank: min(max(0.0, seconds), 1e9) for rank, seconds in told.items()}  # the job can send any number
    return tuple((rank, known.get(rank, now - bounded[rank])) for rank in sorted(told))


Processes = list[dict[str, Any]]
"""The processes of a worker as its launcher has written them (client_lib.worker.stacks), not checked."""


class StackDump(NamedTuple):
    """The answer of one worker that was asked for the stacks of its ranks."""

    worker: int
    processes: Processes
    problem: str = ""
    """The reason why there are none, as a sentence."""


@dataclass(frozen=True)
class WorkerGroup:
    """One attempt whose workers connect to this server."""

    job_id: str
    job_name: str
    attempt: int
    folder: Path
    """`attempt_dir`; it holds the file of the start barrier."""
    workers: tuple[Path, ...]
    """`worker_dir` of each worker, for `log/`, `report.json` and `results/`."""
    processes_per_worker: int
    snapshot: Path | None
    """The archive that these workers may fetch."""
    function: Path | None
    log_limit_bytes: int
    """Bound for the log of one worker, whose head and tail are kept."""
    inputs: Callable[[], Awaitable[Iterator[bytes]]] | None = None
    """Packs what these workers get of other jobs as a tar.gz; None: nothing."""
    may_return: Callable[[WorkerView], bool] | None = None
    """True for a lost worker that another pod, or another start of its container, may replace (elastic jobs). None:
    the first pod owns a worker to the end, and the first failed worker stops the others; with a function the runtime
    alone stops an attempt, for it may survive a failure."""


class PodStart(NamedTuple):
    """One start of the container of one pod."""

    pod_uid: str
    start: str
    """"" if it is not known or does not matter."""


@dataclass(frozen=True)
class WorkerView:
    """The state of one worker, as it has reported it."""

    worker: int
    pod_uid: str | None = None
    """The pod that owns this worker: the first to connect, or its replacement. None: none has connected."""
    pod: str | None = None
    """The name of that pod."""
    start: str = ""
    """The start of its container that owns this worker."""
    former: tuple[PodStart, ...] = ()
    """Previous owners; they never become owners again."""
    displaced: bool = False
    """Its owner is lost: another pod has asked for its place and was refused."""
    state: State | None = None
    """The latest reported state; survives a restart of the server."""
    next_seq: int = 0
    """Number of the next expected record."""
    signs_of_life: int = 0
    """A counter that changes when a rank has written something, even if that is no record yet."""
    quiet: Quiet = ()
    """Its ranks that do nothing now."""
    missing: int = 0
    """Lost records: those that did not fit into the worker's spool while this server was down."""
    report: Report | None = None
    """Its report.json."""
    silent_s: float = 0.0
    """Seconds since its agent was last heard of, if they are more than NOTICED_S; without the time before its
    first request and the time in which no server ran."""

    @property
    def drained(self) -> bool:
        """The report and the whole log have arrived."""
        return self.report is not None and self.next_seq >= self.report["log_end_seq"]

    @property
    def failed(self) -> bool:
        return self.report is not None and self.report["reason"] != Reason.COMPLETED

    @property
    def runs_ranks(self) -> bool:
        return self.state == "started" and self.report is None

    @property
    def change_key(self) -> Hashable:
        """A value that changes with every change but those of the log and the signs of life."""
        return (
            *(self.pod_uid, self.start, self.displaced, self.state, self.missing),
            *(self.report is not None, self.drained, self.quiet),
        )

    def has_lost_place(self, start: PodStart) -> bool:
        """True for a previous owner, and for other starts of a pod that has been replaced by another pod."""
        return start in self.former or any(each.pod_uid == start.pod_uid != self.pod_uid for each in self.former)


def next_order(
    worker: WorkerView, others: Sequence[WorkerView], barrier_open: bool, stop: WorkerOrder | None
) -> WorkerOrder:
    """The next order for a worker. `others`: the workers that it waits for before it leaves."""
    if worker.state == "ended":
        leaves = worker.drained and all(other.drained for other in others)
        return WorkerOrder(do="exit" if leaves else "wait")
    if stop is not None:
        return stop
    return WorkerOrder(do="go" if barrier_open and worker.state in ("ready", "started") else "wait")


def must_stay(worker: WorkerView, group: WorkerGroup) -> bool:
    """True if a worker that has ended must wait for the others.

    Worker 0 and failed workers must: the operator takes the end of the master, or the first failed pod, for the end of
    the whole job and deletes all running pods. In an elastic job it takes the first success of any pod for that, and a
    lost worker must leave soon, because only then it is started again.
    """
    if group.may_return is None:
        return worker.worker == 0 or worker.failed
    return not (worker.failed and group.may_return(worker))
