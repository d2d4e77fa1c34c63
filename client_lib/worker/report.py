"""Puts a worker's report together from its ranks' ends, their error files and their last lines, and as JSON.

Standard library only, Python >= 3.8.
"""

import datetime
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from client_lib.worker import port_holder
from client_lib.worker.outcome import (
    LAST_LINES,
    Ended,
    Outcome,
    exception_of_error_file,
    exception_of_lines,
)
from client_lib.worker.plan import PROTOCOL, WorkerPlan
from client_lib.worker.ranks import Exit

_ERROR_FILE_MAX = 1024 * 1024


def ended(exit: Exit, error_file: str, lines: Sequence[List[str]], owner: str) -> Ended:
    """One rank's end. `lines`: the last lines of its stdout and its stderr. `owner`: whose job it is."""
    text, written_at = _read(error_file)
    exception, traceback = exception_of_error_file(text) if text is not None else (None, None)
    if exit.exit_code != 0 and exception is None:
        for stream in reversed(lines):
            exception, traceback = exception_of_lines(stream)
            if exception:
                break
    failed_at = exit.ended_at if written_at is None else min(written_at, exit.ended_at)
    stdout, stderr = (lines[0], lines[1]) if len(lines) == 2 else ([], [])
    # what a rank says last is mostly on stderr; a chatty stdout shall not push it out
    last = (stdout[-(LAST_LINES - min(len(stderr), LAST_LINES // 2)) :] + stderr)[-LAST_LINES:]
    failed = exit.exit_code != 0
    return Ended(
        exit.rank,
        exit.exit_code,
        exit.signal,
        exit.started_at,
        exit.ended_at,
        failed_at,
        exit.stopped_by_us,
        port_holder.named(exception, owner) if failed else None,
        traceback if failed else None,
        last,
    )


def failed_below(error_file: str, said: Sequence[str], rank: int) -> int:
    """Which rank an elastic agent's failure is; the agent's own, if nothing tells. `said`: the agent's last lines."""
    from client_lib.worker.elastic import failed_rank  # here: few workers have an agent

    text, _ = _read(error_file)
    found = failed_rank(text, said)
    return rank if found is None else found


def _read(error_file: str) -> Tuple[Optional[str], Optional[float]]:
    """(text, when it was written); (None, None) without one."""
    try:
        with open(error_file, encoding="utf-8", errors="replace") as file:
            return file.read(_ERROR_FILE_MAX), os.fstat(file.fileno()).st_mtime
    except OSError:
        return None, None


def time_text(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat(timespec="microseconds")


def as_json(
    plan: WorkerPlan,
    outcome: Outcome,
    ranks: Sequence[Ended],
    started_at: Optional[float],
    ended_at: float,
    log_end_seq: int,
    log_end_offset: int,
) -> Dict[str, Any]:
    """The content of report.json. `log_end_seq` and `log_end_offset`: of the record that would come next."""
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
        "ranks": [rank_as_json(rank) for rank in sorted(ranks, key=lambda rank: rank.rank)],
        "log_end_seq": log_end_seq,
        "log_end_offset": log_end_offset,
    }


def rank_as_json(rank: Ended) -> Dict[str, Any]:
    data = rank._asdict()
    for name in ("started_at", "ended_at", "failed_at"):
        data[name] = time_text(data[name])
    if not rank.failed:
        data["failed_at"] = None
    return data


def rank_of_json(data: Dict[str, Any]) -> Ended:
    """The opposite, so that a runtime can ask `first_failure` over the ranks of all workers."""
    known = dict(data)
    known["failed_at"] = known.get("failed_at") or known["ended_at"]
    for name in ("started_at", "ended_at", "failed_at"):
        known[name] = datetime.datetime.fromisoformat(known[name]).timestamp()
    return Ended(**{name: known[name] for name in Ended._fields})
