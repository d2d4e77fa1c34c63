"""The counters `n/N` that a rank prints, and the time that is left by them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, field
from math import isfinite
from statistics import quantiles
from typing import Any, NamedTuple

from client_lib.launcher_protocol import printed_metrics
from client_lib.spec.wire import JobProgress

_MARKS = 3
"""Least number of marks that are progress: any text may hold `1/2` once."""
_MARKS_KEPT = 128
_SILENT_S = 60.0
"""No time left is estimated for a bar that has shown no mark for so long ..."""
_SILENT_TIMES = 10.0
"""... and for so many times the usual time between two marks."""
_BARS_MAX = 32
_PLANNED = "\0planned"
"""In place of the text before a bar: the steps that a scheduler of learning rates plans."""


@dataclass
class Bar:
    """Marks `n/N` of one kind."""

    total: float
    marks: int = 0
    restarted: bool = False
    """The counter began again, so it counts a part of the work, such as an epoch."""
    times: list[float] = field(default_factory=list)
    """Times of the marks that are kept."""
    done: list[float] = field(default_factory=list)

    @property
    def done_part(self) -> float:
        return self.done[-1] / self.total

    def add(self, time: float, n: float) -> None:
        if self.done and n < self.done[-1]:
            self.restarted = True
            self.times = []
            self.done = []
        if self.done and n == self.done[-1]:
            return
        self.marks += 1
        self.times.append(time)
        self.done.append(n)
        if len(self.done) > _MARKS_KEPT:
            del self.times[1:-1:2], self.done[1:-1:2]

    def progress(self, now: float) -> JobProgress:
        """The time left at `now`, by the slopes between marks that are half of all marks apart: an
        evaluation counts with its share, and a slow start hardly."""
        times = self.times
        done = self.done
        apart = max(1, len(done) // 2)
        slopes = [
            (done[i + apart] - done[i]) / (times[i + apart] - times[i])
            for i in range(len(done) - apart)
            if times[i + apart] > times[i]
        ]
        since = now - times[-1]
        usual = (times[-1] - times[0]) / max(1, len(times) - 1)
        if not slopes or since > max(_SILENT_S, _SILENT_TIMES * usual):
            return JobProgress(done=self.done_part)
        slow, middle, fast = quantiles(slopes, n=4) if len(slopes) > 1 else slopes * 3

        def left_s(speed: float) -> float:
            return max(0.0, (self.total - done[-1]) / speed - since)

        return JobProgress(
            done=self.done_part,
            left_s=left_s(middle),
            left_from_s=left_s(fast),
            left_to_s=left_s(slow if slow > 0 else middle),
            rate=middle,
        )


class _Posted(NamedTuple):
    """A progress that a library has computed."""

    at: float
    done: float
    left_s: float | None


class Bars:
    """The counters of one rank."""

    def __init__(self, saved: Iterable[Any] = ()) -> None:
        """`saved`: what `saved` of other bars returned, to continue them."""
        self._bars = {(name, bar[0]): Bar(*bar) for name, bar in saved}
        self._posted: _Posted | None = None

    def saved(self) -> list[object]:
        return [[name, astuple(bar)] for (name, _), bar in self._bars.items()]

    def add(self, time: float, reading: printed_metrics.LineReading) -> None:
        """Note the counters of a line. With an epoch of a known number of epochs
        they are parts of the whole.
        """
        step = reading.step
        steps = reading.steps
        epoch = reading.epoch
        epochs = reading.epochs
        if epochs and epoch is not None and epoch <= epochs:
            if not steps:
                self._mark(("epochs", float(epochs)), time, epoch)
                return
            done = max(0.0, epoch - 1) * steps + (step or 0.0)
            self._mark(("epochs", float(epochs * steps)), time, done)
        elif steps and step is not None and step <= steps and epoch is None:
            # else a part of an unknown whole
            self._mark((reading.bar, float(steps)), time, step)

    def _mark(self, key: tuple[str | None, float], time: float, n: float) -> None:
        if key not in self._bars and len(self._bars) < _BARS_MAX:
            self._bars[key] = Bar(key[1])
        if key in self._bars:
            self._bars[key].add(time, n)

    def counted(self) -> list[Bar]:
        """The printed bars that have enough marks for a progress."""
        return [
            bar for (name, _), bar in self._bars.items() if bar.marks >= _MARKS and name != _PLANNED
        ]

    def _main(self) -> Bar | None:
        """The first bar that is not complete, else the last one; None: there are no counters."""
        whole = [bar for bar in self.counted() if not bar.restarted]
        if not whole:
            return None
        return next((bar for bar in whole if bar.done_part < 1), whole[-1])

    def marks(self) -> list[tuple[float, float]]:
        """Times and steps of `_main`; []: there are no counters."""
        bar = self._main()
        return list(zip(bar.times, bar.done, strict=True)) if bar else []

    def progress(self, now: float) -> JobProgress:
        """The progress by `_main`; without values if there are no counters."""
        bar = self._main()
        if bar is not None:
            return bar.progress(now)
        posted = self._posted
        if posted is None:
            return JobProgress()
        if posted.left_s is None:
            return JobProgress(done=posted.done)
        left_s = max(0.0, posted.left_s - (now - posted.at))
        return JobProgress(done=posted.done, left_s=left_s, left_from_s=left_s, left_to_s=left_s)

    def planned(self, now: float) -> JobProgress:
        """The progress by the steps that a scheduler plans; without values if there are none."""
        bars = [bar for (name, _), bar in self._bars.items() if name == _PLANNED]
        return bars[-1].progress(now) if bars else JobProgress()

    def plan(self, time: float, step: float, steps: float) -> None:
        """Note a step of an optimizer, of a planned number."""
        if 0 < step <= steps:
            self._mark((_PLANNED, steps), time, step)

    def post(self, time: float, percent: float | None, left_s: float | None) -> None:
        """Note the progress that a library has computed. It counts where there are no counters."""
        if percent is None:
            return
        done = min(1.0, max(0.0, float(percent) / 100))
        ends = left_s is not None and isfinite(left_s)
        self._posted = _Posted(time, done, left_s if ends else None)
