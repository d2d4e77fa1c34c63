"""Decides for every runtime the next step of a gang, which losses of workers an elastic gang
survives, and why its attempt ended. Pure."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

from client_lib.launcher_protocol import exceptions, outcome
from client_lib.launcher_protocol.report import Report, rank_of_json
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.stacks import RankStacks, groups, named, read_worker
from client_lib.spec.states import Reason
from client_lib.spec.wire import Failure, WorkerInfo
from client_lib.worker.preflight import PEER_LOST
from server_stub.runtimes.lost_peers import finished_peers
from server_stub.worker_gateway.worker import Quiet


class Stage(Enum):
    STARTING = auto()
    READY = auto()
    """Prepared; its ranks wait for the other workers."""
    STARTED = auto()
    ENDED = auto()
    """Its report is in."""
    LOST = auto()
    """Its launcher died without a report, and no process of the worker lives any more."""

    @property
    def over(self) -> bool:
        return self in (Stage.ENDED, Stage.LOST)


@dataclass(frozen=True)
class WorkerStatus:
    """The state of one worker, as its runtime knows it."""

    number: int
    stage: Stage
    host: str
    report: Report | None = None
    lost_because: str = ""
    lost_reason: Reason = Reason.LAUNCHER_LOST
    warm: bool | None = None
    """Its ranks were forked from the warm pool; None: they don't run yet."""
    fresh_because: str | None = None
    """The reason why they were not, if there was a pool."""
    quiet: Quiet = ()
    """Its ranks that do nothing now."""
    threads: int | None = None
    """See `WorkerInfo`."""

    @property
    def failed(self) -> bool:
        return self.stage is Stage.LOST or (
            self.report is not None and self.report["reason"] != Reason.COMPLETED
        )

    def info(self, **known: Any) -> WorkerInfo:
        """`known`: fields that the runtime knows better."""
        state = {Stage.STARTED: "running", Stage.ENDED: "ended", Stage.LOST: "ended"}.get(
            self.stage, "starting"
        )
        reported = self.report["message"] if self.report else None
        fields = {
            "worker": self.number,
            "state": state,
            "host": self.host,
            "message": self.lost_because or reported,
            "exit_code": self.report["exit_code"] if self.report else None,
            "warm": self.warm,
            "threads": self.threads,
        }
        return WorkerInfo.model_validate(fields | known)


class Step(Enum):
    WAIT = auto()
    GO = auto()
    """Order the workers that are ready to start their ranks."""
    STOP = auto()
    """Order all workers that have not ended to stop."""


def next_step(workers: Sequence[WorkerStatus], stopping: bool) -> Step:
    """All or none: ranks start when every worker is prepared, and the first
    failure ends all workers.
    """
    if stopping or any(worker.failed for worker in workers):
        return Step.STOP
    return Step.WAIT if any(worker.stage is Stage.STARTING for worker in workers) else Step.GO


# --- losses of workers that an attempt of `pytorch_elastic` survives
#
# The ranks of a killed agent, or launcher, die with it. The remaining agents form a smaller group,
# which the restarted worker joins again. The group needs worker 0, which holds the rendezvous, and
# `elastic_min_workers`. A worker whose ranks have failed more often than allowed is not lost but
# failed, and ends the attempt.

_KILLED = (Reason.SIGNAL, Reason.OUT_OF_MEMORY, Reason.LAUNCHER_LOST)


@dataclass(frozen=True)
class ElasticBounds:
    least: int
    """Number of workers sufficient to continue."""
    returns: int
    """Number of restarts of each lost worker."""


def elastic_bounds(spec: JobSpec) -> ElasticBounds | None:
    """None: the loss of any worker ends the attempt."""
    if spec.type is not JobType.PYTORCH_ELASTIC:
        return None
    least = (
        spec.elastic_min_workers if isinstance(spec.elastic_min_workers, int) else spec.n_workers
    )
    return ElasticBounds(
        least, 5 if spec.elastic_max_restarts is None else spec.elastic_max_restarts
    )


def survived(
    workers: Sequence[WorkerStatus], bounds: ElasticBounds, returned: Collection[int] = ()
) -> frozenset[int]:
    """Numbers of the lost workers without which the attempt continues, or has succeeded.
    `returned`: the restarted.
    """
    lost = frozenset(
        worker.number
        for worker in workers[1:]
        if (worker.stage is Stage.LOST and worker.lost_reason is not Reason.START_FAILED)
        or (
            worker.report is not None and is_loss(worker.report, returned=worker.number in returned)
        )
    )
    # there is no group to join any more
    if workers[0].stage is Stage.ENDED and not workers[0].failed:
        return lost | {number for number in returned if workers[number].failed}
    enough = len(workers) - len(lost) >= bounds.least
    return lost if enough and not workers[0].failed else frozenset()


def is_loss(report: Report, *, returned: bool) -> bool:
    """True if a worker with this report was killed, and has not failed by itself.
    `returned`: it is a restarted one.
    """
    # a worker that returns too late, or while the others are lost, too, finds no rendezvous
    alone = returned and outcome.is_peer_loss(None, str(report["message"]), None, ())
    return report["reason"] in _KILLED or alone


def who_is_missing(numbers: Collection[int], workers: int) -> str:
    """The message of an attempt that continues without these of its workers."""
    if not numbers:
        return ""
    were = "was" if len(numbers) == 1 else "were"
    return f"{named(numbers, 'worker')} {were} lost; {workers - len(numbers)} of {workers} go on"


# --- the reason of an end


class Verdict(NamedTuple):
    reason: Reason
    message: str
    first_failing: Failure | None = None
    """See `Observation`."""


_STOPPED = Verdict(Reason.CANCELLED, "stopped")
_MACHINE = (Reason.OUT_OF_MEMORY, Reason.STORAGE_FULL, Reason.NODE_LOST, Reason.PREEMPTED)
"""Reasons for the loss of a worker that have nothing to do with an order to stop."""


def verdict(workers: Sequence[WorkerStatus], stopped: bool, lost_first: bool) -> Verdict:
    """The verdict on an attempt whose workers are all over. `stopped`: it was ordered to stop
    before any worker failed. `lost_first`: the first worker that failed was lost."""
    if not any(worker.failed for worker in workers):
        return Verdict(Reason.COMPLETED, "every rank ended with exit code 0")
    if stopped:
        return _STOPPED
    ranks = [
        (worker.number, worker.report, rank_of_json(rank))
        for worker in workers
        if worker.report
        for rank in worker.report["ranks"]
    ]
    ends = [end for _, _, end in ranks]
    first = outcome.first_failure(ends)
    of_worker = _failed_as_a_whole(workers, first, lost_first)
    if of_worker is not None:
        return of_worker
    if first is None:
        return _STOPPED
    number, report = next((number, report) for number, report, end in ranks if end is first)
    if report["reason"] != Reason.CANCELLED and report.get("first_failing_rank") == first.rank:
        reason = Reason(report["reason"])
        message = str(report["message"])
    else:  # the launcher, which knows the ranks of its worker only, has named another rank
        found = outcome.of_ranks([first], cancelled=False, oom_kills=0)
        reason = Reason(found.reason)
        message = found.message
    exception = first.exception
    if note := finished_peers(first, ends):  # the rank's own exception is a consequence
        consequence = exceptions.headline(exception or "")
        has_it = consequence and consequence in message
        message = message.replace(consequence, note) if has_it else f"{message}; {note}"
        exception = f"{note}\n{exception}" if exception else note
    failure = Failure(
        worker=number,
        rank=first.rank,
        exit_code=first.code,
        signal=first.signal,
        exception=exception,
        traceback=first.traceback,
        last_lines=first.last_lines,
    )
    return Verdict(reason, message, failure)


def _failed_as_a_whole(
    workers: Sequence[WorkerStatus], first: outcome.Ended | None, lost_first: bool
) -> Verdict | None:
    """The failure of a worker without a failed rank (it was lost, or could not start), if
    that came before `first`.
    """
    only_lost_peer = first is None or first.lost_peer
    lost = [worker for worker in workers if worker.stage is Stage.LOST]
    for worker in lost:
        if lost_first or (only_lost_peer and worker.lost_reason in _MACHINE):
            return Verdict(worker.lost_reason, worker.lost_because)
    reports = [
        (worker.number, worker.report) for worker in workers if worker.failed and worker.report
    ]
    lost_peer = (Reason.PREFLIGHT_FAILED, PEER_LOST)  # the check of another worker had ended
    for number, report in sorted(
        reports, key=lambda each: (each[1]["reason"], each[1].get("exit_code")) == lost_peer
    ):
        if report["reason"] == Reason.CANCELLED or report["ranks"]:
            continue
        ended = datetime.fromisoformat(report["ended_at"]).timestamp()
        if first is None or only_lost_peer or ended <= first.failed_at:
            failing = None
            if report["reason"] in (Reason.SETUP_FAILED, Reason.PREFLIGHT_FAILED):
                lines = report.get("last_lines", [])
                failing = Failure(worker=number, exit_code=report["exit_code"], last_lines=lines)
            return Verdict(Reason(report["reason"]), str(report["message"]), failing)
    return Verdict(lost[0].lost_reason, lost[0].lost_because) if lost and first is None else None


def quiet(workers: Sequence[WorkerStatus]) -> Quiet:
    """The ranks of all workers that do nothing now."""
    return tuple(each for worker in workers for each in worker.quiet)


_NOTES_MAX = 8
"""Largest number of sentences that are taken from the report of one worker."""
_NOTE_MAX = 500
"""Longest sentence, in characters."""


def notes(workers: Sequence[WorkerStatus]) -> tuple[str, ...]:
    """The sentences that the workers report for the job's events."""
    return tuple(
        note[:_NOTE_MAX]
        for worker in workers
        if worker.report
        for note in worker.report.get("notes", [])[:_NOTES_MAX]
    )


_LINES_MAX = 30
"""Largest number of places that are kept: they are part of the job's record."""
_LINE_MAX = 300
"""Longest text of a place, in characters."""


def last_stacks(workers: Sequence[WorkerStatus]) -> tuple[str, ...]:
    """The places of the ranks before they were stopped: a line for all ranks that stood at one
    place. (): the ranks had printed something shortly before, or had failed."""
    found: list[RankStacks] = []
    for worker in workers:
        processes = worker.report.get("stacks", []) if worker.report else []
        # a worker may send anything
        with suppress(ValueError, TypeError, AttributeError, OverflowError):
            found += read_worker(worker.number, processes)
    lines = groups(sorted(found, key=lambda rank: rank.rank))
    more = [f"and {len(lines) - _LINES_MAX} more"] if len(lines) > _LINES_MAX else []
    return (*(line[:_LINE_MAX] for line in lines[:_LINES_MAX]), *more)


def started_at(workers: Sequence[WorkerStatus]) -> datetime | None:
    """The first start of a rank by the reports; None without any."""
    ranks = (rank for worker in workers if worker.report for rank in worker.report["ranks"])
    return min((datetime.fromisoformat(rank["started_at"]) for rank in ranks), default=None)


def ended_at(workers: Sequence[WorkerStatus]) -> datetime | None:
    """The latest end of a worker by its report; None without any report."""
    times = [
        datetime.fromisoformat(worker.report["ended_at"]) for worker in workers if worker.report
    ]
    return max(times, default=None)
