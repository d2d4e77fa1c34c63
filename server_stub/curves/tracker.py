"""Makes curves and progress from the lines of one worker, in the order of its log. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import isfinite

from client_lib.launcher_protocol import printed_metrics
from client_lib.launcher_protocol.checkpoint_lines import CHECKPOINT, SeenCheckpoint, parse
from client_lib.launcher_protocol.record import ALERT, GOES_ON, METRICS, WRITTEN
from client_lib.spec.replace import replaced
from client_lib.spec.wire import JobProgress
from client_lib.worker.preflight import WARNING
from server_stub.curves import alerts, lag
from server_stub.curves.alerts import ALERTS_MAX, Alert
from server_stub.curves.bars import Bars
from server_stub.curves.losses import Loss, losses
from server_stub.curves.points import Axis, Points

POINT_BYTES = 24  # of memory
LEAST = 3  # points of a curve: a name that a script prints once or twice is no metric
_CURVES_MAX = 500
"""Largest number of curves of a worker."""
_NAME_MAX = 200
"""Longest name of a curve; values of a longer name are left out."""
_WRITTEN_MAX = 1000
"""Largest number of times at which checkpoints were written."""
_CHECKPOINTS_MAX = 1000
"""Largest number of checkpoints; more are not kept."""
_WARNINGS_MAX = 10
# ranks and streams with an open line or traceback: a job may name any ranks in its log
_WRITERS_MAX = 1024
# Source of values that a library posts now and then; every other source has more values.

POSTED = "posted"
USED = "used"  # the source of what a launcher has measured: no metrics of the job, and no progress
OBSERVED = "optimizer"
"""The source of what the rank runner sees of a script's optimizers, and the second value of such a
line of the stream `metrics`. The values stand beside all that the script tells, and never in its
place."""
PROGRESS_OF = (0, None)  # the ranks whose counters are the progress of a job
Key = tuple[int | None, str]  # rank (None: a line of no rank, as in train.log) and name


@dataclass
class Tracker:
    """The curves of one worker in one attempt."""

    most: int
    """Largest number of points of all curves together."""
    points: dict[Key, Points] = field(default_factory=dict)
    """All points, also of what may become a curve."""
    dropped: int = 0
    """Values that a script could not hand over."""
    bars: dict[int | None, Bars] = field(
        default_factory=lambda: {rank: Bars() for rank in PROGRESS_OF}
    )
    entries: lag.Entries = field(default_factory=lag.Entries)
    """Times at which the ranks have entered collectives."""
    written: list[float] = field(default_factory=list)
    """Times at which files of checkpoints were written, in seconds since 1970."""
    checkpoints: dict[str, SeenCheckpoint] | None = None
    """The checkpoints that the launcher has seen, by their paths; None: it has not looked."""
    warnings: list[str] = field(default_factory=list)
    """Sentences of the preflight about slow workers."""
    alerts: list[Alert] = field(default_factory=list)
    """The first alerts of the scripts."""
    slow: tuple[list[dict[int, lag.Window]], lag.Straggler | None] | None = None
    """Kept by worker 0: the newest windows of all workers at the last search for the
    slow rank, and its result.
    """
    _begun: dict[tuple[int | None, str], str] = field(default_factory=dict)
    """Text of unfinished lines by rank and stream."""
    _in_traceback: set[tuple[int | None, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.count = sum(map(len, self.points.values()))

    @property
    def size(self) -> int:
        """The points, and the entries as the points that need as much memory."""
        return self.count + self.entries.size // POINT_BYTES

    def curves(self) -> dict[Key, Points]:
        """The metrics of the job."""
        return {
            key: curve
            for key, curve in self.points.items()
            if curve.source != USED
            and (len(curve) >= LEAST or curve.source in (METRICS, POSTED, OBSERVED))
        }

    def used(self) -> dict[str, Points]:
        """The curves of what the worker used, by name."""
        return {name: curve for (_, name), curve in self.points.items() if curve.source == USED}

    def progress(self, rank: int | None, now: float) -> JobProgress:
        """The progress by the counters of a rank of PROGRESS_OF, and the newest
        value of each curve that the rank tells.
        """
        values = {
            name: points.values[-1]
            for (of, name), points in self.curves().items()
            if of == rank and points.source != OBSERVED
        }
        metrics = {name: values[name] for name in printed_metrics.by_weight(values)}
        return replaced(self.bars[rank].progress(now), metrics=metrics)

    def observed(self, now: float) -> JobProgress:
        """The progress by the optimizers of rank 0, and the newest values of their curves."""
        metrics = {
            name: points.values[-1]
            for (rank, name), points in self.points.items()
            if rank == 0 and points.source == OBSERVED
        }
        return replaced(self.bars[0].planned(now), metrics=metrics)

    def losses(self) -> list[Loss]:
        """The losses that the ranks print, and which of them are lost."""
        return losses(self.curves())

    def printed(self) -> list[tuple[float, float]]:
        """Times and steps of the curve of PROGRESS_OF with most points, else of their progress
        bar."""
        return _marks_of(self._over_steps()) or self._marks()

    def reached(self) -> list[tuple[float, float]]:
        """Times and steps that were printed, else of the optimizers, whose lines are up to 16 s
        apart."""
        return self.printed() or _marks_of(self._of_optimizers())

    def step(self) -> float | None:
        """Return the largest step in the metrics of PROGRESS_OF, else in their progress bars, else
        of the optimizers; None: there is none.
        """
        steps = [step for curve in self._over_steps() for step in curve.steps if isfinite(step)]
        if steps:
            return max(steps)
        return next((step for _, step in reversed(self.reached())), None)

    def _over_steps(self) -> list[Points]:
        """The curves over steps that PROGRESS_OF tell."""
        return [
            each
            for (of, _), each in self.curves().items()
            if of in PROGRESS_OF and each.axis == "step" and each.source != OBSERVED
        ]

    def _of_optimizers(self) -> list[Points]:
        return [
            each
            for (of, _), each in self.points.items()
            if of in PROGRESS_OF and each.source == OBSERVED
        ]

    def _marks(self) -> list[tuple[float, float]]:
        """The marks of the first progress bar of PROGRESS_OF."""
        return next((marks for bars in self.bars.values() if (marks := bars.marks())), [])

    def first_steps(self) -> str:
        """A metric with 3 values, a counter with 3 marks, or 3 steps of an optimizer, as a text;
        "": there is none yet.
        """
        counted = [
            (name, points.source)
            for (_, name), points in self.points.items()
            if points.source != USED and len(points) >= LEAST
        ]
        told = [name for name, source in counted if source != OBSERVED]
        if told:
            return f"{LEAST} values of {told[0]}"
        if any(bars.counted() for bars in self.bars.values()):
            return f"{LEAST} marks of progress"
        return f"{LEAST} steps of an optimizer" if counted else ""

    def add(self, time: float, rank: int | None, stream: str, kind: str, text: str) -> None:
        """Read a record of the log; `time` in seconds since 1970."""
        where = (rank, stream)
        text = self._begun.pop(where, "") + text
        if kind == GOES_ON:
            # Of a longer line only the end is read, and it gives no metrics.
            if len(text) <= printed_metrics.LONGEST and len(self._begun) < _WRITERS_MAX:
                self._begun[where] = text
            return
        if stream == METRICS:
            self._exact(time, text)
            return
        if (
            text.startswith(WARNING)
            and where == (None, "stdout")
            and len(self.warnings) < _WARNINGS_MAX
        ):
            self.warnings.append(text[len(WARNING) :])
            return
        if where in self._in_traceback:
            if not text.startswith((" ", "\t")) and text:
                self._in_traceback.discard(where)
            return
        if text.startswith("Traceback ("):
            if len(self._in_traceback) < _WRITERS_MAX:
                self._in_traceback.add(where)
            return
        reading = printed_metrics.read(text)
        if reading:
            if rank in self.bars:
                self.bars[rank].add(time, reading)
            for name, value in reading.values.items():
                self._point((rank, name), stream, time, value, reading)

    def _exact(self, time: float, text: str) -> None:
        """Read a line of `metric_lines`, or an object with what the worker used. A
        script may write anything.
        """
        try:
            found = json.loads(text)
            used = isinstance(found, dict)
            kind = None if used else found[1]
            if kind == lag.KIND:
                self.entries.add(found[0], found[2])
                return
            if kind == WRITTEN:
                self.written += [float(at) for at in found[2]]
                if len(self.written) > _WRITTEN_MAX:
                    del self.written[::2]
                return
            if kind == ALERT:
                if len(self.alerts) < ALERTS_MAX:
                    self.alerts.append(alerts.parse(found[0], found[2]))
                return
            if kind == CHECKPOINT:
                self._add_checkpoint(found[2])
                return
            if kind == OBSERVED:
                self._add_observed(time, int(found[0]), float(found[2]), *found[3:5])
                return
            rank, step, dropped, values, *posted = (
                (None, None, 0, found.get("used", {})) if used else found
            )
            known = {_whole(name): float(value) for name, value in values.items()}
            reading = printed_metrics.LineReading(known, None if step is None else float(step))
            rank = None if rank is None else int(rank)
            self.dropped += int(dropped)
            if posted and rank in self.bars:
                self.bars[rank].post(time, *posted[0])
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return
        for name, value in known.items():
            self._point(
                (rank, name), USED if used else POSTED if posted else METRICS, time, value, reading
            )

    def _add_observed(
        self,
        time: float,
        rank: int,
        step: float,
        values: dict[str, float],
        planned: float | None = None,
    ) -> None:
        """Add what was seen of the optimizers of a rank. Raises ValueError and others: a script
        wrote it.
        """
        known = {_whole(name): float(each) for name, each in values.items()}
        reading = printed_metrics.LineReading(known, step)
        for name, value in reading.values.items():
            self._point((rank, name), OBSERVED, time, value, reading)
        if planned is not None and rank in self.bars:
            self.bars[rank].plan(time, step, float(planned))

    def _add_checkpoint(self, item: object) -> None:
        """Read an item of `checkpoint_lines`. Raises ValueError, TypeError: a script wrote it."""
        known = self.checkpoints
        if item is None or known is None:
            known = self.checkpoints = {}
        if isinstance(item, list) and len(item) == 1:
            known.pop(item[0], None)
        elif item is not None:
            seen = parse(item)
            if seen.path in known or len(known) < _CHECKPOINTS_MAX:
                known[seen.path] = seen

    def _point(
        self, key: Key, source: str, time: float, value: float, reading: printed_metrics.LineReading
    ) -> None:
        points = self.points.get(key)
        if points is None:
            if len(key[1]) > _NAME_MAX or not self._has_place(source):
                self.dropped += source == METRICS
                return
            points = self.points[key] = Points(_axis(reading), source)
        if points.source != source:
            if source == OBSERVED or not (source == METRICS or points.source in (POSTED, OBSERVED)):
                return
            self.count -= len(points)
            # exact values are better than printed ones
            points = self.points[key] = Points(_axis(reading), source)
        step = _step(points, reading)
        if (
            points
            and (points.steps[-1], points.values[-1]) == (step, value)
            and points.axis != "count"
        ):
            return  # a bar that was drawn again
        points.add(step, time, value)
        self.count += 1
        if self.count > self.most:
            self.points = {
                each: curve.thinned_to(max(4, len(curve) // 2))
                for each, curve in self.points.items()
            }
            self.count = sum(map(len, self.points.values()))

    def _has_place(self, source: str) -> bool:
        """Return True if there is a place for one more curve. What the script tells takes the place
        of a curve of the optimizers; else exact values may take the place of a printed name that
        has no curve yet.
        """
        if len(self.points) < _CURVES_MAX:
            return True
        seen = (key for key, curve in self.points.items() if curve.source == OBSERVED)
        begun = (
            key
            for key, curve in self.points.items()
            if len(curve) < LEAST and curve.source != METRICS
        )
        key = None
        if source not in (OBSERVED, USED):
            key = next(seen, None)
        if key is None and source == METRICS:
            key = next(begun, None)
        if key is None:
            return False
        self.count -= len(self.points.pop(key))
        return True


def _whole(name: str) -> str:
    """A name without halves of characters, which no answer could hold."""
    return name.encode("utf-8", "replace").decode()


def _marks_of(curves: list[Points]) -> list[tuple[float, float]]:
    """Times and steps of the curve with most points; []: there is none."""
    if not curves:
        return []
    steps, times, _ = max(curves, key=len).columns
    return [(at, step) for at, step in zip(times, steps, strict=True) if isfinite(step)]


def _axis(reading: printed_metrics.LineReading) -> Axis:
    if reading.step is not None:
        return "step"
    return "count" if reading.epoch is None else "epoch"


def _step(points: Points, reading: printed_metrics.LineReading) -> float:
    """The step of a new point. The steps of an epoch are numbered across
    epochs, if the line has both.
    """
    before = points.steps[-1] if points else 0.0
    if points.axis == "count":
        return before + 1.0
    if points.axis == "epoch":
        return before if reading.epoch is None else reading.epoch
    if reading.step is None:
        return before
    if reading.epoch is not None and reading.steps:
        return reading.epoch * reading.steps + reading.step
    return reading.step
