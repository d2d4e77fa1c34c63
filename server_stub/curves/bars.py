"""Decides how much of a job is done, and how long the rest takes, from counters `n/N`. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import quantiles
from typing import Any

from client_lib.spec.wire import JobProgress
from server_stub.curves.grammar import Reading

_MARKS = 3  # fewer are no progress: any text may hold `1/2` once
_KEPT = 128
_SILENT_S, _SILENT_TIMES = 60.0, 10.0
_BARS_MAX = 32


class Bar:
    """Marks `n/N` of one kind."""

    def __init__(
        self,
        total: float,
        marks: int = 0,
        restarted: bool = False,
        times: Iterable[float] = (),
        done: Iterable[float] = (),
    ) -> None:
        self.total, self.marks = total, marks
        self.restarted = restarted
        """It began again: it shows a part of the work, such as an epoch."""
        self._times, self._done = list(times), list(done)

    @property
    def step(self) -> float:
        return self._done[-1]

    @property
    def done(self) -> float:
        return self.step / self.total

    def kept(self) -> list[tuple[float, float]]:
        return list(zip(self._times, self._done, strict=True))

    def saved(self) -> list[object]:
        return [self.total, self.marks, self.restarted, self._times, self._done]

    def add(self, time: float, n: float) -> None:
        if self._done and n < self._done[-1]:
            self.restarted = True
            self._times, self._done = [], []
        if self._done and n == self._done[-1]:
            return
        self.marks += 1
        self._times.append(time)
        self._done.append(n)
        if len(self._done) > _KEPT:
            del self._times[1:-1:2], self._done[1:-1:2]

    def progress(self, now: float) -> JobProgress:
        """The time left at `now`, by the slopes between marks that are half of all marks apart: an evaluation
        counts with its share, and a slow start hardly."""
        times, done = self._times, self._done
        apart = max(1, len(done) // 2)
        slopes = [
            (done[i + apart] - done[i]) / (times[i + apart] - times[i])
            for i in range(len(done) - apart)
            if times[i + apart] > times[i]
        ]
        since = now - times[-1]
        usual = (times[-1] - times[0]) / max(1, len(times) - 1)
        if not slopes or since > max(_SILENT_S, _SILENT_TIMES * usual):
            return JobProgress(done=self.done)
        slow, middle, fast = quantiles(slopes, n=4) if len(slopes) > 1 else slopes * 3
        left_s, left_from_s, left_to_s = (
            max(0.0, (self.total - done[-1]) / speed - since) for speed in (middle, fast, slow if slow > 0 else middle)
        )
        return JobProgress(done=self.done, left_s=left_s, left_from_s=left_from_s, left_to_s=left_to_s, rate=middle)


class Bars:
    def __init__(self, saved: Iterable[Any] = ()) -> None:
        """`saved`: what `saved` of other bars returned, to continue them."""
        self._bars = {(name, bar[0]): Bar(*bar) for name, bar in saved}
        self._posted: tuple[float, float, float | None] | None = None

    def saved(self) -> list[object]:
        return [[name, bar.saved()] for (name, _), bar in self._bars.items()]

    def add(self, time: float, reading: Reading) -> None:
        """Note the counters of a line. With an epoch of a known number of epochs they are parts of the whole."""
        step, steps, epoch, epochs = reading.step, reading.steps, reading.epoch, reading.epochs
        if epochs and epoch is not None and epoch <= epochs:
            per = float(steps or 1)
            before = max(0.0, epoch - 1) if steps else epoch
            self._mark(("epochs", epochs * per), time, before * per + (step if steps and step is not None else 0.0))
        elif steps and step is not None and step <= steps:
            if epoch is not None:  # a part of unknown many
                return
            self._mark((reading.bar, float(steps)), time, step)

    @property
    def has_progress(self) -> bool:
        return any(bar.marks >= _MARKS for bar in self._bars.values())

    def _main(self) -> Bar | None:
        """The first bar that is not complete, else the last one; None: there are no counters."""
        whole = [bar for bar in self._bars.values() if bar.marks >= _MARKS and not bar.restarted]
        return next((bar for bar in whole if bar.done < 1), whole[-1] if whole else None)

    def step(self) -> float | None:
        bar = self._main()
        return bar.step if bar else None

    def marks(self) -> list[tuple[float, float]]:
        """Times and steps of `_main`; []: there are no counters."""
        bar = self._main()
        return bar.kept() if bar else []

    def progress(self, now: float) -> JobProgress:
        """The progress by `_main`; without values if there are no counters."""
        bar = self._main()
        if bar or self._posted is None:
            return bar.progress(now) if bar else JobProgress()
        at, done, left_s = self._posted
        left_s = None if left_s is None else max(0.0, left_s - (now - at))
        return JobProgress(done=done, left_s=left_s, left_from_s=left_s, left_to_s=left_s)

    def post(self, time: float, percent: float | None, left_s: float | None) -> None:
        """Note the progress that a library has computed. It counts where there are no counters."""
        if percent is not None:
            self._posted = time, min(1.0, max(0.0, float(percent) / 100)), None if left_s is None else float(left_s)

    def _mark(self, key: tuple[str | None, float], time: float, n: float) -> None:
        if key not in self._bars and len(self._bars) < _BARS_MAX:
            self._bars[key] = Bar(key[1])
        if key in self._bars:
            self._bars[key].add(time, n)
