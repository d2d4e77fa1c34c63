"""The value of a metric that belongs to a checkpoint, and the best of them. Pure."""

from bisect import bisect_right
from math import isfinite
from typing import Dict, Iterable, List, Optional, Tuple, TypeVar

_MOST = 100_000
"""Largest number of values of a metric; then the earlier half is forgotten."""
_SLACK_S = 0.1
"""Longest time from the print of a value until its line is read, and gets its time."""
T = TypeVar("T")


class MetricValues:
    """The values of one metric."""

    def __init__(self) -> None:
        self._at_step: Dict[float, float] = {}
        self._times: List[float] = []
        self._values: List[float] = []

    def add(self, step: Optional[float], time: float, value: float) -> None:
        """`time`: of its print, in seconds since 1970, not before an earlier one. A value that is
        NaN or infinite does not count."""
        if not isfinite(value):
            return
        if len(self._times) >= _MOST:
            del self._times[: _MOST // 2]
            del self._values[: _MOST // 2]
            self._at_step = dict(list(self._at_step.items())[-_MOST // 2 :])
        if step is not None:
            self._at_step[step] = value
        self._times.append(time)
        self._values.append(value)

    def of(self, step: Optional[int], modified: float) -> Optional[float]:
        """The value that belongs to a checkpoint: the last one of its step, else the last one
        before the time at which it was written; None: there is none."""
        if step is not None and step in self._at_step:
            return self._at_step[step]
        count = bisect_right(self._times, modified + _SLACK_S)
        return self._values[count - 1] if count else None


def best_of(valued: Iterable[Tuple[T, Optional[float]]], is_larger: bool) -> Optional[T]:
    """The item with the best value, of equal ones the last; None: no item has a value."""
    found: Optional[T] = None
    best_value: Optional[float] = None
    for item, value in valued:
        if value is None:
            continue
        if best_value is None or value == best_value or (value > best_value) == is_larger:
            found = item
            best_value = value
    return found
