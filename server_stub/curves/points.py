"""The points of one curve, and fewer points that look the same. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import add
from typing import Literal

Axis = Literal["step", "epoch", "count"]
POINT_BYTES = 24  # of memory


@dataclass
class Points:
    """Values over steps, in the order in which they were printed."""

    axis: Axis
    """The steps are those that the script prints, or its epochs, or the points are counted."""
    source: str
    """The stream that prints them; a script that prints the same to another one makes no second curve."""
    columns: tuple[array[float], array[float], array[float]] = field(
        default_factory=lambda: (array("d"), array("d"), array("d"))
    )
    """Steps; times in seconds since 1970; values."""
    thinned: bool = False
    """Some points were removed, as there were too many."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def steps(self) -> array[float]:
        return self.columns[0]

    @property
    def values(self) -> array[float]:
        return self.columns[2]

    def add(self, *point: float) -> None:
        """Add a step, its time and its value."""
        for column, number in zip(self.columns, point, strict=True):
            column.append(number)

    def first_nan(self) -> float | None:
        """The step of the first value that is NaN."""
        return next((step for step, value in zip(self.steps, self.values, strict=True) if value != value), None)

    def thinned_to(self, most: int) -> Points:
        """At most `most` of the points, at least 4: the first and last, and the smallest and largest of each part."""
        if len(self) <= most:
            return self
        chosen = list(_chosen(self.values, max(4, most)))
        steps, times, values = (array("d", map(column.__getitem__, chosen)) for column in self.columns)
        return Points(self.axis, self.source, (steps, times, values), thinned=True)

    def joined(self, later: Points) -> Points:
        """These and the points of a later attempt."""
        steps, times, values = map(add, self.columns, later.columns)
        return Points(later.axis, later.source, (steps, times, values), thinned=self.thinned or later.thinned)


def _chosen(values: array[float], most: int) -> Iterator[int]:
    """Indices, ascending. A part with NaN keeps its first NaN, as that is what a reader looks for."""
    parts = (most - 2) // 2
    count = len(values) - 2
    yield 0
    for part in range(parts):
        begin, end = 1 + part * count // parts, 1 + (part + 1) * count // parts
        piece = values[begin:end]
        low, high = min(piece), max(piece)
        total = sum(piece)
        if total != total:
            high = next((value for value in piece if value != value), high)  # or inf - inf
        first, second = sorted((_index(piece, low), _index(piece, high)))
        yield begin + first
        if second != first:
            yield begin + second
    yield len(values) - 1


def _index(piece: array[float], value: float) -> int:
    if value == value:
        return piece.index(value)
    return next(i for i, other in enumerate(piece) if other != other)
