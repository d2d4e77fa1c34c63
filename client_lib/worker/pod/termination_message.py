"""Shortens a report to a container's termination message, which the cluster keeps even if no server was ever reached.

Imported at the end of a pod only: compiling a module costs a zipapp milliseconds at each start. Pure.
"""

import json
from typing import Any, Dict, Iterator, List, Mapping, Optional

MAX_BYTES = 4000  # Kubernetes keeps 4096
_TEXT = 400  # characters of a message or an exception
_LINES = 50


def termination_message(report: Mapping[str, Any]) -> bytes:
    """The report as JSON in at most MAX_BYTES. All fields are kept and texts are cut; failed ranks take precedence over
    others, and the first failing rank keeps its last lines."""
    for smaller in _ever_smaller(report):
        text = json.dumps(smaller, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(text) <= MAX_BYTES:
            return text
    raise AssertionError("a report without ranks and with short texts fits")


def _ever_smaller(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield report
    first = report.get("first_failing_rank")
    failed = [rank for rank in report["ranks"] if rank.get("exit_code") != 0]
    for text_max in (_TEXT, _TEXT // 4):
        for ranks in (report["ranks"], failed, [rank for rank in failed if rank["rank"] == first], []):
            for lines in (_LINES, 20, 8, 3, 0):
                kept = [_short_rank(rank, text_max, lines if rank["rank"] == first else 0) for rank in ranks]
                yield dict(report, message=_cut(report["message"], text_max), ranks=kept)


def _short_rank(rank: Dict[str, Any], text_max: int, lines: int) -> Dict[str, Any]:
    last: List[str] = rank.get("last_lines") or []
    exception: Optional[str] = rank.get("exception")
    return dict(
        rank,
        exception=None if exception is None else _cut(exception, text_max),
        traceback=None,
        last_lines=[_cut(line, text_max) for line in last[len(last) - min(lines, len(last)) :]],
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"
