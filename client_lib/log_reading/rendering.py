"""The text of a followed log: entries in, text to write out. Pure: no file, clock or terminal is touched.

    [0] epoch 1 loss 0.25          `[rank]`, where the job has several
    [0-3] loading…                 identical lines of several ranks, collapsed; a line that goes on
    [1] …done                      and its continuation
    [train.log] epoch 1            a line of no rank: its stream, and its worker after the first one (`train.log 1`)

Progress (tqdm) is redrawn in place at the bottom of a terminal; elsewhere the last line of a progress bar is printed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from client_lib.log_reading.reader import LogEntry
from client_lib.spec.summary import spans
from client_lib.worker.format import GOES_ON, PROGRESS

COLLAPSE = timedelta(seconds=0.3)
"""Identical lines of several ranks within this time become one line."""
MAX_BARS = 8
FEW = 4  # ranks; from here on one bar is drawn for all
_MAX_HELD = 1000  # held lines
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 95)  # of ranks, steady; red is for failures
_STEP = re.compile(r".*(?<![\d.])(\d+)/\d")  # the last: `580/1000` of tqdm's `Epoch 1/3: 58%|...| 580/1000`
_PREFIX = re.compile(r"^(?P<stamp>\d\S*Z )?(?P<head>\[(?P<rank>\d+)\])")

_Source = tuple[int, int, "int | None", str]


class LogPrinter:
    """Renders one job's entries, in their order.

    `feed` and `close` return the text to write now, with line ends.
    """

    def __init__(
        self,
        *,
        prefix: bool = True,
        timestamps: bool = False,
        columns: int | None = None,
        collapse: bool = False,
        bars_beside: bool = False,
        colours: bool = False,
    ) -> None:
        """`columns`: the width of the terminal; None: the output is no terminal, and nothing is redrawn. `bars_beside`:
        the caller shows `bars` elsewhere. `colours`: `[rank]` has the colour of its rank."""
        self._prefix = prefix
        self._timestamps = timestamps
        self._columns = columns
        self._bars_beside = bars_beside
        self._colours = colours
        self._collapser = _Collapser() if collapse else None
        self._going_on: set[_Source] = set()
        self._bars: dict[_Source, str] = {}
        self._drawn = 0

    def feed(self, entry: LogEntry) -> str:
        """The text to write for this entry; "" if it has to wait."""
        source = (entry.attempt, entry.worker, entry.rank, entry.stream)
        if entry.kind == PROGRESS:
            return self._progress(source, entry)
        lines = self._last_progress(source)
        line = _Line(entry, starts_inside=source in self._going_on)
        (self._going_on.add if entry.kind == GOES_ON else self._going_on.discard)(source)
        ready = self._collapser.feed(line) if self._collapser else [line]
        return self._write(lines + [self._render(one) for one in ready])

    def idle(self) -> str:
        """Release held lines: no line came for a moment."""
        return self._write([self._render(line) for line in self._collapser.flush()]) if self._collapser else ""

    @property
    def bars(self) -> list[str]:
        """The running progress bars, by rank, for a display beside the log. From FEW ranks on it is the first rank's,
        with the lowest and highest step of all."""
        first, spread = self._one_for_all()
        return [first + spread] if first else self._by_rank()

    def _by_rank(self) -> list[str]:
        sources = sorted(self._bars, key=lambda source: (-1 if source[2] is None else source[2], source[1], source[3]))
        return [self._bars[source] for source in sources]

    def _one_for_all(self) -> tuple[str, str]:
        """The first rank's bar and the spread of all; empty: there are few, or one of them shows no step."""
        ranks = {source[2] for source in self._bars if source[2] is not None}
        steps = [int(found.group(1)) for bar in self._bars.values() if (found := _STEP.search(bar))]
        if len(ranks) < FEW or len(steps) < len(self._bars):
            return "", ""
        return self._by_rank()[0], f"  [{spans(ranks)}] step {min(steps)} to {max(steps)}"

    def close(self) -> str:
        """Return everything that is held, and the last progress."""
        bars, self._bars = [*self._bars.values()], {}
        held = [self._render(line) for line in self._collapser.flush()] if self._collapser else []
        return self._write(held + [f"{self._painted(bar)}\n" for bar in bars])

    # --- lines

    def _render(self, line: _Line) -> str:
        entry = line.entry
        before = "…" if line.starts_inside else ""
        after = "…" if entry.kind == GOES_ON else ""
        head = self._painted(self._head(entry, line.ranks))
        return f"{head}{before}{entry.text}{after}\n"

    def _head(self, entry: LogEntry, ranks: Iterable[int | None]) -> str:
        stamp = f"{entry.time.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} " if self._timestamps else ""
        return f"{stamp}[{spans(ranks) or _place(entry)}] " if self._prefix else stamp

    def _painted(self, text: str) -> str:
        """The same text, a `[rank]` near its beginning in the colour of that rank."""
        return _PREFIX.sub(_in_colour, text, count=1) if self._colours and self._prefix else text

    def _write(self, lines: list[str]) -> str:
        text = "".join(lines)
        return self.clear() + text + self._drawing() if text else ""

    # --- progress

    def _progress(self, source: _Source, entry: LogEntry) -> str:
        self._going_on.discard(source)
        self._bars[source] = self._head(entry, [entry.rank]) + entry.text
        return "" if self._columns is None else self.clear() + self._drawing()

    def _last_progress(self, source: _Source) -> list[str]:
        """End a progress bar, because a line came. Without a terminal the last state of the bar is printed as a
        line."""
        bar = self._bars.pop(source, None)
        return [] if bar is None or self._columns is not None or self._bars_beside else [f"{bar}\n"]

    def clear(self) -> str:
        """Erase the bars until the next `feed`: other text is about to be written to the terminal."""
        drawn, self._drawn = self._drawn, 0
        up = f"\x1b[{drawn - 1}A" if drawn > 1 else ""
        return f"\r{up}\x1b[J" if drawn else ""

    def _drawing(self) -> str:
        """The bars, each cut to one row of the terminal."""
        if self._columns is None:
            return ""
        width = max(1, self._columns - 1)
        first, spread = self._one_for_all()
        if first:
            bars = [(first[: max(0, width - len(spread))] + spread)[:width]]
        else:
            bars = [bar[:width] for bar in self._by_rank()[:MAX_BARS]]
        self._drawn = len(bars)
        return "\n".join(map(self._painted, bars))


def _in_colour(prefix: re.Match[str]) -> str:
    colour = _COLOURS[int(prefix.group("rank")) % len(_COLOURS)]
    return f"{prefix.group('stamp') or ''}\x1b[{colour}m{prefix.group('head')}\x1b[39m"


def _place(entry: LogEntry) -> str:
    """Origin of a line that belongs to no rank. In a snapshot each worker has its own train.log."""
    return f"{entry.stream} {entry.worker}" if entry.worker else entry.stream


@dataclass
class _Line:
    entry: LogEntry
    starts_inside: bool
    number: int = 0
    """Counts held lines."""

    def __post_init__(self) -> None:
        self.ranks: list[int | None] = [self.entry.rank]

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for lines of several ranks that may become one. A line of no rank is like no other."""
        entry = self.entry
        alone = self.number if entry.rank is None else -1
        return entry.attempt, entry.stream, entry.kind, entry.text, self.starts_inside, alone


class _Collapser:
    """Holds lines for COLLAPSE, so that the same line of other ranks can join. Each rank's own order is kept."""

    def __init__(self) -> None:
        self._held: deque[_Line] = deque()
        self._alike: dict[tuple[object, ...], deque[_Line]] = {}
        self._newest: dict[int | None, int] = {}
        """rank -> number of the newest held line that it is part of."""
        self._count = 0

    def feed(self, line: _Line) -> list[_Line]:
        """Lines that wait no longer."""
        self._count += 1
        line.number = self._count
        rank = line.entry.rank
        alike = self._alike.setdefault(line.likeness, deque())
        # never one that stands before another line of the same rank
        twin = next((held for held in alike if held.number > self._newest.get(rank, 0)), None)
        if twin:
            twin.ranks.append(rank)
        else:
            alike.append(line)
            self._held.append(line)
        self._newest[rank] = (twin or line).number
        return self._aged(line.entry)

    def flush(self) -> list[_Line]:
        held = list(self._held)
        self._held.clear()
        self._alike.clear()
        return held

    def _aged(self, newest: LogEntry) -> list[_Line]:
        aged = []
        while self._held and (newest.time - self._held[0].entry.time > COLLAPSE or len(self._held) > _MAX_HELD):
            line = self._held.popleft()
            aged.append(line)
            alike = self._alike[line.likeness]
            alike.popleft()
            if not alike:
                del self._alike[line.likeness]
        return aged
