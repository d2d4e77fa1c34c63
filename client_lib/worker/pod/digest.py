"""A report that fits into a container's termination message: what a cluster tells when the server was never reached.

Pure. Standard library only, Python >= 3.8.
"""

import json
from typing import Any, Dict, Iterator, List, Optional

MAX_BYTES = 4000  # Kubernetes keeps 4096
_TEXT = 400  # characters of a sentence or an exception
_LINES = 50


def digest(report: Dict[str, Any]) -> bytes:
    """The report as JSON, with as much of it as fits: all fields are there, texts are shorter, ranks that failed go
    before others, and the first failing one keeps its last lines."""
    for smaller in _ever_smaller(report):
        text = json.dumps(smaller, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(text) <= MAX_BYTES:
            return text
    raise AssertionError("a digest without ranks and with short texts fits")


def _ever_smaller(report: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    yield report
    first = report.get("first_failing_rank")
    failed = [rank for rank in report["ranks"] if rank.get("exit_code") != 0]
    for text_max in (_TEXT, _TEXT // 4):
        for ranks in (report["ranks"], failed, [rank for rank in failed if rank["rank"] == first], []):
            for lines in (_LINES, 20, 8, 3, 0):
                kept = [_short_rank(rank, text_max, lines if rank["rank"] == first else 0) for rank in ranks]
                yield dict(report, message=_cut(report["message"], text_max), ranks=kept)


def _short_rank(rank: Dict[str, Any], text_max: int, lines: int) -> Dict[str, Any]:
    said: List[str] = rank.get("last_lines") or []
    exception: Optional[str] = rank.get("exception")
    return dict(
        rank,
        exception=None if exception is None else _cut(exception, text_max),
        traceback=None,
        last_lines=[_cut(line, text_max) for line in said[len(said) - min(lines, len(said)) :]],
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "\u2026"
