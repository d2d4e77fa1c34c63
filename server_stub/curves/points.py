"""The points of one curve, and how they are thinned. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress, count, groupby
from math import isfinite, isnan
from operator import add
from typing import Literal

Axis = Literal["step", "epoch", "count"]
_LONGER = 2
"""A curve is lost when it is not finite for so many times as long as it ever was before."""


@dataclass
class Points:
    """Values over steps, in the order in which they were printed."""

    axis: Axis
    """Meaning of `steps`: steps that the script prints, epochs that it prints, or numbers of the
    points."""
    source: str
    """The stream that prints them; a script that prints the same values to another stream makes no
    second curve.
    """
    columns: tuple[array[float], array[float], array[float]] = field(
        default_factory=lambda: (array("d"), array("d"), array("d"))
    )
    """Steps; times in seconds since 1970; values."""
    thinned: bool = False
    """Some points were removed, as there were too many."""
    _looked_at: int = field(default=0, compare=False)
    """Number of values at which `lost_from` has looked."""
    _lost_at: int | None = field(default=None, compare=False)
    """The begin of a stretch of NaN and infinity that lasts until there."""
    _longest: int = field(default=0, compare=False)
    """The length of the longest such stretch before."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def steps(self) -> array[float]:
        return self.columns[0]

    @property
    def values(self) -> array[float]:
        return self.columns[2]

    def lost_from(self) -> int | None:
        """The index of the first value of the last stretch of NaN and infinity; None: the newest
        value is finite, or the stretch is as short as others from which the curve came back, as
        where a script prints NaN between two evaluations. Looks at each value once, as each page
        asks for it.
        """
        new = self.values[self._looked_at :]
        for finite, run in groupby(map(isfinite, new)):
            if finite and self._lost_at is not None:
                self._longest = max(self._longest, self._looked_at - self._lost_at)
                self._lost_at = None
            elif not finite and self._lost_at is None:
                self._lost_at = self._looked_at
            self._looked_at += sum(1 for _ in run)
        if self._lost_at is None or len(self) - self._lost_at <= _LONGER * self._longest:
            return None
        return self._lost_at

    def add(self, *point: float) -> None:
        """Add a step, its time and its value."""
        for column, number in zip(self.columns, point, strict=True):
            column.append(number)

    def thinned_to(self, most: int) -> Points:
        """At most `most` of the points, at least 4: the first and last, and the smallest
        and largest of each part.
        """
        if len(self) <= most:
            return self
        chosen = list(_chosen(self.values, max(4, most)))
        steps, times, values = (
            array("d", map(column.__getitem__, chosen)) for column in self.columns
        )
        return Points(self.axis, self.source, (steps, times, values), thinned=True)

    def joined(self, later: Points) -> Points:
        """These and the points of a later attempt."""
        steps, times, values = map(add, self.columns, later.columns)
        return Points(
            later.axis, later.source, (steps, times, values), thinned=self.thinned or later.thinned
        )


def _chosen(values: array[float], most: int) -> Iterator[int]:
    """Indices, ascending. A part with NaN keeps its first NaN, as that
    is what a reader looks for.
    """
    parts = (most - 2) // 2
    inner = len(values) - 2
    yield 0
    for part in range(parts):
        begin = 1 + part * inner // parts
        end = 1 + (part + 1) * inner // parts
        piece = values[begin:end]
        low = min(piece)
        high = max(piece)
        if isnan(sum(piece)):
            high = next(filter(isnan, piece), high)  # or inf - inf
        yield from sorted({begin + _index(piece, low), begin + _index(piece, high)})
    yield len(values) - 1


def _index(piece: array[float], value: float) -> int:
    return next(compress(count(), map(isnan, piece))) if isnan(value) else piece.index(value)
