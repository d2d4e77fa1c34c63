"""Reads metrics from the lines of the ranks with the regular expression of the job (`metrics`).

An expression can take exponential time. `re` handles signals while it searches, so a timer of the process's CPU time
bounds each block of lines, and all of them together to a share of the time: beyond it the expression is given up, with
a message in the log, and the lines go on.
"""

import re
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from client_lib.worker.format import JOB_STREAMS, metric_lines, numbers

_BLOCK_S = 0.5  # CPU time for the lines that were read at once, at most 64 KiB
_FIRST_S, _SHARE = 2.0, 0.25  # CPU time for all lines, and what is added of the time that passes
_LONGEST = 4000  # bytes; longer lines are data, not metrics
_STREAMS = frozenset(stream.encode() for stream in JOB_STREAMS)
STEP = "step"  # the group of this name is the step of the others


class _TooSlow(Exception):
    pass


def _interrupt(*_: Any) -> None:
    raise _TooSlow


class LineMetrics:
    """One per worker. `sink` gets lines of `metric_line`, `say` a message for the log."""

    def __init__(self, expression: str, sink: Callable[[bytes], None], say: Callable[[str], None]) -> None:
        """Raises re.error: this Python does not know a part of the expression."""
        self._expression: Optional["re.Pattern[str]"] = re.compile(expression)
        self._sink, self._say = sink, say
        self._begun: Dict[bytes, bytes] = {}  # unfinished lines by rank and stream
        self._since, self._spent = time.monotonic(), 0.0

    def add(self, records: bytes) -> None:
        """Read whole records of the log."""
        if self._expression is None:
            return
        found: List[bytes] = []
        begin = time.process_time()
        left_s = _FIRST_S + _SHARE * (time.monotonic() - self._since) - self._spent
        try:
            self._read_within(max(0.001, min(_BLOCK_S, left_s)), self._expression, records, found)
        except _TooSlow:
            self._expression = None
            self._say("the expression of `metrics` takes too long and was switched off")
        self._spent += time.process_time() - begin
        if found:
            self._sink(b"".join(found))

    def _read_within(self, limit_s: float, expression: "re.Pattern[str]", records: bytes, found: List[bytes]) -> None:
        before = signal.signal(signal.SIGVTALRM, _interrupt)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
            for record in records.split(b"\n")[:-1]:
                self._read(expression, record, found)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            signal.signal(signal.SIGVTALRM, before)

    def _read(self, expression: "re.Pattern[str]", record: bytes, found: List[bytes]) -> None:
        _, _, rank, stream, text = record.split(b" ", 4)
        name = stream.rstrip(b"+~")
        if name not in _STREAMS:
            return
        text = self._begun.pop(rank + name, b"") + text
        if stream.endswith(b"+"):
            self._begun[rank + name] = text[: _LONGEST + 1]  # enough to know at its end that it is too long
            return
        if len(text) > _LONGEST:
            return
        matches = expression.finditer(text.decode("utf-8", "replace"))
        values = numbers(pair for match in matches for pair in match.groupdict().items())
        step = values.pop(STEP, None)
        if values:
            found += metric_lines(int(rank) if rank.isdigit() else None, step, values)
