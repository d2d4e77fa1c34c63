"""Print a job's log: stream in, text out. `rendering` makes the text of a line."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
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
    """Settings for printing the log of the job `name`."""

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
    _reasons: set[str] = field(default_factory=set)
    _hung: bool = False

    def write(self, open_logs: OpenLogs, params: Params) -> None:
        """Print the lines as they arrive. Raises WaitTimeout at the deadline, and the errors of the server."""
        printer = LogPrinter(
            prefix=self.prefix,
            timestamps=self.timestamps,
            columns=shutil.get_terminal_size().columns if self.out.isatty() else None,
            collapse=self.collapse,
            bars_beside=self.beside is not None,
            colours=self.out.isatty() and not os.environ.get("NO_COLOR"),
        )
        page = _Page(self.out, printer, self.beside)

        def blocks(wanted: Params) -> Iterator[bytes]:
            self._check_deadline()
            for block in open_logs(wanted, deadline=self.deadline):
                self._check_deadline()
                yield block
                try:
                    page.flush()  # the next block may take long
                except OSError as error:
                    raise _OutputGone(error) from error

        def say_gap(gap: Gap) -> None:
            page.beside(f"{gap.records} lines of worker {gap.worker} in attempt {gap.attempt} are gone\n")

        say = partial(self._say, page)
        entries = log_entries(blocks, params, on_state=say, on_gap=say_gap, retry_s=self.retry_s)
        try:
            with closing(entries), _idle_thread(page, self.collapse and "follow" in params):  # type: ignore[type-var]
                for entry in entries:
                    if entry.stream == LAUNCHER and "stream" not in params:
                        page.beside(f"job {self.name}, worker {entry.worker}: {entry.text}\n")
                    else:
                        page.feed(entry)
        except _OutputGone as gone:
            raise gone.args[0] from None
        except (KeyboardInterrupt, ClientLibError):
            page.close()  # prints held lines and ends the line of a progress bar
            raise
        page.close()
        page.flush()

    def say(self, sentence: str) -> None:
        (self.beside.say if self.beside else sys.stderr.write)(sentence)

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise WaitTimeout(f"job {self.name} is not final yet")

    def _say(self, page: _Page, facts: dict[str, Any]) -> None:
        """Print why no lines come, once for each reason, and that a job goes on that had hung."""
        if facts.get("state") == State.RUNNING and self.waits_for:
            page.say_if_silent(f"job {self.name} RUNNING: {self.waits_for}\n")
        if self.beside:
            self.beside.state(facts)
            return
        why = f": {facts['message']}" if facts.get("message") else ""
        sentence = f"job {self.name} {facts.get('state')} ({facts.get('reason')}){why}"
        hung, self._hung = self._hung, facts.get("reason") == Reason.HUNG
        if (facts.get("state") in _SILENT or hung or self._hung) and sentence not in self._reasons:
            self._reasons.add(sentence)
            page.beside(f"{sentence}\n")


class _Page:
    """The printed text. The thread that reads the stream adds lines; a second thread runs `idle_until_closed`, because
    the first one is blocked while no line comes."""

    def __init__(self, out: TextOut, printer: LogPrinter, beside: CellOutput | None = None) -> None:
        self._out = out
        self._beside = beside
        self._printer = printer
        self._changed = threading.Condition()  # its lock guards all of this
        self._fed_at: float | None = None
        """Value of time.monotonic() at the last line; None: no line since the last `idle`."""
        self._closed = False
        self._silence: threading.Timer | None = None

    def say_if_silent(self, text: str) -> None:
        """Print the message if no line comes in SILENT_S. Calls after the first one have no effect."""
        with self._changed:
            if self._silence is None:
                self._silence = threading.Timer(SILENT_S, self._say_silence, (text,))
                self._silence.daemon = True
                self._silence.start()

    def _say_silence(self, text: str) -> None:
        with self._changed:
            if self._silence and not self._silence.finished.is_set():  # set: a line came first
                self.beside(text)

    def feed(self, entry: LogEntry) -> None:
        with self._changed:
            self._write(self._printer.feed(entry))
            if self._fed_at is None:
                self._changed.notify()
            self._fed_at = time.monotonic()

    def beside(self, text: str) -> None:
        """Print a message that is no line of the job: on stderr, so that it is never taken for one."""
        with self._changed:
            if self._beside:
                self._beside.say(text.rstrip())
                return
            self._out.write(self._printer.clear())
            self._out.flush()
            sys.stderr.write(text)
            sys.stderr.flush()

    def flush(self) -> None:
        with self._changed:
            self._out.flush()

    def close(self) -> None:
        with self._changed:
            self._write(self._printer.close())

    def _write(self, text: str) -> None:
        if self._silence:
            self._silence.cancel()
        self._out.write(text)
        if self._beside:
            self._beside.bars(self._printer.bars)

    def idle_until_closed(self) -> None:
        """Write held lines whenever no line came for COLLAPSE seconds. Sleeps without a time-out while nothing is
        held."""
        with self._changed:
            while not self._closed:
                left_s = None if self._fed_at is None else self._fed_at + COLLAPSE.total_seconds() - time.monotonic()
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                    continue
                self._fed_at = None
                self._out.write(self._printer.idle())
                self._out.flush()

    def end_idle(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()


@contextmanager
def _idle_thread(page: _Page, wanted: bool) -> Iterator[None]:
    """Run a second thread in the block, which writes held lines when no line comes."""
    if not wanted:
        yield
        return

    def watch() -> None:
        # the output is closed: the next write of the reading thread fails likewise, and its caller gets the error
        with suppress(OSError):
            page.idle_until_closed()

    thread = threading.Thread(target=watch, name="client_lib-idle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        page.end_idle()
        thread.join()


def keeps_running(name: str) -> str:
    """The message for a user who stops following a job."""
    again, stop = f"`client-lib logs -f {name}` shows it again", f"`client-lib cancel {name}` stops it"
    return f"\njob {name} keeps running; {again}, {stop}\n"
