"""The report of a worker as JSON: how its ranks ended. The launcher writes the report, the server
reads it.
"""

import datetime
import functools
import itertools
import json
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from client_lib.launcher_protocol.outcome import LAST_LINES, Ended, WorkerOutcome, is_peer_loss
from client_lib.launcher_protocol.plan import PROTOCOL, WorkerPlan

_TIMES = ("started_at", "ended_at", "failed_at")

Report = Dict[str, Any]
"""Content of report.json: the result of `as_json`, and for some workers `outputs`, `last_lines` of
a failed setup, and `stacks`, the processes of silent ranks before their stop.
`server_stub.worker_gateway.report` describes the fields."""


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


def storable(value: Any) -> Any:
    """Return the JSON value with escapes for what no UTF-8 can hold (names of files) and for NUL
    (PostgreSQL).
    """
    return _with_texts(
        value, lambda text: text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    )


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The JSON value with all of its texts, names of fields among them, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _with_texts(each, change) for name, each in value.items()}
    return [_with_texts(each, change) for each in value] if isinstance(value, list) else value


def rank_as_json(rank: Ended) -> Dict[str, Any]:
    times = {name: time_text(getattr(rank, name)) for name in _TIMES}
    return {**rank._asdict(), **times, **({} if rank.failed else {"failed_at": None})}


def rank_of_json(data: Dict[str, Any]) -> Ended:
    """The inverse of `rank_as_json`. Reports of older launchers lack some fields."""
    known = {**data, "failed_at": data.get("failed_at") or data["ended_at"]}
    if "lost_peer" not in known:
        known["lost_peer"] = is_peer_loss(
            known["signal"], known["exception"], known["traceback"], known["last_lines"]
        )
    known.update(
        (name, datetime.datetime.fromisoformat(known[name]).timestamp()) for name in _TIMES
    )
    return Ended(**{name: known[name] for name in Ended._fields})


# --- the termination message of a container: the cluster keeps it even if no server was reached

TERMINATION_MESSAGE_MAX = 4000  # bytes; Kubernetes keeps 4096
_TEXT_MAX = 400  # characters of a message or an exception


def termination_message(report: Mapping[str, Any]) -> bytes:
    """The report as JSON of at most TERMINATION_MESSAGE_MAX bytes. All fields but the stacks are
    kept, texts are cut, and fewer lines, files and ranks are named; failed ranks take precedence
    over others, and the first failing rank keeps its last lines."""
    for smaller in _ever_smaller(
        {name: value for name, value in report.items() if name != "stacks"}
    ):
        text = json.dumps(smaller, ensure_ascii=False, separators=(",", ":")).encode(
            "utf-8", "replace"
        )
        if len(text) <= TERMINATION_MESSAGE_MAX:
            return text
    raise AssertionError("a report without ranks and with short texts fits")


def _ever_smaller(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield report
    first = report.get("first_failing_rank")
    failed = [rank for rank in report["ranks"] if rank.get("exit_code") != 0]
    guilty = [rank for rank in failed if rank["rank"] == first]
    fewer: List[List[Dict[str, Any]]] = [report["ranks"], failed, guilty, []]
    for text_max, ranks, lines in itertools.product(
        (_TEXT_MAX, _TEXT_MAX // 4), fewer, (LAST_LINES, 20, 8, 3, 0)
    ):
        short_ranks = []
        for rank in ranks:
            last = rank.get("last_lines") or []
            kept = last[-lines:] if lines and rank["rank"] == first else []
            short_ranks.append(dict(rank, traceback=None, last_lines=kept))
        smaller = dict(report, ranks=short_ranks)
        if "last_lines" in report:
            smaller["last_lines"] = report["last_lines"][-lines:] if lines else []
        if "outputs" in report:
            smaller["outputs"] = dict(
                report["outputs"], left_out=report["outputs"]["left_out"][:lines]
            )
        yield _with_texts(smaller, functools.partial(shortened, most=text_max))


def shortened(text: str, most: int) -> str:
    """The text, cut to at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"
