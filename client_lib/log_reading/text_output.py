"""Print a job's log: stream in, text out.

    [0] epoch 1 loss 0.25          `[rank]`, where the job has several
    [0-3] loading                  identical lines of several ranks, collapsed
    [train.log] epoch 1            a line of no rank: its stream, and its worker from 1 on

On a terminal and in a notebook text appears as soon as it is there, and nothing in it acts on the
screen but colours (`visible_text`): a rank's own redraws came as progress, which is drawn below the
lines. A line without an end is shown as `[0] loading…`, and continued as `[0] …done`. In a pipe or
a file lines are whole and as they were written; of a progress bar the last state is a line.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from client_lib import visible_text
from client_lib.errors import ClientLibError, WaitTimeout
from client_lib.launcher_protocol.record import GOES_ON, LAUNCHER, PROGRESS
from client_lib.log_reading.reader import Gap, LogEntry, Params, WholeEntries, log_entries
from client_lib.spec.states import Reason, State
from client_lib.spec.wording import spans

if TYPE_CHECKING:
    from client_lib.log_reading.cell import CellOutput

SILENT_S = 2.0  # without a line, after which a follower says that the job runs
_STARTS = timedelta(minutes=1)  # longest time for which Python is said to start
_SILENT = frozenset({State.PENDING, State.RESTARTING})  # states in which no line comes
COLLAPSE = timedelta(seconds=0.3)
"""Identical lines of several ranks within this time become one line."""
MAX_BARS = 8
FEW = 4  # ranks; from here on one bar is drawn for all
_MAX_HELD = 1000  # held lines
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 95)  # of ranks, steady; red is for failures
# the last: `580/1000` of tqdm's `Epoch 1/3: 58%|...| 580/1000`
_STEP = re.compile(r".*(?<![\d.])(\d+)/\d")
_PREFIX = re.compile(r"(\d\S*Z )?(?P<head>\[(?P<rank>\d+)\])")

_Source = tuple[int, int, "int | None", str]


def several_ranks(spec: Mapping[str, Any]) -> bool:
    """The fields of this job spec leave room for more than one rank: then lines
    need their rank before them.
    """
    processes = spec.get("processes_per_worker", "default")
    if spec.get("n_workers", 1) > 1:
        return True
    if processes != "default":
        return bool(processes > 1)
    return not (spec.get("type") == "nogpu" or (spec.get("instance_type") or "").startswith("cpu"))


def waits_for(spec: Mapping[str, Any], started_at: datetime | None) -> str:
    """`2 workers, starting Python`: what happens before the first line of a job that runs."""
    count = spec.get("n_workers", 1)
    workers = "1 worker" if count == 1 else f"{count} workers"
    if started_at and datetime.now(timezone.utc) - started_at > _STARTS:
        return f"{workers}, no line yet"
    program = spec["script"].split()[0]
    is_python = program.endswith(".py") or "(" in program
    return f"{workers}, starting {'Python' if is_python else os.path.basename(program)}"


class TextOut(Protocol):
    """An open text file, or an object that behaves like one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


OpenLogs = Callable[..., Iterator[bytes]]
"""Takes Params, and `deadline`, a value of time.monotonic() or None."""


class _OutputGone(Exception):
    """Wraps an OSError of the output: inside the stream it would count as a lost
    connection, and be retried.
    """


@dataclass
class LogOutput:
    """Prints the log of the job `name`, once. The thread that reads the stream is blocked while no
    line comes; what has to appear then is written by timers."""

    name: str
    out: TextOut
    prefix: bool = True
    """`[rank]` in front of each line."""
    timestamps: bool = False
    retry_s: float = 30.0
    deadline: float | None = None
    """Value of time.monotonic() at which to stop; None: the end of the log."""
    collapse: bool = False
    """Print identical lines of several ranks as one; each line waits a moment for its twins."""
    beside: CellOutput | None = None
    """A place beside the lines. Without one, messages go to stderr and a progress bar
    becomes a line when it ends.
    """
    waits_for: str = ""
    """Message about a job that runs and is silent from its start; "": none."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._said: set[str] = set()
        self._hung = False
        self._silence: threading.Timer | None = None
        self._idle: threading.Timer | None = None
        self._fed_at = 0.0
        self._printer = LogPrinter(
            prefix=self.prefix,
            timestamps=self.timestamps,
            columns=width(self.out) if self.out.isatty() else None,
            collapse=self.collapse,
            bars_beside=self.beside is not None,
            colours=self.out.isatty() and not os.environ.get("NO_COLOR"),
        )

    def write(self, open_logs: OpenLogs, params: Params) -> None:
        """Print the lines as they arrive. Raises WaitTimeout at the deadline, and
        the errors of the server.
        """

        def blocks(wanted: Params) -> Iterator[bytes]:
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise WaitTimeout(f"job {self.name} is not final yet")
            for block in open_logs(wanted, deadline=self.deadline):  # ends at the deadline
                yield block
                try:
                    with self._lock:
                        self.out.flush()  # the next block may take long
                        if self._printer.columns is not None:
                            self._printer.columns = width(self.out)
                except OSError as error:
                    raise _OutputGone(error) from error

        def say_gap(gap: Gap) -> None:
            self.say(
                f"{gap.records} lines of worker {gap.worker} in attempt {gap.attempt} are gone\n"
            )

        entries = log_entries(
            blocks, params, on_state=self._on_state, on_gap=say_gap, retry_s=self.retry_s
        )
        try:
            with closing(entries):  # type: ignore[type-var]
                for entry in entries:
                    if entry.stream == LAUNCHER and "stream" not in params:
                        self.say(f"job {self.name}, worker {entry.worker}: {entry.text}\n")
                    else:
                        self._feed(entry, is_live=self.collapse and "follow" in params)
        except _OutputGone as gone:
            raise gone.args[0] from None
        except (KeyboardInterrupt, ClientLibError):
            # held lines, and the end of the line of a progress bar
            self._write(self._printer.close())
            raise
        finally:
            with self._lock:
                for timer in filter(None, (self._silence, self._idle)):
                    timer.cancel()
        self._write(self._printer.close())
        self.out.flush()

    def say(self, text: str) -> None:
        """Print a message that is no line of the job: on stderr, so that
        it is never taken for one.
        """
        text = visible_text.plain(text)
        with self._lock:
            if self.beside:
                self.beside.say(text)
                return
            self.out.write(self._printer.clear())
            self.out.flush()
            sys.stderr.write(text)
            sys.stderr.flush()

    def _on_state(self, facts: dict[str, Any]) -> None:
        """Print why no lines come, once for each reason, and that a job goes on that had hung."""
        if facts.get("state") == State.RUNNING and self.waits_for and not self._silence:
            self._silence = started_timer(SILENT_S, self._say_silence)
        if self.beside:
            self.beside.state(facts)
            return
        why = f": {facts['message']}" if facts.get("message") else ""
        sentence = f"job {self.name} {facts.get('state')} ({facts.get('reason')}){why}\n"
        hung = self._hung
        self._hung = facts.get("reason") == Reason.HUNG
        if (facts.get("state") in _SILENT or hung or self._hung) and sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def _say_silence(self) -> None:
        with self._lock:
            if self._silence and not self._silence.finished.is_set():  # set: a line came first
                self.say(f"job {self.name} RUNNING: {self.waits_for}\n")

    def _feed(self, entry: LogEntry, *, is_live: bool) -> None:
        """`is_live`: held lines are written when no line comes, as the
        next one may come much later.
        """
        with self._lock:
            self._write(self._printer.feed(entry))
            self._fed_at = time.monotonic()
            if is_live and self._idle is None:
                self._idle = started_timer(COLLAPSE.total_seconds(), self._write_held)

    def _write_held(self) -> None:
        """Write held lines if no line came for COLLAPSE, else look
        again when it may have passed.
        """
        # the reading thread's next write fails likewise, and its caller is told
        with self._lock, suppress(OSError):
            if self._idle is None or self._idle.finished.is_set():  # the log has ended meanwhile
                return
            left_s = self._fed_at + COLLAPSE.total_seconds() - time.monotonic()
            self._idle = started_timer(left_s, self._write_held) if left_s > 0 else None
            if self._idle is None:
                self.out.write(self._printer.idle())
                self.out.flush()

    def _write(self, text: str) -> None:
        with self._lock:
            if self._silence:
                self._silence.cancel()
            self.out.write(text)
            if self.beside:
                self.beside.bars(self._printer.bars())


def width(terminal: TextOut) -> int:
    """Columns of this terminal. `shutil` looks at stdout alone, which may be a pipe."""
    own = 0
    with suppress(OSError):
        own = os.get_terminal_size(getattr(terminal, "fileno", lambda: 1)()).columns
    return shutil.get_terminal_size((own or 80, 24)).columns


def started_timer(delay_s: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()
    return timer


def keeps_running(name: str) -> str:
    """The message for a user who stops following a job."""
    again = f"`client-lib logs -f {name}` follows it again"
    stop = f"`client-lib cancel {name}` stops it"
    return f"\njob {name} keeps running; {again}, {stop}\n"


# --- the text of entries; pure: no file, clock or terminal is touched


@dataclass
class LogPrinter:
    """Renders one job's entries, in their order. `feed` and `close` return the text to
    write now, with line ends.
    """

    prefix: bool = True
    timestamps: bool = False
    columns: int | None = None
    """Width of the terminal; None: the output is no terminal, and nothing is redrawn. It may be set
    again: users resize terminals."""
    collapse: bool = False
    bars_beside: bool = False
    """The caller shows `bars` elsewhere."""
    colours: bool = False
    """`[rank]` has the colour of its rank."""

    def __post_init__(self) -> None:
        # lines are held for COLLAPSE, so that equal lines of other ranks can join them
        self._held: deque[_Line] = deque()
        self._going_on: set[_Source] = set()
        self._bars: dict[_Source, str] = {}
        self._drawn = 0
        # None: text is shown to a reader who waits for it
        self._whole = WholeEntries() if self.columns is None and not self.bars_beside else None

    def feed(self, entry: LogEntry) -> str:
        """The text to write for this entry; "" if it has to wait."""
        if self._whole is None:
            return self._fed(entry._replace(text=visible_text.for_terminal(entry.text)))
        return "".join(map(self._fed, self._whole.add(entry)))

    def _fed(self, entry: LogEntry) -> str:
        source = (entry.attempt, entry.worker, entry.rank, entry.stream)
        if entry.kind == PROGRESS and self._whole is None:
            self._going_on.discard(source)
            self._bars[source] = self._head(entry, [entry.rank]) + entry.text
            return "" if self.columns is None else self.clear() + self._drawing()
        self._bars.pop(source, None)  # a line ends a progress bar
        starts_inside = source in self._going_on
        (self._going_on.add if entry.kind == GOES_ON else self._going_on.discard)(source)
        likeness = (
            entry.text,
            entry.stream,
            entry.kind,
            entry.attempt,
            starts_inside,
            entry.rank is None,
        )
        line = _Line(entry, starts_inside, [entry.rank], likeness)
        return self._write(self._rendered(self._released(line) if self.collapse else [line]))

    def idle(self) -> str:
        """Release held lines: no line came for a moment."""
        held = self._held
        self._held = deque()
        return self._write(self._rendered(held))

    def close(self) -> str:
        """Return everything that is held, and the last progress."""
        rest = "".join(map(self._fed, self._whole.close() if self._whole else ()))
        bars = [*self._bars.values()]
        self._bars = {}
        return rest + self.idle() + self._write([f"{self._painted(bar)}\n" for bar in bars])

    def _released(self, line: _Line) -> list[_Line]:
        """Hold the line, or join it to an equal line of other ranks; return the lines that need not
        wait any longer. The order of each rank's lines is kept."""
        rank = line.entry.rank
        twin = None
        for held in reversed(self._held) if rank is not None else ():
            if rank in held.ranks:  # a twin never stands before another line of the same rank
                break
            if held.likeness == line.likeness:
                twin = held
        if twin:
            twin.ranks.append(rank)
        else:
            self._held.append(line)
        aged = []
        now = line.entry.time
        while self._held and (
            now - self._held[0].entry.time > COLLAPSE or len(self._held) > _MAX_HELD
        ):
            aged.append(self._held.popleft())
        return aged

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
        stamp = (
            f"{entry.time.isoformat(timespec='milliseconds').replace('+00:00', 'Z')} "
            if self.timestamps
            else ""
        )
        place = f"{entry.stream} {entry.worker}" if entry.worker else entry.stream
        return f"{stamp}[{spans(ranks) or place}] " if self.prefix else stamp

    def _painted(self, text: str) -> str:
        """The text with a `[rank]` near its beginning in the colour of that rank."""
        found = _PREFIX.match(text) if self.colours and self.prefix else None
        if not found:
            return text
        colour = _COLOURS[int(found["rank"]) % len(_COLOURS)]
        (start, end) = found.span("head")
        return f"{text[:start]}\x1b[{colour}m{text[start:end]}\x1b[39m{text[end:]}"

    def _write(self, lines: list[str]) -> str:
        return self.clear() + "".join(lines) + self._drawing() if lines else ""

    # --- progress

    def bars(self, width: int | None = None) -> list[str]:
        """The running progress bars, by rank, each cut to `width`. From FEW ranks on it is the
        first rank's with the lowest and highest step of all, unless a bar shows no step."""
        sources = sorted(
            self._bars,
            key=lambda source: (-1 if source[2] is None else source[2], source[1], source[3]),
        )
        bars = [self._bars[source] for source in sources]
        ranks = {source[2] for source in sources if source[2] is not None}
        steps = [int(found.group(1)) for bar in bars if (found := _STEP.match(bar))]
        if len(ranks) < FEW or len(steps) < len(bars):
            return bars if width is None else [visible_text.cut(bar, width) for bar in bars]
        spread = f"  [{spans(ranks)}] step {min(steps)} to {max(steps)}"
        if width is None:
            return [bars[0] + spread]
        first = visible_text.cut(bars[0], max(0, width - len(spread)))
        return [first + spread[:width]]

    def clear(self) -> str:
        """Erase the bars until the next `feed`: other text is about to
        be written to the terminal.
        """
        drawn = self._drawn
        self._drawn = 0
        up = f"\x1b[{drawn - 1}A" if drawn > 1 else ""
        return f"\r{up}\x1b[J" if drawn else ""

    def _drawing(self) -> str:
        """The bars, each cut to one row of the terminal."""
        if self.columns is None:
            return ""
        bars = self.bars(max(1, self.columns - 1))[:MAX_BARS]
        self._drawn = len(bars)
        return "\n".join(map(self._painted, bars))


class _Line(NamedTuple):
    entry: LogEntry
    starts_inside: bool
    ranks: list[int | None]
    """The ranks that print the line; ranks that print an equal line are added."""
    likeness: tuple[Any, ...]
    """Equal for lines of several ranks that may become one. A line of no rank
    becomes part of no other.
    """
