"""The value of one metric for each checkpoint of a job, so that the best one stays (`keep_best`).

The values are read from what rank 0 prints and from the metrics of libraries. They lie in a hidden
file beside the checkpoints: a later attempt, a job that gets a copy, and a removal by hand know
them, too.
"""

import contextlib
import json
import os
import posixpath
import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from client_lib.checkpoints import Checkpoint
from client_lib.checkpoints.metric_values import MetricValues, best_of
from client_lib.durable import write_file
from client_lib.launcher_protocol import printed_metrics
from client_lib.launcher_protocol.record import GOES_ON, JOB_STREAMS, METRICS, NO_RANK

FILE = ".client-lib-metric.json"
_SIZE_MAX = 2**22
_RANKS = (b"0", NO_RANK.encode())
_STREAMS = frozenset(stream.encode() for stream in JOB_STREAMS)


class _Valued(NamedTuple):
    """The value that belongs to a checkpoint."""

    modified: float
    """Time of its last change: of another version nothing is known."""
    value: Optional[float]
    """None: the metric had no value when it was written."""


class KnownValues:
    """The values of the checkpoints in a folder by a metric, as the file has them."""

    def __init__(self, metric: str, is_larger: bool) -> None:
        self.metric = metric
        self.is_larger = is_larger
        self.of: Dict[str, _Valued] = {}

    def value_of(self, checkpoint: Checkpoint) -> Optional[_Valued]:
        """None: nothing is known of this version."""
        valued = self.of.get(checkpoint.path)
        return valued if valued and valued.modified == checkpoint.modified else None

    def best(self, found: Iterable[Checkpoint]) -> Optional[Checkpoint]:
        """The best complete checkpoint with a step; None: none has a value. One without a step,
        such as `last.pt`, is overwritten, and so can't stand for the best."""
        known = []
        for each in sorted(found, key=lambda each: each.modified):
            valued = self.value_of(each)
            if valued and each.step is not None and not each.missing:
                known.append((each, valued.value))
        return best_of(known, self.is_larger)

    def why_kept(self, checkpoint: Checkpoint, best: Optional[Checkpoint]) -> str:
        """The reason why a checkpoint of an early step stays, as a clause; "": it may go."""
        if best and _step_and_folder(checkpoint) == _step_and_folder(best):
            return "it is the best by %s" % self.metric
        if self.value_of(checkpoint) is None:
            return "the %s at its step is not known, so it may be the best" % self.metric
        if best is None:
            return "%s has no value so far, so it may be the best" % self.metric
        return ""


def _step_and_folder(checkpoint: Checkpoint) -> Tuple[Optional[int], str]:
    """Equal for the files of one save, such as `model-400.pt` and `optimizer-400.pt`."""
    return checkpoint.step, posixpath.dirname(checkpoint.path)


def known_values(folder: str) -> Optional[KnownValues]:
    """The values that a launcher has left in a folder; None: there are none."""
    try:
        with open(os.path.join(folder, FILE), "rb") as file:
            saved = json.loads(file.read(_SIZE_MAX))
        known = KnownValues(str(saved["metric"]), bool(saved["largest"]))
        known.of = {
            path: _Valued(float(modified), None if value is None else float(value))
            for path, (modified, value) in saved["values"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return known


def values_of(folder: str, wanted: str) -> KnownValues:
    """The values of one metric that a launcher has left in a folder, if it has left some. `wanted`:
    `max:METRIC` or `min:METRIC`."""
    word, _, metric = wanted.partition(":")
    known = KnownValues(metric, word == "max")
    left = known_values(folder)
    if left and left.metric == metric:
        known.of = left.of
    return known


class CheckpointValues:
    """Reads the values of one attempt. Worker 0 has one, if the job has `keep_best`."""

    def __init__(self, folder: str, wanted: str, started_at: float) -> None:
        """`folder`: the job's directory for checkpoints. `wanted`: `max:METRIC` or `min:METRIC`.
        `started_at`: start of the ranks, in seconds since 1970."""
        self._folder = folder
        self._started_at = started_at
        self._values = MetricValues()
        self._begun: Dict[bytes, bytes] = {}
        self._known = values_of(folder, wanted)
        self._saved = self._known.of
        # of `avg_loss`, which may be printed as `avg loss`: few lines have it
        self._word = self._known.metric.lower().rpartition("_")[2].encode()
        self._is_held = False

    def take(self, records: bytes) -> None:
        """Read whole records of the log."""
        for record in records.split(b"\n")[:-1]:
            _, _, rank, stream, text = record.split(b" ", 4)
            name = stream.rstrip(b"+~")
            if name == METRICS.encode():
                self._take_exact(text)
            elif rank in _RANKS and name in _STREAMS:
                text = self._begun.pop(rank + name, b"") + text
                if stream.endswith(GOES_ON.encode()):
                    self._begun[rank + name] = text[: printed_metrics.LONGEST + 1]
                else:
                    self._take_printed(text)

    @property
    def problem(self) -> str:
        """A sentence for the job's events if checkpoints stay because the metric has no value; "":
        there is none."""
        if not self._is_held:
            return ""
        return (
            "keep_best: %s has no value so far, so no checkpoint was removed; "
            "`client-lib metrics` shows the names of the metrics" % self._known.metric
        )

    def may_go(self, early: Sequence[Checkpoint], found: Iterable[Checkpoint]) -> List[Checkpoint]:
        """Leave out what may be the best of all checkpoints that were found. The values that these
        have now are written to the file."""
        complete = [each for each in found if not each.missing]
        values = {each.path: self._value_now(each) for each in complete}
        self._known.of = {path: valued for path, valued in values.items() if valued}
        if self._known.of != self._saved and self._save():
            self._saved = self._known.of
        best = self._known.best(complete)
        self._is_held = best is None and len(early) > 0
        return [each for each in early if not self._known.why_kept(each, best)]

    def _value_now(self, checkpoint: Checkpoint) -> Optional[_Valued]:
        value = self._values.of(checkpoint.step, checkpoint.modified)
        known = self._known.value_of(checkpoint)
        is_own = checkpoint.modified >= self._started_at
        if is_own and (value is not None or known is None):
            return _Valued(checkpoint.modified, value)
        return known

    def _save(self) -> bool:
        """Write the file. False: it can't be written, as on a full disk; the next look tries again,
        and a later attempt keeps the checkpoints that it does not know."""
        saved = {
            "metric": self._known.metric,
            "largest": self._known.is_larger,
            "values": self._known.of,
        }
        try:
            write_file(os.path.join(self._folder, FILE), json.dumps(saved).encode())
        except OSError:
            return False
        return True

    def _take_printed(self, text: bytes) -> None:
        if self._word not in text.lower():
            return
        reading = printed_metrics.read(text.decode("utf-8", "replace"))
        if reading:
            step = reading.step
            if step is not None and reading.epoch is not None and reading.steps:
                step += reading.epoch * reading.steps
            self._add(step, reading.values)

    def _take_exact(self, text: bytes) -> None:
        """Read a line of `metric_lines`. A script may write anything."""
        with contextlib.suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
            rank, step, _, values = json.loads(text)[:4]
            if rank in (0, None) and isinstance(values, dict):
                self._add(None if step is None else float(step), values)

    def _add(self, step: Optional[float], values: Dict[str, float]) -> None:
        value = values.get(self._known.metric)
        if value is not None:
            self._values.add(step, time.time(), float(value))
