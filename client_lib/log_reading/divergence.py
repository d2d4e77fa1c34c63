"""The first line in which the ranks of a job differ: entries in, places out. Pure.

The ranks are compared line by line, each of stdout and stderr for itself, because the order of lines in both is chance.
Lines are the same if only numbers, times and addresses in them differ. Rank 0 may print more than the others
(`if rank == 0:`): only a line of theirs that it never prints is a difference.

The client compares, so that it works with every server: the log is read twice, and eight bytes are held per line.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple, TypedDict

from client_lib.log_reading.reader import LogEntry
from client_lib.spec.summary import spans
from client_lib.worker.format import GOES_ON, MAX_TEXT, PROGRESS

BEFORE, AFTER = 2, 6
"""Lines that are kept before the one that differs, and from it on: the end of a short traceback is among them."""
_SIDES_MAX = 8  # in a text
_COMPARED = ("stdout", "stderr")
_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|[-+]?\d[\d.,:_]*(?:e[-+]?\d+)?", re.IGNORECASE)


class Side(TypedDict):
    """Ranks that print the same line at the place; the texts are those of the first of them."""

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
    """The first difference in each stream that has one, the earliest first. `read` returns the entries of one attempt
    at each call; `ranks` take part even if they print nothing."""
    streams = {name: _Stream(ranks) for name in _COMPARED}
    for entry in _lines(read()):
        streams[entry.stream].compare(entry)
    if not any([stream.differs() for stream in streams.values()]):
        return []
    for entry in _lines(read()):
        streams[entry.stream].collect(entry)
    found = [found for stream in streams.values() if (found := stream.divergence())]
    return sorted(found, key=lambda each: each.time)


def as_text(found: Divergence) -> list[str]:
    """Lines for people: those of each side under `[ranks]`, and a `>` at the one that differs."""
    lines = [f"{found.stream}: the ranks differ after {found.agreed} equal lines, at {found.time:%Y-%m-%dT%H:%M:%SZ}"]
    for side in found.sides[:_SIDES_MAX]:
        place, *rest = side["after"] or ["(no more lines)"]
        shown = [f"  {text}" for text in side["before"]] + [f"> {place}"] + [f"  {text}" for text in rest]
        lines += [f"[{spans(side['ranks'])}] {text}" for text in shown]
    left_out = [rank for side in found.sides[_SIDES_MAX:] for rank in side["ranks"]]
    return [*lines, *([f"[{spans(left_out)}] print other lines again"] if left_out else [])]


def _lines(entries: Iterable[LogEntry]) -> Iterator[LogEntry]:
    """Whole lines of ranks, without progress."""
    begun: dict[tuple[int | None, str], LogEntry] = {}
    for entry in entries:
        if entry.rank is None or entry.kind == PROGRESS or entry.stream not in _COMPARED:
            continue
        source = (entry.rank, entry.stream)
        before = begun.pop(source, None)
        whole = entry._replace(text=(before.text + entry.text)[:MAX_TEXT]) if before else entry
        if entry.kind == GOES_ON:
            begun[source] = whole
        else:
            yield whole
    yield from begun.values()


def _masked(text: str) -> str:
    return " ".join(_VARIES.sub("#", text).split())


class _Rank:
    """The lines of one rank around the place."""

    def __init__(self) -> None:
        self.common = 0
        """Number of lines so far that are common to the ranks."""
        self.before: deque[str] = deque(maxlen=BEFORE)
        self.after: list[LogEntry] = []


class _Stream:
    """One stream of all ranks."""

    def __init__(self, ranks: Collection[int]) -> None:
        self._common = array("q")
        """Hashes of the lines of all ranks but 0; a line is that of the rank which was there first."""
        self._of_0 = array("q")
        self._counts = dict.fromkeys(ranks, 0)
        """Number of the first lines of each rank that are in `_common`."""
        self._left: set[int] = set()
        self._place: int | None = None
        self._ranks: defaultdict[int, _Rank] = defaultdict(_Rank)

    def compare(self, entry: LogEntry) -> None:
        rank, key = entry.rank or 0, hash(_masked(entry.text))
        at = self._counts.setdefault(rank, 0)
        if rank == 0:
            self._of_0.append(key)
        elif at == len(self._common) and rank not in self._left:
            self._common.append(key)
            self._counts[rank] += 1
        elif rank not in self._left and key == self._common[at]:
            self._counts[rank] += 1
        else:
            self._left.add(rank)

    def differs(self) -> bool:
        """Find the place, after all lines were compared."""
        if 0 in self._counts:
            rest = iter(self._of_0)
            self._counts[0] = next((at for at, key in enumerate(self._common) if key not in rest), len(self._common))
        shortest = min(self._counts.values(), default=0)
        self._place = shortest if shortest < len(self._common) else None
        return self._place is not None

    def collect(self, entry: LogEntry) -> None:
        """Keep the lines around the place, when all lines come again."""
        if self._place is None:
            return
        rank = self._ranks[entry.rank or 0]
        is_common = entry.rank != 0 or hash(_masked(entry.text)) == self._common[rank.common]
        if rank.after or (rank.common == self._place and (is_common or self._counts[0] == self._place)):
            rank.after += [entry] if len(rank.after) < AFTER else []
        else:
            rank.before.append(entry.text)
            rank.common += is_common

    def divergence(self) -> Divergence | None:
        """None: there is none, or its lines have been removed since."""
        found = (rank.after[0] for rank in self._ranks.values() if rank.after)
        first = min(found, key=lambda entry: entry.time, default=None)
        if self._place is None or first is None:
            return None
        same: defaultdict[str | None, list[int]] = defaultdict(list)
        for number in sorted(self._counts):
            after = self._ranks[number].after
            same[_masked(after[0].text) if after else None].append(number)
        sides = [
            Side(ranks=ranks, before=[*shown.before], after=[entry.text for entry in shown.after])
            for ranks in sorted(same.values(), key=lambda ranks: (-len(ranks), ranks))
            for shown in [self._ranks[ranks[0]]]
        ]
        return Divergence(first.stream, first.time, self._place, sides)
