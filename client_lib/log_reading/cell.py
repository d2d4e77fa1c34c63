"""A job's log in a notebook's cell: lines as ordinary output, above them one area with the state
and the progress bars.

    RUNNING train-x7k2m
    [0]  62%|██████▏   | 620/1000                  redrawn in place, at most every 0.2 s
    [1]  61%|██████    | 611/1000

    [0] epoch 1 loss 0.25                          the first lines, and one area with the last lines

No widget is needed, and the saved notebook stays small: at most three outputs, with HEAD_LINES and
TAIL_LINES lines.
"""

from __future__ import annotations

import contextvars
import importlib
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from client_lib.log_reading.text_output import keeps_running, started_timer
from client_lib.reports import display
from client_lib.reports.display import Bundle
from client_lib.spec.wire import JobInfo

HEAD_LINES = 1000
HEAD_CHARACTERS = 200_000
TAIL_LINES = 100
LINE_CHARACTERS = 2000  # longest line in the tail
_MAX_MESSAGES = 5
_STATE = {"state", "reason", "message", "attempt"}
_PAUSE_S = 0.2  # between two drawings: the interval at which a kernel sends printed text
_LONGEST_PAUSE_S = 5.0
# the pause is this part of the time since the first drawing: an hour has some 600 drawings
_SLOWER = 100


class Interrupted(KeyboardInterrupt):
    """The kernel was interrupted while a cell followed a job. The cell shows the
    message without a traceback.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@contextmanager
def in_cell_or_terminal(info: JobInfo, file: object | None) -> Iterator[CellOutput | None]:
    """Yield the output of a notebook's cell for a followed job; None: the text goes to a terminal,
    `file` or %%capture. Ctrl-C in the block prints that the job keeps running."""
    cell = (
        CellOutput(info)
        if file is None and type(sys.stdout).__module__ == "ipykernel.iostream"
        else None
    )
    try:
        yield cell
    except KeyboardInterrupt:
        if cell is not None:
            raise Interrupted(keeps_running(info.name).strip()) from None
        sys.stderr.write(keeps_running(info.name))
        raise
    finally:
        if cell is not None:
            cell.close()


class CellOutput:
    """A text file for the lines of the log, and a place for messages and progress
    beside them. Ends with `close`.
    """

    def __init__(self, info: JobInfo) -> None:
        self._name = info.name
        self._shown: dict[str, Any] = {}
        self._messages: deque[str] = deque(maxlen=_MAX_MESSAGES)
        self._lines_left = HEAD_LINES
        self._characters_left = HEAD_CHARACTERS
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._in_tail = 0
        self._ipython: Any = importlib.import_module("IPython.display")
        # tells the kernel to which cell the drawings belong
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._handles: dict[str, Any] = {}
        self._drawn: dict[str, Bundle] = {}
        self._wanted: dict[str, Bundle] = {}
        self._began = self._drawn_at = time.monotonic()
        self._timer: threading.Timer | None = None
        self.state(info.model_dump(include=_STATE))

    # --- methods of a text file

    def write(self, text: str) -> None:
        """Print lines as ordinary output as long as there is room; the first line that does not fit
        and all later lines go to the tail."""
        before = self._in_tail
        for line in text.splitlines(keepends=True):
            if self._in_tail or self._lines_left == 0 or len(line) > self._characters_left:
                self._in_tail += 1
                self._tail.append(line.rstrip("\n")[:LINE_CHARACTERS])
            else:
                self._lines_left -= 1
                self._characters_left -= len(line)
                sys.stdout.write(line)
        if self._in_tail > before:
            hidden = self._in_tail - len(self._tail)
            self._draw("tail", display.tail_bundle(self._name, hidden, list(self._tail)))

    def flush(self) -> None:
        """Do nothing: the kernel sends written text a few times a second, and each
        flush would be a message.
        """

    def isatty(self) -> bool:
        return False

    # --- beside the lines

    def say(self, sentence: str) -> None:
        sentence = sentence.strip()
        if sentence not in self._messages:
            self._messages.append(sentence)
            self._show(said=tuple(self._messages))

    def state(self, facts: Mapping[str, Any]) -> None:
        known = {name: str(facts.get(name) or "") for name in ("state", "reason", "message")}
        self._show(**known, attempt=int(facts.get("attempt") or 1))

    def bars(self, bars: Sequence[str]) -> None:
        self._show(bars=tuple(bars))

    def end(self, info: JobInfo) -> None:
        self._shown["took"] = (
            display.ran_for(info, info.finished_at or info.created_at) if info.state.final else ""
        )
        self._shown["attention"] = tuple(each.sentence for each in info.attention)
        self.state(info.model_dump(include=_STATE))

    def close(self) -> None:
        with self._lock:
            if self._timer:
                self._timer.cancel()
            self._redraw()

    def _show(self, **changes: Any) -> None:
        self._shown |= changes
        self._draw("state", display.live_bundle(self._name, **self._shown))

    # --- areas that are redrawn in place, by a timer, also while no line comes

    def _draw(self, area: str, bundle: Bundle) -> None:
        """The first drawing is immediate, which fixes the place of the area in the cell."""
        with self._lock:
            self._wanted[area] = bundle
            if area not in self._handles:
                self._handles[area] = self._ipython.display(bundle, raw=True, display_id=True)
                self._drawn[area] = bundle
            elif self._timer is None:
                now = time.monotonic()
                pause_s = min(max(_PAUSE_S, (now - self._began) / _SLOWER), _LONGEST_PAUSE_S)
                left_s = max(0.0, self._drawn_at + pause_s - now)
                self._timer = started_timer(left_s, lambda: self._context.run(self._redraw))

    def _redraw(self) -> None:
        with self._lock:
            self._timer = None
            self._drawn_at = time.monotonic()
            for area, bundle in self._wanted.items():
                if self._drawn[area] != bundle:
                    self._drawn[area] = bundle
                    self._handles[area].update(bundle, raw=True)
