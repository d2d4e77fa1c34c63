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
from itertools import islice

from client_lib.log_reading.reader import LogEntry
from client_lib.spec.states import spans
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
            self._going_on.discard(source)
            self._bars[source] = self._head(entry, [entry.rank]) + entry.text
            return "" if self._columns is None else self.clear() + self._drawing()
        bar = self._bars.pop(source, None)
        # a line ends a progress bar, whose last state is printed as a line where nothing is redrawn
        ended = [] if bar is None or self._columns is not None or self._bars_beside else [f"{bar}\n"]
        line = _Line(entry, source in self._going_on, [entry.rank])
        (self._going_on.add if entry.kind == GOES_ON else self._going_on.discard)(source)
        return self._write(ended + self._rendered(self._collapser.feed(line) if self._collapser else [line]))

    def idle(self) -> str:
        """Release held lines: no line came for a moment."""
        return self._write(self._rendered(self._collapser.flush())) if self._collapser else ""

    def close(self) -> str:
        """Return everything that is held, and the last progress."""
        bars, self._bars = [*self._bars.values()], {}
        held = self._rendered(self._collapser.flush()) if self._collapser else []
        return self._write(held + [f"{self._painted(bar)}\n" for bar in bars])

    def _rendered(self, lines: Iterable[_Line]) -> list[str]:
        return [
            self._painted(self._head(line.entry, line.ranks))
            + ("…" if line.starts_inside else "")
            + line.entry.text
            + ("…\n" if line.entry.kind == GOES_ON else "\n")
            for line in lines
        ]

    def _head(self, entry: LogEntry, ranks: Iterable[int | None]) -> str:
        """The stamp and the origin of a line. In a snapshot each worker has its own train.log."""
        stamp = f"{entry.time.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} " if self._timestamps else ""
        place = f"{entry.stream} {entry.worker}" if entry.worker else entry.stream
        return f"{stamp}[{spans(ranks) or place}] " if self._prefix else stamp

    def _painted(self, text: str) -> str:
        """The same text, a `[rank]` near its beginning in the colour of that rank."""
        return _PREFIX.sub(_in_colour, text, count=1) if self._colours and self._prefix else text

    def _write(self, lines: list[str]) -> str:
        return self.clear() + "".join(lines) + self._drawing() if lines else ""

    # --- progress

    @property
    def bars(self) -> list[str]:
        """The running progress bars, by rank, for a display beside the log. From FEW ranks on it is the first rank's,
        with the lowest and highest step of all."""
        bars, spread = self._bars_and_spread()
        return [bars[0] + spread] if spread else bars

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
        bars, spread = self._bars_and_spread()
        if spread:
            bars = [bars[0][: max(0, width - len(spread))] + spread]
        self._drawn = min(len(bars), MAX_BARS)
        return "\n".join(self._painted(bar[:width]) for bar in bars[:MAX_BARS])

    def _bars_and_spread(self) -> tuple[list[str], str]:
        """The bars by rank, and the steps of all; "": there are few ranks, or a bar shows no step."""
        sources = sorted(self._bars, key=lambda source: (-1 if source[2] is None else source[2], source[1], source[3]))
        bars = [self._bars[source] for source in sources]
        ranks = {source[2] for source in sources if source[2] is not None}
        steps = [int(found.group(1)) for bar in bars if (found := _STEP.search(bar))]
        is_one = len(ranks) >= FEW and len(steps) == len(bars)
        return bars, f"  [{spans(ranks)}] step {min(steps)} to {max(steps)}" if is_one else ""


def _in_colour(prefix: re.Match[str]) -> str:
    colour = _COLOURS[int(prefix.group("rank")) % len(_COLOURS)]
    return f"{prefix.group('stamp') or ''}\x1b[{colour}m{prefix.group('head')}\x1b[39m"


@dataclass
class _Line:
    entry: LogEntry
    starts_inside: bool
    ranks: list[int | None]
    number: int = 0
    """Counts held lines."""

    def is_like(self, other: _Line) -> bool:
        """Lines of several ranks that may become one. A line of no rank is like no other."""
        one, two = self.entry, other.entry
        return (
            one.rank is not None
            and (one.text, one.stream, one.kind, one.attempt) == (two.text, two.stream, two.kind, two.attempt)
            and self.starts_inside == other.starts_inside
        )


class _Collapser:
    """Holds lines for COLLAPSE, so that the same line of other ranks can join. Each rank's own order is kept."""

    def __init__(self) -> None:
        self._held: deque[_Line] = deque()
        self._newest: dict[int | None, int] = {}
        """rank -> number of the newest held line that it is part of."""
        self._count = 0

    def feed(self, line: _Line) -> list[_Line]:
        """Lines that wait no longer."""
        rank, now = line.entry.rank, line.entry.time
        # a twin never stands before another line of the same rank
        behind = self._newest.get(rank, 0) - self._count + len(self._held)
        twin = next((held for held in islice(self._held, max(0, behind), None) if held.is_like(line)), None)
        if twin:
            twin.ranks.append(rank)
        else:
            self._count += 1
            line.number = self._count
            self._held.append(line)
        self._newest[rank] = (twin or line).number
        aged = []
        while self._held and (now - self._held[0].entry.time > COLLAPSE or len(self._held) > _MAX_HELD):
            aged.append(self._held.popleft())
        return aged

    def flush(self) -> list[_Line]:
        held, self._held = [*self._held], deque()
        return held
