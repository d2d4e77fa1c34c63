"""Reads metrics from the lines that a script prints. The caller's `sink` gets them as lines of
`record.metric_lines`.
"""

import re
import signal
import time
from typing import Callable, Dict, List, Optional

from client_lib.launcher_protocol.record import JOB_STREAMS, metric_lines, numbers

_BLOCK_S = 0.5
"""Most CPU time for one block of lines, of up to 64 KiB."""
_FIRST_S = 2.0
"""CPU time that all blocks together may take at the start."""
_CPU_SHARE = 0.25
"""Addition to that time, as a part of the time that passes."""
_LONGEST = 4000
"""Bytes; longer lines are data, not metrics."""
_STREAMS = frozenset(stream.encode() for stream in JOB_STREAMS)
STEP = "step"
"""The group of this name has the step to which the values of the other groups belong."""


class LineMetrics:
    """Reads metrics from the lines of the ranks with the regular expression of the job (`metrics`).
    One per worker.

    An expression can take exponential time. `re` handles signals while it searches, so a timer of
    the process's CPU time can end a search. One bound holds for each block of lines, another one
    for all searches together: a share of the time that passes. After a search beyond a bound, the
    expression is not used any more, and a message in the log says so; lines are logged as before.
    """

    def __init__(
        self, expression: str, sink: Callable[[bytes], None], say: Callable[[str], None]
    ) -> None:
        """`say` gets a message for the log. Raises re.error: this Python does not know
        a part of the expression.
        """
        self._expression: Optional["re.Pattern[str]"] = re.compile(expression)
        self._sink = sink
        self._say = say
        self._begun: Dict[bytes, bytes] = {}  # unfinished lines by rank and stream
        self._since = time.monotonic()
        self._spent = 0.0

    def add(self, records: bytes) -> None:
        """Read whole records of the log."""
        if self._expression is None:
            return

        def interrupt(*_: object) -> None:
            raise TimeoutError

        found: List[bytes] = []
        begin = time.process_time()
        left_s = _FIRST_S + _CPU_SHARE * (time.monotonic() - self._since) - self._spent
        before = signal.signal(signal.SIGVTALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(0.001, min(_BLOCK_S, left_s)))
            try:
                for record in records.split(b"\n")[:-1]:
                    self._read(self._expression, record, found)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        except TimeoutError:
            self._expression = None
            self._say("the expression of `metrics` takes too long and was switched off")
        finally:
            signal.signal(signal.SIGVTALRM, before)
        self._spent += time.process_time() - begin
        if found:
            self._sink(b"".join(found))

    def _read(self, expression: "re.Pattern[str]", record: bytes, found: List[bytes]) -> None:
        _, _, rank, stream, text = record.split(b" ", 4)
        name = stream.rstrip(b"+~")
        if name not in _STREAMS:
            return
        text = self._begun.pop(rank + name, b"") + text
        if stream.endswith(b"+"):
            # one byte more than the bound: enough to know later that the line is too long
            self._begun[rank + name] = text[: _LONGEST + 1]
            return
        if len(text) > _LONGEST:
            return
        matches = expression.finditer(text.decode("utf-8", "replace"))
        values = numbers(pair for match in matches for pair in match.groupdict().items())
        step = values.pop(STEP, None)
        if values:
            found += metric_lines(int(rank) if rank.isdigit() else None, step, values)
