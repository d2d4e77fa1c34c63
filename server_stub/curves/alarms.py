"""Evaluates the rules of a job (`alarm`) over the curves of its ranks, each point once. Pure.

A rule is evaluated for each rank that has its metric, and is true when it is true for one of them.
Spikes and trends compare values with the recent past of the same curve, by medians: a few extreme
values do not change a median.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf, isfinite
from operator import ge, gt, le, lt
from statistics import median
from typing import NamedTuple, Protocol

from client_lib.spec.alarm import (
    Beyond,
    Condition,
    Idle,
    NotFinite,
    Rises,
    Rule,
    Span,
    Spike,
    StandsStill,
)
from client_lib.spec.wording import about
from server_stub.curves.losses import of_training
from server_stub.curves.points import Points

_AT_ONCE = 50_000
"""Most points of a curve that one look reads."""
_STEP_MAX = 1e18
"""Largest step of a point that is read: infinite and absurd ones break the sums."""

RECENT = 100
"""Number of values before a point with which the point is compared for a spike."""
RECENT_MIN = 20
"""Least number of these values; a point with fewer is no spike."""
FAR = 10.0
"""A spike is above the median of the recent values by more than this many times their standard
deviation, which is estimated by the median distance from the median, ..."""
FARTHER = 2.5
"""... by more than this many times the distance of the largest recent value from the median, ..."""
LEAST_JUMP = 0.1
"""... and by more than this fraction of the median."""
_DEVIATION = 1.4826
"""The standard deviation of normal values, as a multiple of their median distance."""

PARTS = 20
"""Number of parts of a span. The medians of the values of each part show a trend."""
PARTS_MIN = 8
"""Least number of parts with values; a span with fewer has no trend."""
RISING = 0.8
"""A curve rises if Kendall's tau (`order`) of the medians is at least this, ..."""
LEAST_RISE = 0.01
"""... and if the last median is above the first by more than this fraction of the first."""
STILL = 1 / 3
"""A curve stands still if Kendall's tau of the medians is at most this, without its sign, ..."""
STILL_CHANGE = 0.001
"""... or if the last quarter of the medians differs from the first quarter by at most this fraction
of the median."""
_OF_PART_MAX = 1000
"""Most values of a part that are kept."""

IDLE_PERCENT = 5.0
"""A GPU that is used less is idle."""
IDLE_CORES = 0.1
"""A worker without GPUs is idle if all of its ranks use less than so many cores."""
_GPU = re.compile(r"worker/gpu\d+_percent")
_CORES = "worker/cpu_cores"

_NAME_MAX = 60
"""Characters of a metric's name in a sentence."""


class Mark(NamedTuple):
    """A point of a curve."""

    step: float
    time: float
    """Seconds since 1970, never less than the time of the point before."""
    value: float
    way: float
    """Steps since the first point, also where the script counts from 0 again."""


class Spell(NamedTuple):
    """A stretch of a curve in which a condition holds."""

    good: Mark | None
    """The last point before it."""
    first: Mark
    last: Mark
    said: str
    """A clause about what the curve did, with {} for the place of its begin."""


class Good(NamedTuple):
    """The last point at which all was well."""

    step: float | None
    """None: the curve is not over steps, or its steps begin again in each epoch, so that they are
    not the steps of checkpoints."""
    time: float


class Finding(NamedTuple):
    """A rule that has become true."""

    rule: Rule
    sentence: str
    time: float
    """The time at which its condition began, in seconds since 1970."""
    good: Good | None
    """None: no point was good, or the rule is about no curve."""


class Course(Protocol):
    """A condition that follows one curve."""

    def add(self, mark: Mark) -> Spell | None:
        """Read the next point; the stretch in which the condition holds, if it holds now."""


# --- conditions of single values


class Lasting:
    """Holds when a property of single values has held for a span."""

    def __init__(self, holds: Callable[[float], bool | None], span: Span, said: str) -> None:
        """`holds`: None for a value that changes nothing. `said`: the property as a clause."""
        self._holds = holds
        self._span = span
        self._said = said
        self._good: Mark | None = None
        self._first: Mark | None = None
        self._count = 0

    def add(self, mark: Mark) -> Spell | None:
        holds = self._holds(mark.value)
        if holds is None and self._first is None:
            return None
        if holds is False:
            self._good = mark
            self._first = None
            self._count = 0
            return None
        first = self._first = self._first or mark
        self._count += 1
        if self._reached(first, mark):
            return Spell(self._good, first, mark, self._said.format(mark.value) + " from {}")
        return None

    def _reached(self, first: Mark, mark: Mark) -> bool:
        if self._span.unit == "values":
            return self._count >= self._span.amount
        if self._span.unit == "s":
            return mark.time - first.time >= self._span.amount
        return mark.way - first.way >= self._span.amount - 1


_BEYOND: dict[str, tuple[Callable[[float, float], bool], str]] = {
    ">": (gt, "above"),
    ">=": (ge, "at least"),
    "<": (lt, "below"),
    "<=": (le, "at most"),
}


def _beyond(condition: Beyond) -> Lasting:
    compare, word = _BEYOND[condition.comparison]

    def holds(value: float) -> bool | None:
        return None if value != value else compare(value, condition.limit)

    return Lasting(holds, condition.span, f"was {word} {condition.limit:g} (now {{:.4g}})")


# --- spikes


class Jumping:
    """Holds at a value that is far above the recent ones."""

    def __init__(self) -> None:
        self._recent: deque[Mark] = deque(maxlen=RECENT)
        self._sorted: list[float] = []

    def add(self, mark: Mark) -> Spell | None:
        value = mark.value
        if not isfinite(value):
            return None
        spell = None
        if len(self._sorted) >= RECENT_MIN and self._is_far(value):
            usual = self._sorted[len(self._sorted) // 2]
            said = f"jumped from {usual:.4g} to {value:.4g} at {{}}"
            spell = Spell(self._recent[-1], mark, mark, said)
        if len(self._recent) == RECENT:
            del self._sorted[bisect_left(self._sorted, self._recent[0].value)]
        self._recent.append(mark)
        insort(self._sorted, value)
        return spell

    def _is_far(self, value: float) -> bool:
        values = self._sorted
        usual = values[len(values) // 2]
        jump = value - usual
        if jump <= max(FARTHER * (values[-1] - usual), LEAST_JUMP * abs(usual)):
            return False
        return jump > FAR * _DEVIATION * median(abs(each - usual) for each in values)


# --- trends


class _Part(NamedTuple):
    number: int
    median: float
    first: Mark
    last: Mark


class Trend:
    """Looks at the medians of the parts of the last span whenever a part is complete."""

    def __init__(self, span: Span, judge: Callable[[Sequence[float]], str]) -> None:
        """`judge` gets the medians in their order, and returns a clause; "": it does not hold."""
        self._span = span
        self._judge = judge
        self._parts: deque[_Part] = deque()
        self._open: list[Mark] = []
        self._number = 0
        """Number of the open part."""
        self._begin: float | None = None

    def add(self, mark: Mark) -> Spell | None:
        if not isfinite(mark.value):
            return None
        place = mark.time if self._span.unit == "s" else mark.way
        if self._begin is None:
            self._begin = place
        number = int((place - self._begin) / self._span.amount * PARTS)
        spell = None
        if number != self._number:
            self._close()
            self._number = number
            spell = self._look()
        if len(self._open) < _OF_PART_MAX:
            self._open.append(mark)
        return spell

    def _close(self) -> None:
        marks = self._open
        middle = median(mark.value for mark in marks)
        self._parts.append(_Part(self._number, middle, marks[0], marks[-1]))
        self._open = []

    def _look(self) -> Spell | None:
        """Judge the parts of the span that ends where the open part begins."""
        while self._parts and self._parts[0].number < self._number - PARTS:
            self._parts.popleft()
        if self._number < PARTS or len(self._parts) < PARTS_MIN:
            return None
        said = self._judge([part.median for part in self._parts])
        if not said:
            return None
        first = self._parts[0].first
        return Spell(first, first, self._parts[-1].last, said)


def order(values: Sequence[float]) -> float:
    """Kendall's tau: 1.0 if each pair of values rises, -1.0 if each falls, about 0.0 if they have
    no trend."""
    pairs = list(combinations(values, 2))
    return sum((later > earlier) - (later < earlier) for earlier, later in pairs) / len(pairs)


def _rises(values: Sequence[float]) -> str:
    first = values[0]
    last = values[-1]
    if order(values) < RISING or last - first <= LEAST_RISE * abs(first):
        return ""
    return f"rose from {first:.4g} to {last:.4g} since {{}}"


def _stands_still(values: Sequence[float]) -> str:
    quarter = len(values) // 4
    change = median(values[-quarter:]) - median(values[:quarter])
    usual = median(values)
    if abs(order(values)) > STILL and abs(change) > STILL_CHANGE * abs(usual):
        return ""
    return f"stands still at {usual:.4g} since {{}}"


def _course(condition: Condition) -> Course:
    if isinstance(condition, NotFinite):
        return Lasting(lambda value: not isfinite(value), condition.span, "was {}")
    if isinstance(condition, Beyond):
        return _beyond(condition)
    if isinstance(condition, Spike):
        return Jumping()
    if isinstance(condition, Rises):
        return Trend(condition.span, _rises)
    if isinstance(condition, StandsStill):
        return Trend(condition.span, _stands_still)
    raise TypeError(f"{condition} follows no curve")


# --- idle workers


class _Use:
    """The time for which a worker has been idle, by the samples of what it uses."""

    def __init__(self) -> None:
        self.since = inf
        """Time of the first sample after the last one that shows work; infinite: it works."""
        self.until = -inf
        """Time of the newest sample."""
        self.has_gpus = False
        self._read: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def look(self, used: Mapping[str, Points]) -> None:
        gpus = [name for name in used if _GPU.fullmatch(name)]
        self.has_gpus = bool(gpus)
        names = gpus or [name for name in used if name == _CORES]
        limit = IDLE_PERCENT if gpus else IDLE_CORES
        for name in names:
            self._look_at(name, used[name], limit)
        self.since = max((self._since[name] for name in names), default=inf)

    def _look_at(self, name: str, curve: Points, limit: float) -> None:
        _, times, values = curve.columns
        begin = min(self._read.get(name, 0), len(values))  # a thinned curve is shorter
        since = self._since.get(name, inf)
        for time, value in zip(times[begin:], values[begin:], strict=True):
            since = inf if value >= limit else min(since, time)
            self.until = max(self.until, time)
        self._since[name] = since
        self._read[name] = len(values)


def _idle(span: Span, workers: Collection[_Use]) -> Spell | None:
    """The stretch in which all workers were idle, if it is long enough."""
    since = max((use.since for use in workers), default=inf)
    until = min((use.until for use in workers), default=-inf)
    if until - since < span.amount:
        return None
    what = "the GPUs" if any(use.has_gpus for use in workers) else "the ranks"
    first = Mark(0.0, since, 0.0, 0.0)
    return Spell(None, first, first._replace(time=until), f"{what} did nothing")


# --- all rules over all curves


class _Reading:
    """The place up to which a curve was read."""

    def __init__(self) -> None:
        self._curve: Points | None = None
        self._read = 0
        self._last: Mark | None = None
        self.goes_back = False
        """True if a step was less than the one before: the script counts within each epoch."""

    def new(self, curve: Points) -> Iterator[Mark]:
        """Points that were added since the last call; the next call has the others."""
        steps, times, values = curve.columns
        if curve is not self._curve and self._last is not None:  # it was thinned, or made anew
            self._read = bisect_right(times, self._last.time)
        self._curve = curve
        end = min(len(values), self._read + _AT_ONCE)
        for index in range(self._read, end):
            if abs(steps[index]) <= _STEP_MAX:  # false for NaN
                yield self._mark(curve, steps[index], times[index], values[index])
        self._read = end

    def is_at_end_of(self, curve: Points) -> bool:
        return self._read == len(curve)

    def _mark(self, curve: Points, step: float, time: float, value: float) -> Mark:
        before = self._last
        way = 0.0
        if before is not None:
            ahead = step - before.step if curve.axis == "step" else 1.0
            self.goes_back |= ahead < 0
            way = before.way + (ahead if ahead > 0 else 1.0)
            time = max(time, before.time)
        self._last = mark = Mark(step, time, value, way)
        return mark


Curve = tuple[int, int | None, str]
"""Worker, rank (None: a line of no rank) and name."""


class Alarms:
    """The rules of one attempt. A rule is found once."""

    def __init__(self, rules: Sequence[Rule], found: Collection[str] = ()) -> None:
        """`found`: texts of the rules that were found by an earlier object."""
        self._open = {rule.text: rule for rule in rules if rule.text not in found}
        self._readings: dict[Curve, _Reading] = {}
        self._courses: dict[Curve, dict[str, Course]] = {}
        self._uses: dict[int, _Use] = {}
        self._new: dict[tuple[str, Curve | None], Finding] = {}
        """The first finding of each rule on each curve since the last call of `found`."""

    @property
    def is_done(self) -> bool:
        """True if every rule was found."""
        return not self._open

    def look(
        self,
        worker: int,
        curves: Mapping[tuple[int | None, str], Points],
        used: Mapping[str, Points],
    ) -> bool:
        """Read the new points in the curves of a worker; False: some are left for another call."""
        names: dict[int | None, list[str]] = {}
        for rank, name in curves:
            names.setdefault(rank, []).append(name)
        losses = {rank: of_training(each) for rank, each in names.items()}
        all_read = True
        for (rank, name), curve in curves.items():
            rules = [
                rule
                for rule in self._open.values()
                if _follows(rule, name, names[rank], losses[rank])
            ]
            if rules:
                all_read &= self._follow((worker, rank, name), curve, rules)
        if any(isinstance(rule.condition, Idle) for rule in self._open.values()):
            self._uses.setdefault(worker, _Use()).look(used)
        return all_read

    def _follow(self, key: Curve, curve: Points, rules: Sequence[Rule]) -> bool:
        courses = self._courses.setdefault(key, {})
        for rule in rules:
            if rule.text not in courses:
                courses[rule.text] = _course(rule.condition)
        following = [(rule, courses[rule.text]) for rule in rules]
        reading = self._readings.setdefault(key, _Reading())
        for mark in reading.new(curve):
            for rule, course in following:
                spell = course.add(mark)
                if spell and (rule.text, key) not in self._new:
                    self._new[rule.text, key] = _finding(rule, key, curve, reading, spell)
        return reading.is_at_end_of(curve)

    def found(self) -> list[Finding]:
        """The rules that have become true since the last call, each by the curve on which its
        condition began first."""
        for rule in self._open.values():
            if isinstance(rule.condition, Idle):
                spell = _idle(rule.condition.span, self._uses.values())
                if spell:
                    self._new[rule.text, None] = _of_idle(rule, spell)
        first: dict[str, Finding] = {}
        for finding in sorted(self._new.values(), key=lambda each: each.time):
            first.setdefault(finding.rule.text, finding)
        self._new = {}
        for text in first:
            del self._open[text]
        return list(first.values())


def _follows(rule: Rule, name: str, names: Sequence[str], losses: Sequence[str]) -> bool:
    """True if a rule is about the metric `name` of a rank that has the metrics `names`, among
    these the `losses` of its training."""
    if isinstance(rule.condition, Idle):
        return False
    metric = rule.condition.metric.lower()
    if metric == name.lower():
        return True
    is_any_loss = metric == "" or (metric == "loss" and "loss" not in map(str.lower, names))
    return is_any_loss and name in losses


def _finding(rule: Rule, key: Curve, curve: Points, reading: _Reading, spell: Spell) -> Finding:
    _, rank, full_name = key
    name = " ".join(full_name.split())[:_NAME_MAX]
    first = spell.first
    axis = "value" if curve.axis == "count" else curve.axis
    where = f" on rank {rank}" if rank else ""
    said = spell.said.format(f"{axis} {first.step:.15g}")
    sentence = f"{name}{where} {said}"
    if isinstance(rule.condition, NotFinite):
        word = "NaN" if first.value != first.value else "infinite"
        sentence = f"{name} was {word}{where} from {axis} {first.step:.15g}"
    good = spell.good
    on_steps = curve.axis == "step" and not reading.goes_back
    return Finding(
        rule,
        f"alarm `{rule.text}`: {sentence}",
        first.time,
        Good(good.step if on_steps else None, good.time) if good else None,
    )


def _of_idle(rule: Rule, spell: Spell) -> Finding:
    lasted = about(spell.last.time - spell.first.time)
    return Finding(rule, f"alarm `{rule.text}`: {spell.said} for {lasted}", spell.first.time, None)
