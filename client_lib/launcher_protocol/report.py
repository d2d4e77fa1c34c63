"""The report of a worker as JSON: how its ranks ended. The launcher writes the report, the server
reads it.
"""

import datetime
import json
from typing import (
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Sequence,
    TypedDict,
)

from client_lib.launcher_protocol.json_entries import ENTRIES_MAX, entries
from client_lib.launcher_protocol.outcome import LAST_LINES, Ended, WorkerOutcome, is_peer_loss
from client_lib.launcher_protocol.plan import PROTOCOL, WorkerPlan
from client_lib.launcher_protocol.script_end import script_end_of_json

_SIZE_MAX = 12 * 2**20
"""Characters of a report; the server takes 16 MiB."""
_TIMES = ("started_at", "ended_at", "failed_at")


class RankReport(TypedDict):
    """The end of one rank, as `outcome.Ended`, with times as texts."""

    rank: int
    exit_code: Optional[int]
    """None: a signal ended it."""
    signal: Optional[int]
    started_at: str
    ended_at: str
    failed_at: Optional[str]
    """Time of its exception, or of its end; None: it has not failed."""
    stopped_by_us: bool
    lost_peer: bool
    exception: Optional[str]
    traceback: Optional[str]
    last_lines: List[str]
    script_end: Optional[Dict[str, Any]]
    """Fields of `ScriptEnd`; None: the rank has told nothing."""


class ProcessReport(TypedDict):
    """One process of a rank, with its stacks."""

    rank: int
    pid: int
    parent: int
    name: str
    state: str
    """A letter, as /proc shows it."""
    wchan: Optional[str]
    """Function of the kernel in which it sleeps, if the kernel tells it."""
    cpu_s: float
    """Seconds of CPU time that it has used."""
    dump: Optional[str]
    """The text of faulthandler; None: see `why`."""
    why: Optional[str]
    """The reason why there is no dump."""


class FileLeftOut(TypedDict):
    """A file of the outputs that is not kept."""

    path: str
    size: int
    why: str


class _Outputs(TypedDict):
    kept: int
    """Number of files that are kept."""
    bytes: int
    """Their size."""
    left_out: List[FileLeftOut]
    """The first of the files that are not kept."""


class OutputsReport(_Outputs, total=False):
    """The outputs of a worker."""

    left_out_count: int
    """Number of files that are not kept."""
    problem: str
    """The reason why outputs are not kept, or not any more."""


class _Always(TypedDict):
    protocol: int
    worker: int
    attempt: int
    exit_code: int
    """Exit code of the worker: the exit code of the first failing rank, or 0."""
    reason: str
    """A value of client_lib.spec.states.Reason."""
    message: str
    started_at: Optional[str]
    """Time at which all ranks had been started; None: they were not."""
    ended_at: str
    first_failing_rank: Optional[int]
    ranks: List[RankReport]
    """In the order of their numbers; []: none was started."""
    log_end_seq: int
    """Number of the record of the log that would be next."""
    log_end_offset: int
    """Place of that record in the log."""


class Report(_Always, total=False):
    """Content of report.json. Times are texts of `time_text`. The server checks a report before it
    reads one (`server_stub.worker_gateway.report`)."""

    outputs: OutputsReport
    """The files that were kept, of jobs that keep outputs."""
    last_lines: List[str]
    """Lines that a failed setup or preflight has printed."""
    notes: List[str]
    """Sentences for the job's events."""
    stacks: List[ProcessReport]
    """Processes of silent ranks before their stop."""


def time_text(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(
        timespec="microseconds"
    )


def as_json(
    plan: WorkerPlan,
    outcome: WorkerOutcome,
    ranks: Sequence[Ended],
    started_at: Optional[float],
    ended_at: float,
    log_end_seq: int,
    log_end_offset: int,
) -> Report:
    """The content of report.json. `log_end_seq`, `log_end_offset`: seq and offset of the record
    that would be next.
    """
    in_order = sorted(ranks, key=lambda rank: rank.rank)
    return {
        "protocol": PROTOCOL,
        "worker": plan.worker,
        "attempt": plan.attempt,
        "exit_code": outcome.exit_code,
        "reason": outcome.reason,
        "message": outcome.message,
        "started_at": None if started_at is None else time_text(started_at),
        "ended_at": time_text(ended_at),
        "first_failing_rank": None if outcome.first is None else outcome.first.rank,
        "ranks": [rank_as_json(rank) for rank in in_order],
        "log_end_seq": log_end_seq,
        "log_end_offset": log_end_offset,
    }


def within_bounds(report: Report) -> Report:
    """The report as the server takes it: if it is too large, ranks that are not the first to fail
    lose most of their last lines, then all of them and their tracebacks, and the report its stacks;
    then the first failing rank loses most of its last lines, too."""
    whole = report
    for of_others, of_first in (
        (LAST_LINES, LAST_LINES),
        (10, LAST_LINES),
        (0, LAST_LINES),
        (0, 10),
    ):
        if _fits(report):
            break
        first = whole["first_failing_rank"]
        report = whole.copy()
        report["ranks"] = [
            _shortened(rank, of_first if rank["rank"] == first else of_others)
            for rank in whole["ranks"]
        ]
        if not of_others:
            report.pop("stacks", None)
    return report


def _fits(report: Report) -> bool:
    text = json.dumps(report)
    return len(text) <= _SIZE_MAX and entries(text) <= ENTRIES_MAX


def _shortened(rank: RankReport, lines: int) -> RankReport:
    shorter = rank.copy()
    shorter["last_lines"] = rank["last_lines"][-lines:] if lines else []
    if not lines:
        shorter["traceback"] = None
        shorter["script_end"] = None
    return shorter


def storable(value: object) -> Any:
    """Return the JSON value with escapes for what no UTF-8 can hold (names of files) and for NUL
    (PostgreSQL).
    """
    return with_texts(
        value, lambda text: text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    )


def with_texts(value: object, change: Callable[[str], str]) -> Any:
    """Return the JSON value with all of its texts, names of fields among them, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): with_texts(each, change) for name, each in value.items()}
    return [with_texts(each, change) for each in value] if isinstance(value, list) else value


def rank_as_json(rank: Ended) -> RankReport:
    return {
        "rank": rank.rank,
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "started_at": time_text(rank.started_at),
        "ended_at": time_text(rank.ended_at),
        "failed_at": time_text(rank.failed_at) if rank.failed else None,
        "stopped_by_us": rank.stopped_by_us,
        "lost_peer": rank.lost_peer,
        "exception": rank.exception,
        "traceback": rank.traceback,
        "last_lines": rank.last_lines,
        "script_end": rank.script_end and rank.script_end._asdict(),
    }


def rank_of_json(data: RankReport) -> Ended:
    """The inverse of `rank_as_json`. Reports of older launchers lack some fields."""
    known: Dict[str, Any] = {**data, "failed_at": data.get("failed_at") or data["ended_at"]}
    if "lost_peer" not in known:
        known["lost_peer"] = is_peer_loss(
            known["signal"], known["exception"], known["traceback"], known["last_lines"]
        )
    known.update(
        (name, datetime.datetime.fromisoformat(known[name]).timestamp()) for name in _TIMES
    )
    known["script_end"] = script_end_of_json(known.get("script_end"))
    return Ended(**{name: known[name] for name in Ended._fields})
