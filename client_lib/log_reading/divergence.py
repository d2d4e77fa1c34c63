"""The first line in which the ranks of a job differ: entries in, places out. Pure.

The ranks are compared line by line, stdout with stdout and stderr with stderr, because the order of
lines between the two is chance. Lines are the same if only numbers, times and addresses in them
differ. Rank 0 may print more than the others (`if rank == 0:`): only a line of the others that rank
0 never prints is a difference. The client compares, so that it works with every server: the log is
read twice, and eight bytes are held per line.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import zip_longest
from typing import NamedTuple, TypedDict

from client_lib.launcher_protocol.record import GOES_ON, MAX_TEXT, PROGRESS
from client_lib.log_reading.reader import LogEntry
from client_lib.spec.wording import spans

BEFORE = 2
"""Number of lines that are kept before the line that differs."""
AFTER = 6
"""Number of lines that are kept from the line that differs on: enough for the end of a short
traceback.
"""
_SIDES_MAX = 8  # in a text
_COMPARED = ("stdout", "stderr")
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[-+]?\d[\d.,:_]*(?:e[-+]?\d+)?", re.IGNORECASE)


class Side(TypedDict):
    """Ranks that print the same line at the place, with the texts of the first of these ranks."""

    ranks: list[int]
    before: list[str]
    after: list[str]
    """The line that differs, and the next ones; empty: these ranks have printed no more."""


class Divergence(NamedTuple):
    """The place in one stream."""

    stream: str
    time: datetime
    """Time of the first of the lines that differ."""
    agreed: int
    """Number of lines before, which all ranks print."""
    sides: list[Side]
    """Most ranks first."""


def find(read: Callable[[], Iterable[LogEntry]], ranks: Collection[int]) -> list[Divergence]:
    """The first difference in each stream that has one, the earliest first. `read` returns the
    entries of one attempt at each call; `ranks` take part even if they print nothing."""
    printed = {stream: {rank: array("q") for rank in ranks} for stream in _COMPARED}
    for rank, entry in _lines(read()):
        printed[entry.stream].setdefault(rank, array("q")).append(hash(_masked(entry.text)))
    places = {stream: place for stream, of_ranks in printed.items() if (place := _place(of_ranks))}
    if not places:
        return []
    seen: Counter[tuple[str, int]] = Counter()
    near: defaultdict[tuple[str, int], tuple[list[LogEntry], list[LogEntry]]] = defaultdict(
        lambda: ([], [])
    )
    for rank, entry in _lines(read()):
        number = seen[entry.stream, rank]
        seen[entry.stream, rank] += 1
        begin = places[entry.stream][1].get(rank) if entry.stream in places else None
        if begin is not None and begin - BEFORE <= number < begin + AFTER:
            near[entry.stream, rank][number >= begin].append(entry)
    found = []
    for stream, (agreed, begins) in places.items():
        of_ranks = {rank: near[stream, rank] for rank in sorted(begins)}
        times = [after[0].time for _, after in of_ranks.values() if after]
        same: defaultdict[str | None, list[int]] = defaultdict(list)
        for rank, (_, after) in of_ranks.items():
            same[_masked(after[0].text) if after else None].append(rank)
        sides = []
        for alike in sorted(same.values(), key=lambda alike: (-len(alike), alike)):
            texts = [[entry.text for entry in entries] for entries in of_ranks[alike[0]]]
            sides.append(Side(ranks=alike, before=texts[0], after=texts[1]))
        if times:  # else the lines have been removed since
            found.append(Divergence(stream, min(times), agreed, sides))
    return sorted(found, key=lambda each: each.time)


def _place(printed: Mapping[int, array[int]]) -> tuple[int, dict[int, int]] | None:
    """Number of lines on which all ranks agree, and for each rank the index of the line that
    follows them; None: the ranks differ nowhere. `printed`: the lines of each rank, as numbers."""
    others = {rank: lines for rank, lines in printed.items() if rank != 0}
    length = max(map(len, others.values()), default=0)
    rows = zip_longest(*others.values())
    agreed = next((at for at, row in enumerate(rows) if len(set(row)) > 1), length)
    own = printed.get(0)
    begin = 0
    if own is not None:
        for at in range(agreed):
            try:
                begin = own.index(next(iter(others.values()))[at], begin) + 1
            except ValueError:
                agreed = at
                break
        else:
            # A rank agrees with the group whose next line it prints, even if it printed other lines
            # before.
            nexts = {lines[agreed] for lines in others.values() if len(lines) > agreed}
            begin = next((at for at in range(begin, len(own)) if own[at] in nexts), begin)
    if agreed == length:
        return None
    return agreed, dict.fromkeys(others, agreed) | ({} if own is None else {0: begin})


def as_text(found: Divergence) -> list[str]:
    """Lines for people: the lines of each side under `[ranks]`, and a `>` at the line that
    differs."""
    lines = [
        (
            f"{found.stream}: the ranks differ after {found.agreed} equal lines, at "
            f"{found.time:%Y-%m-%dT%H:%M:%SZ}"
        )
    ]
    for side in found.sides[:_SIDES_MAX]:
        place, *rest = side["after"] or ["(no more lines)"]
        shown = (
            [f"  {text}" for text in side["before"]]
            + [f"> {place}"]
            + [f"  {text}" for text in rest]
        )
        lines += [f"[{spans(side['ranks'])}] {text}" for text in shown]
    left_out = [rank for side in found.sides[_SIDES_MAX:] for rank in side["ranks"]]
    return [*lines, *([f"[{spans(left_out)}] print other lines again"] if left_out else [])]


def _lines(entries: Iterable[LogEntry]) -> Iterator[tuple[int, LogEntry]]:
    """Whole lines with their ranks, without progress."""
    begun: dict[tuple[int, str], LogEntry] = {}
    for entry in entries:
        if entry.rank is None or entry.kind == PROGRESS or entry.stream not in _COMPARED:
            continue
        before = begun.pop((entry.rank, entry.stream), None)
        whole = entry._replace(text=(before.text + entry.text)[:MAX_TEXT]) if before else entry
        if entry.kind == GOES_ON:
            begun[entry.rank, entry.stream] = whole
        else:
            yield entry.rank, whole
    for (rank, _), entry in begun.items():
        yield rank, entry


def _masked(text: str) -> str:
    return " ".join(_VARIES.sub("#", text).split())
