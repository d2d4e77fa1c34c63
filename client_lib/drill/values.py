"""The metrics of two runs, step by step. Pure."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_OF_TIME = re.compile(
    r"(^|[^a-z])(time|sec|secs|seconds|ms|duration|runtime|eta|elapsed|memory|mem|gpu|cpu|speed|"
    r"throughput|it_s|rate_s|[a-z_]*per_sec(ond)?|[a-z_]*/s(ec)?|iter_s|tokens_s)([^a-z]|$)",
    re.IGNORECASE,
)
"""Names of metrics that tell of the machine: they differ from run to run."""
_NOISES = 3.0
"""Values differ if they do so by more than this many times the largest difference between two
undisturbed runs."""
COUNT = "count"


class Key(NamedTuple):
    """A metric of a rank."""

    name: str
    rank: int | None


class Points(NamedTuple):
    """The values of one metric over the steps."""

    axis: str
    """`step`, `epoch`; `count`: the values are numbered from 1 in each run."""
    values: Mapping[float, float]


Curves = Mapping[Key, Points]


class Difference(NamedTuple):
    """The first value that differs, in the order of the steps."""

    metric: str
    rank: int | None
    step: float
    value: float
    expected: float
    noise: float
    """Largest difference between two undisturbed runs at any step."""
    largest: float
    """Largest difference at any step."""


class Comparison(NamedTuple):
    """The metrics of a resumed run beside an undisturbed one."""

    first: Difference | None
    """None: no value differs by more than the noise."""
    compared: int
    """Number of values that were compared."""
    exact: bool
    """All compared values are equal."""


def compare(undisturbed: Curves, again: Curves, other: Curves) -> Comparison:
    """Compare each value of `other` with the value of the same step in the undisturbed runs."""
    found: list[Difference] = []
    compared = 0
    exact = True
    for key, points in other.items():
        if key not in undisturbed or _OF_TIME.search(key.name):
            continue
        wanted = [runs[key] for runs in (undisturbed, again) if key in runs]
        noise = _noise(wanted)
        placed = _placed(points, wanted[0])
        apart = {step: _distance(step, value, wanted) for step, value in placed.items()}
        known = {step: each for step, each in apart.items() if each is not None}
        compared += len(known)
        exact = exact and not any(known.values())
        beyond = [step for step, each in sorted(known.items()) if each > _NOISES * noise]
        if beyond:
            step = beyond[0]
            expected = wanted[0].values[step]
            largest = max(known.values())
            found.append(Difference(*key, step, placed[step], expected, noise, largest))
    found.sort(key=lambda each: (each.step, each.rank or 0, each.metric))
    return Comparison(found[0] if found else None, compared, exact)


def noisy(undisturbed: Curves, again: Curves) -> bool:
    """True if two undisturbed runs differ in a metric that tells of the training."""
    return not compare(undisturbed, {}, again).exact


def first_step(curves: Curves, of: Iterable[Key] | None = None) -> float | None:
    """The first step that a run has printed; None: its values have no steps."""
    chosen = curves.keys() if of is None else of
    steps = [
        min(curves[key].values)
        for key in chosen
        if key in curves and curves[key].axis == "step" and curves[key].values
    ]
    return min(steps, default=None)


def last_step(curves: Curves) -> float | None:
    """The last step that a run has printed."""
    steps = [max(each.values) for each in curves.values() if each.axis == "step" and each.values]
    return max(steps, default=None)


def _noise(runs: Sequence[Points]) -> float:
    if len(runs) < 2:
        return 0.0
    one, other = runs
    return max((_apart(one.values[at], other.values[at]) for at in _common(one, other)), default=0)


def _common(one: Points, other: Points) -> list[float]:
    return sorted(one.values.keys() & other.values.keys())


def _placed(points: Points, wanted: Points) -> Mapping[float, float]:
    """The values by the steps of an undisturbed run: numbered ones end where its own do."""
    if points.axis != COUNT or not points.values or not wanted.values:
        return points.values
    shift = max(wanted.values) - max(points.values)
    return {step + shift: value for step, value in points.values.items()}


def _distance(step: float, value: float, runs: Sequence[Points]) -> float | None:
    """The distance to the nearest of the undisturbed runs; None: they have no such step."""
    return min(
        (_apart(value, run.values[step]) for run in runs if step in run.values), default=None
    )


def _apart(one: float, other: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return math.inf if math.isnan(one) or math.isnan(other) else abs(one - other)
