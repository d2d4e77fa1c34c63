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

from client_lib.launcher_protocol.record import MAX_TEXT, PROGRESS
from client_lib.log_reading.reader import LogEntry, whole_entries
from client_lib.spec.wording import spans

BEFORE = 2
"""Number of lines that are kept before the line that differs."""
AFTER = 6
"""Number of lines that are kept from the line that differs on: enough for the end of a short
traceback.
"""
_SIDES_MAX = 8
"""Most sides in a text."""
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
    places: dict[str, _Place] = {}
    for stream, of_ranks in printed.items():
        place = _place(of_ranks)
        if place is not None:
            places[stream] = place
    if not places:
        return []

    near = _near(places, read())
    found = []
    for stream, place in places.items():
        lines = {rank: near[stream, rank] for rank in sorted(place.begins)}
        times = [each.after[0].time for each in lines.values() if each.after]
        if times:  # else the lines have been removed since
            found.append(Divergence(stream, min(times), place.agreed, _sides(lines)))
    return sorted(found, key=lambda each: each.time)


class _Place(NamedTuple):
    """The place in one stream at which the ranks begin to differ."""

    agreed: int
    """Number of lines on which all ranks agree."""
    begins: dict[int, int]
    """Index of the next line of each rank, after the lines on which all ranks agree."""


class _Near(NamedTuple):
    """The lines of one rank around the place."""

    before: list[LogEntry]
    after: list[LogEntry]


def _near(
    places: Mapping[str, _Place], entries: Iterable[LogEntry]
) -> Mapping[tuple[str, int], _Near]:
    """The lines around the places, by stream and rank."""
    seen: Counter[tuple[str, int]] = Counter()
    near: defaultdict[tuple[str, int], _Near] = defaultdict(lambda: _Near([], []))
    for rank, entry in _lines(entries):
        number = seen[entry.stream, rank]
        seen[entry.stream, rank] += 1
        if entry.stream not in places:
            continue
        begin = places[entry.stream].begins.get(rank)
        if begin is None:
            continue
        if begin - BEFORE <= number < begin:
            near[entry.stream, rank].before.append(entry)
        elif begin <= number < begin + AFTER:
            near[entry.stream, rank].after.append(entry)
    return near


def _sides(lines: Mapping[int, _Near]) -> list[Side]:
    """The ranks by the line that they print at the place."""
    alike: defaultdict[str | None, list[int]] = defaultdict(list)
    for rank, near in lines.items():
        alike[_masked(near.after[0].text) if near.after else None].append(rank)
    sides = []
    for ranks in sorted(alike.values(), key=lambda ranks: (-len(ranks), ranks)):
        first = lines[ranks[0]]
        before = [entry.text for entry in first.before]
        after = [entry.text for entry in first.after]
        sides.append(Side(ranks=ranks, before=before, after=after))
    return sides


def _place(printed: Mapping[int, array[int]]) -> _Place | None:
    """None: the ranks differ nowhere. `printed`: the lines of each rank, as numbers."""
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
    begins = dict.fromkeys(others, agreed)
    if own is not None:
        begins[0] = begin
    return _Place(agreed, begins)


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
        before = [f"  {text}" for text in side["before"]]
        after = [f"  {text}" for text in rest]
        for text in [*before, f"> {place}", *after]:
            lines.append(f"[{spans(side['ranks'])}] {text}")
    left_out = [rank for side in found.sides[_SIDES_MAX:] for rank in side["ranks"]]
    if left_out:
        lines.append(f"[{spans(left_out)}] print yet other lines")
    return lines


def _lines(entries: Iterable[LogEntry]) -> Iterator[tuple[int, LogEntry]]:
    """Whole lines with their ranks, without progress."""
    compared = (entry for entry in entries if entry.stream in _COMPARED and entry.rank is not None)
    for entry in whole_entries(compared):
        if entry.kind != PROGRESS:
            yield entry.rank or 0, entry._replace(text=entry.text[:MAX_TEXT])


def _masked(text: str) -> str:
    return " ".join(_VARIES.sub("#", text).split())
