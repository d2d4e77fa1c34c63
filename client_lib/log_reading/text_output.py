"""Print a job's log: stream in, text out. `rendering` makes the text of a line."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Protocol

from client_lib.errors import ClientLibError, WaitTimeout
from client_lib.log_reading.reader import Gap, LogEntry, Params, log_entries
from client_lib.log_reading.rendering import COLLAPSE, LogPrinter
from client_lib.spec.states import Reason, State
from client_lib.worker.format import LAUNCHER

if TYPE_CHECKING:
    from client_lib.log_reading.cell import CellOutput

SILENT_S = 2.0
"""Time without a line after which a follower says that the job runs."""
_STARTS = timedelta(minutes=1)  # longest time for which Python is said to start
_SILENT = frozenset({State.PENDING, State.RESTARTING})  # states in which no line comes


def several_ranks(spec: Mapping[str, Any]) -> bool:
    """The fields of this job spec leave room for more than one rank: then lines need their rank before them."""
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


class OpenLogs(Protocol):
    def __call__(self, params: Params, *, deadline: float | None = None) -> Iterator[bytes]: ...


class _OutputGone(Exception):
    """Wraps an OSError of the output: inside the stream it would count as a lost connection, and be retried."""


@dataclass
class LogOutput:
    """Prints the log of the job `name`, once. The thread that reads the stream is blocked while no line comes; what has
    to appear then is written by timers."""

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
    """A place beside the lines. Without one, messages go to stderr and a progress bar becomes a line when it ends."""
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
            columns=shutil.get_terminal_size().columns if self.out.isatty() else None,
            collapse=self.collapse,
            bars_beside=self.beside is not None,
            colours=self.out.isatty() and not os.environ.get("NO_COLOR"),
        )

    def write(self, open_logs: OpenLogs, params: Params) -> None:
        """Print the lines as they arrive. Raises WaitTimeout at the deadline, and the errors of the server."""

        def check_deadline() -> None:
            if self.deadline is not None and time.monotonic() >= self.deadline:
                raise WaitTimeout(f"job {self.name} is not final yet")

        def blocks(wanted: Params) -> Iterator[bytes]:
            check_deadline()
            for block in open_logs(wanted, deadline=self.deadline):
                check_deadline()
                yield block
                try:
                    with self._lock:
                        self.out.flush()  # the next block may take long
                except OSError as error:
                    raise _OutputGone(error) from error

        def say_gap(gap: Gap) -> None:
            self.say(f"{gap.records} lines of worker {gap.worker} in attempt {gap.attempt} are gone\n")

        entries = log_entries(blocks, params, on_state=self._on_state, on_gap=say_gap, retry_s=self.retry_s)
        try:
            with closing(entries):  # type: ignore[type-var]
                for entry in entries:
                    if entry.stream == LAUNCHER and "stream" not in params:
                        self.say(f"job {self.name}, worker {entry.worker}: {entry.text}\n")
                    else:
                        self._feed(entry)
        except _OutputGone as gone:
            raise gone.args[0] from None
        except (KeyboardInterrupt, ClientLibError):
            self._write(self._printer.close())  # held lines, and the end of the line of a progress bar
            raise
        finally:
            with self._lock:
                for timer in filter(None, (self._silence, self._idle)):
                    timer.cancel()
        self._write(self._printer.close())
        self.out.flush()

    def say(self, text: str) -> None:
        """Print a message that is no line of the job: on stderr, so that it is never taken for one."""
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
            self._silence = _started(SILENT_S, self._say_silence)
        if self.beside:
            self.beside.state(facts)
            return
        why = f": {facts['message']}" if facts.get("message") else ""
        sentence = f"job {self.name} {facts.get('state')} ({facts.get('reason')}){why}\n"
        hung, self._hung = self._hung, facts.get("reason") == Reason.HUNG
        if (facts.get("state") in _SILENT or hung or self._hung) and sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def _say_silence(self) -> None:
        with self._lock:
            if self._silence and not self._silence.finished.is_set():  # set: a line came first
                self.say(f"job {self.name} RUNNING: {self.waits_for}\n")

    def _feed(self, entry: LogEntry) -> None:
        with self._lock:
            self._write(self._printer.feed(entry))
            self._fed_at = time.monotonic()
            if self.collapse and self._idle is None:
                self._idle = _started(COLLAPSE.total_seconds(), self._write_held)

    def _write_held(self) -> None:
        """Write held lines if no line came for COLLAPSE, else look again when it may have passed."""
        with self._lock, suppress(OSError):  # the reading thread's next write fails likewise, and its caller is told
            if self._idle is None or self._idle.finished.is_set():  # the log has ended meanwhile
                return
            left_s = self._fed_at + COLLAPSE.total_seconds() - time.monotonic()
            self._idle = _started(left_s, self._write_held) if left_s > 0 else None
            if self._idle is None:
                self.out.write(self._printer.idle())
                self.out.flush()

    def _write(self, text: str) -> None:
        with self._lock:
            if self._silence:
                self._silence.cancel()
            self.out.write(text)
            if self.beside:
                self.beside.bars(self._printer.bars)


def _started(delay_s: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, act)
    timer.daemon = True
    timer.start()
    return timer


def keeps_running(name: str) -> str:
    """The message for a user who stops following a job."""
    again, stop = f"`client-lib logs -f {name}` shows it again", f"`client-lib cancel {name}` stops it"
    return f"\njob {name} keeps running; {again}, {stop}\n"
