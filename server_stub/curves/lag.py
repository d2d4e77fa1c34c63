"""Finds the slow rank by the times at which the ranks enter collectives. Pure.

Between two collectives a rank works for itself, and in each collective the first ranks wait for the
last one. A rank that is always the last one costs the others the time that they wait, also in a
backward pass: DDP's collectives are in PyTorch's recorder too.

The times of several machines are corrected by the known differences between their clocks. The
corrected times are trusted unless the collectives contradict them: no rank enters a step before all
ranks have entered the step before. If they do, the usual difference between two workers is taken
for a difference of their clocks. A rank is then compared with the ranks of its own worker, and a
worker that is late as a whole is not found.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from math import isfinite
from statistics import median, median_low
from typing import Any, NamedTuple

# the second value in a line of the stream `metrics` with entries, as rank_runner/collectives.py
# sends it
KIND = "collectives"
_WINDOWS = 64
"""Windows of a rank that are kept; with more, every second of the older ones is dropped."""
_NEWEST = 8
"""The newest windows of a rank, which are always kept."""
_LONGEST = 128
"""Largest number of entries in a window, as rank_runner/collectives.py sends them."""
_NAME_MAX = 200
"""Longest name of a group."""
_RANKS_MAX = 64
"""Largest number of ranks of a worker. With the bounds above, the ranks of a worker can't make more
than 4 MiB of times.
"""
_WINDOW_BYTES = 500
"""Memory of a window without its times, about."""
_STEPS = 50
"""The newest steps, by which a rank is judged."""
_STEPS_MIN = 10
"""Least number of steps by which a rank is judged."""
_SLOW_BY = 0.1
"""A rank is late in a step if it lags by more than this part of the step."""
_SLOW_IN = 0.8
"""A rank is slow if it is late in at least this part of the steps."""
_LEAST_S = 0.002
"""A shorter lag counts for nothing: the operating system delays a process by as much."""
_CLOCKS_S = 0.01
"""The same for workers on several machines, whose clocks differ by as much."""


Times = Mapping[int, float]
"""The times at which one rank entered collectives, by their numbers."""


class Window(NamedTuple):
    """Entries of one rank into collectives that follow each other."""

    group: str
    first: int
    """Number of the first one in its group."""
    period: int
    """Collectives in a step; 0: not known."""
    times: array[float]
    """Seconds since 1970, by the rank's machine."""


class SeenStep(NamedTuple):
    begin: float
    """Seconds since 1970."""
    length_s: float
    number: int
    """The number of its first collective, divided by the collectives in a step."""
    lag_s: Mapping[int, float]
    """The seconds by which each rank was late."""


class Straggler(NamedTuple):
    rank: int
    lag_s: float
    """Median of the seconds by which the rank is late in a step."""
    steps: int
    """Number of the newest steps that were looked at."""
    late: int
    """Number of these steps in which the rank was late by more than a tenth of the step."""
    share: float
    """Part of the time of these steps that the lag costs."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} is slow: it enters collectives {self.lag_s * 1000:.0f} ms after "
            f"the others in {self.late} of the last {self.steps} steps, which costs "
            f"{self.share:.0%} of their time"
        )


class Entries:
    """The entries of one worker's ranks into collectives. All workers drop old entries by the same
    rule, so that the entries of all workers are of the same steps.
    """

    def __init__(self, saved: Sequence[Sequence[Any]] = ()) -> None:
        self.of_rank: dict[int, list[Window]] = {}
        for rank, group, first, period, times in saved:
            self.of_rank.setdefault(rank, []).append(
                Window(group, first, period, array("d", times))
            )
        self.size = sum(map(_size, self.of_rank.values()))
        """Bytes of memory, about."""

    def saved(self) -> list[list[Any]]:
        """Return what the constructor reads, as JSON."""
        return [
            [rank, group, first, period, times.tolist()]
            for rank, windows in self.of_rank.items()
            for group, first, period, times in windows
        ]

    def add(self, rank: Any, sent: Any) -> None:
        """Add what a rank has sent. Raises ValueError, TypeError or
        OverflowError for other content.
        """
        rank = int(rank)
        (group, first, period, at, deltas) = sent
        if not isinstance(group, str) or len(group) > _NAME_MAX or len(deltas) >= _LONGEST:
            raise ValueError("more than a rank sends")
        if rank not in self.of_rank and len(self.of_rank) >= _RANKS_MAX:
            raise ValueError("more ranks than a worker has")
        since = (at + each / 1e4 for each in accumulate(map(int, deltas), initial=0))
        window = Window(group, int(first), max(0, int(period)), array("d", since))
        if not isfinite(sum(window.times, start=window.first)):
            raise ValueError("no times")
        windows = self.of_rank.setdefault(rank, [])
        windows.append(window)
        self.size += _size([window])
        if len(windows) > _WINDOWS:
            old = windows[:-_NEWEST]
            new = windows[-_NEWEST:]
            windows[:] = old[::2] + new
            self.size -= _size(old[1::2])


def slow_rank(
    workers: Sequence[Mapping[int, Sequence[Window]]], ahead: Sequence[float] = ()
) -> Straggler | None:
    """Find the straggler by the newest windows; by all windows, if the newest ones have too few
    steps. Arguments: see `steps`.
    """
    found: list[SeenStep] = []
    for most in (_NEWEST, _WINDOWS):
        found = steps(
            [{rank: windows[-most:] for rank, windows in worker.items()} for worker in workers],
            ahead,
        )
        if len(found) >= _STEPS:
            break
    return straggler(found, len(workers))


def steps(
    workers: Sequence[Mapping[int, Sequence[Window]]], ahead: Sequence[float] = ()
) -> list[SeenStep]:
    """The steps that the windows of all ranks have in common, oldest first. One mapping for each
    worker. `ahead`: the seconds by which the clock of each is known to be ahead of the first."""
    ranks = [windows for worker in workers for windows in worker.values() if windows]
    newest = [windows[-1].group for windows in ranks]
    # the group in which most ranks are
    group = max(newest, key=newest.count, default="")
    period = _period(ranks, group)

    clocks = ahead or [0.0] * len(workers)
    times = [
        {rank: _times(windows, group, known) for rank, windows in worker.items()}
        for worker, known in zip(workers, clocks, strict=True)
    ]
    own = {rank: entries for worker in times for rank, entries in worker.items() if entries}
    if len(own) < 2:
        return []

    numbers = sorted(set.intersection(*map(set, own.values())))
    for worker in times[1:]:
        more = _ahead(times[0], worker, numbers, period)
        if not more:
            continue
        for rank, entries in worker.items():
            if entries:
                own[rank] = {number: entries[number] - more for number in numbers}

    found: list[SeenStep] = []
    # numbers that follow each other
    for _, numbered in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [
            Collective(number, {rank: entries[number] for rank, entries in own.items()})
            for _, number in numbered
        ]
        found += _steps(run, period)
    return found


def _period(ranks: Sequence[Sequence[Window]], group: str) -> int:
    """The newest period that the first rank of the group has; 0: not known."""
    for windows in ranks:
        for window in reversed(windows):
            if window.group == group:
                return window.period
    return 0


def straggler(newest: Sequence[SeenStep], workers: int = 1) -> Straggler | None:
    """The rank that lags in most of the newest steps of so many workers; None: none does,
    or the steps are too few.
    """
    last = newest[-_STEPS:]
    if len(last) < _STEPS_MIN:
        return None
    whole = sum(step.length_s for step in last)
    least_s = _LEAST_S if workers == 1 else _CLOCKS_S
    found = []
    for rank in last[-1].lag_s:
        lags = [step.lag_s.get(rank, 0.0) for step in last]
        late = sum(
            lag > max(_SLOW_BY * step.length_s, least_s)
            for lag, step in zip(lags, last, strict=True)
        )
        if late >= _SLOW_IN * len(last):
            share = min(1.0, sum(lags) / whole)
            found.append(Straggler(rank, median(lags), len(last), late, share))
    return max(found, key=lambda each: each.share, default=None)


def _size(windows: Sequence[Window]) -> int:
    """Bytes of memory, about."""
    return sum(_WINDOW_BYTES + 8 * len(window.times) for window in windows)


def _times(windows: Sequence[Window], group: str, ahead: float) -> dict[int, float]:
    """The times of a group's collectives by number, since the last start of the
    process, less `ahead` seconds.
    """
    found: dict[int, float] = {}
    for window in windows:
        if window.group == group:
            if found and window.first <= max(found) and window.times[0] > max(found.values()):
                found.clear()  # else it was sent twice, by the thread and at the end of the rank
            found.update(enumerate(window.times, window.first))
    return {number: at - ahead for number, at in found.items()} if ahead else found


def _ahead(
    here: Mapping[int, Times], there: Mapping[int, Times], numbers: Sequence[int], period: int
) -> float:
    """Estimate by how many seconds the clock of one worker is ahead of another worker's; 0.0 if
    both clocks may be right.
    """
    ours = [times for times in here.values() if times]
    theirs = [times for times in there.values() if times]
    step = max(period, 1)
    known = set(numbers)
    both = [(number, number + step) for number in numbers if number + step in known]
    if not both or not ours or not theirs:
        return 0.0

    # All ranks of `there` enter a step before a rank of `here` enters the next step, and the other
    # way round. So each step bounds the difference of the clocks from below and from above.
    least = float("-inf")
    most = float("inf")
    for number, following in both:
        their_last = max(times[number] for times in theirs)
        our_first = min(times[following] for times in ours)
        least = max(least, their_last - our_first)
        our_last = max(times[number] for times in ours)
        their_first = min(times[following] for times in theirs)
        most = min(most, their_first - our_last)
    if least <= 0 <= most:
        return 0.0

    return median(
        median_low(times[number] for times in theirs) - median_low(times[number] for times in ours)
        for number in numbers
    )


class Collective(NamedTuple):
    """One collective, as all ranks entered it."""

    number: int
    entered: Mapping[int, float]
    """Seconds since 1970, by rank."""


class _Burst(NamedTuple):
    """Collectives that are one delay for a late rank: a rank enters one of them while another rank
    has not entered the previous one."""

    first: Collective
    lag_s: dict[int, float]
    """The seconds by which each rank was late, at most."""


def _steps(collectives: Sequence[Collective], period: int) -> list[SeenStep]:
    """The whole steps in collectives that follow each other."""
    bursts = _bursts(collectives)
    numbers = [burst.first.number // max(period, 1) for burst in bursts]
    starts = [at for at in range(1, len(bursts)) if numbers[at] != numbers[at - 1]]
    found = []
    for begin, end in pairwise([0, *starts]):
        of_step = bursts[begin:end]
        lag_s = {rank: sum(burst.lag_s[rank] for burst in of_step) for rank in of_step[0].lag_s}
        first = median_low(bursts[begin].first.entered.values())
        after = median_low(bursts[end].first.entered.values())
        found.append(SeenStep(first, max(after - first, 1e-4), numbers[begin], lag_s))
    if period > 1:  # the first step may have begun before the window
        return found[1:]
    return found


def _bursts(collectives: Sequence[Collective]) -> list[_Burst]:
    found: list[_Burst] = []
    last = float("-inf")
    for collective in collectives:
        times = collective.entered.values()
        usual = median_low(times)
        lag_s = {rank: max(0.0, at - usual) for rank, at in collective.entered.items()}
        if min(times) >= last:
            found.append(_Burst(collective, lag_s))
        else:
            before = found[-1].lag_s
            for rank, each in lag_s.items():
                before[rank] = max(before[rank], each)
        last = max(times)
    return found
