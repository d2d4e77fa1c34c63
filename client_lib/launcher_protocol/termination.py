"""The termination message of a container: a report that is cut to the size that the cluster keeps,
even if no server was reached. Pure.
"""

import functools
import itertools
import json
from typing import Iterator, List

from client_lib.launcher_protocol.outcome import LAST_LINES
from client_lib.launcher_protocol.report import RankReport, Report, with_texts

TERMINATION_MESSAGE_MAX = 4000
"""Bytes; Kubernetes keeps 4096."""
_TEXT_MAX = 400
"""Characters of a message or an exception."""


def termination_message(report: Report) -> bytes:
    """The report as JSON of at most TERMINATION_MESSAGE_MAX bytes. All fields but the stacks are
    kept, texts are cut, and fewer lines, files and ranks are named; failed ranks take precedence
    over others, and the first failing rank keeps its last lines."""
    without_stacks = report.copy()
    without_stacks.pop("stacks", None)
    for smaller in _ever_smaller(without_stacks):
        text = json.dumps(smaller, ensure_ascii=False, separators=(",", ":"))
        message = text.encode("utf-8", "replace")
        if len(message) <= TERMINATION_MESSAGE_MAX:
            return message
    raise AssertionError("a report without ranks and with short texts fits")


def _ever_smaller(report: Report) -> Iterator[Report]:
    yield report
    first = report.get("first_failing_rank")
    failed = [rank for rank in report["ranks"] if rank.get("exit_code") != 0]
    guilty = [rank for rank in failed if rank["rank"] == first]
    fewer_ranks: List[List[RankReport]] = [report["ranks"], failed, guilty, []]
    shorter_texts = (_TEXT_MAX, _TEXT_MAX // 4)
    fewer_lines = (LAST_LINES, 20, 8, 3, 0)
    for text_max, ranks, lines in itertools.product(shorter_texts, fewer_ranks, fewer_lines):
        smaller = report.copy()
        smaller["ranks"] = []
        for rank in ranks:
            short = rank.copy()
            short["traceback"] = None
            short["last_lines"] = []
            if rank["rank"] == first:
                short["last_lines"] = _last(rank.get("last_lines") or [], lines)
            smaller["ranks"].append(short)
        if "last_lines" in report:
            smaller["last_lines"] = _last(report["last_lines"], lines)
        if "outputs" in report:
            smaller["outputs"] = report["outputs"].copy()
            smaller["outputs"]["left_out"] = report["outputs"]["left_out"][:lines]
        yield with_texts(smaller, functools.partial(shortened, most=text_max))


def _last(lines: List[str], most: int) -> List[str]:
    return lines[-most:] if most else []


def shortened(text: str, most: int) -> str:
    """The text, cut to at most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"
