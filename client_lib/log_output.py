"""Prints a job's log: stream in, text out. How a line looks is `log_printer`; only `job` uses this."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from client_lib.errors import ClientLibError, WaitTimeout
from client_lib.log_frames import Params
from client_lib.log_printer import COLLAPSE, LogPrinter
from client_lib.log_reader import Gap, LogEntry, log_entries
from client_lib.spec.states import State
from client_lib.worker.format import LAUNCHER

_SAID = frozenset({State.PENDING, State.RESTARTING})  # while a job is in one of these, its log is silent


class TextOut(Protocol):
    """What logs are printed on: an open text file, or what behaves like one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


class Beside(Protocol):
    """What is shown beside the lines; without one, sentences go to stderr and bars are lines when they end."""

    def say(self, sentence: str, /) -> object: ...
    def state(self, facts: Mapping[str, Any], /) -> object: ...
    def bars(self, bars: Sequence[str], /) -> object: ...


class OpenLogs(Protocol):
    """`Api.open_logs` of one job."""

    def __call__(self, params: Params, *, deadline: float | None = None) -> Iterator[bytes]: ...


class _OutputGone(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class LogOutput:
    """Where the log of the job `name` is printed, and how."""

    name: str
    out: TextOut
    prefix: bool = True
    """`[rank]` in front of each line."""
    timestamps: bool = False
    retry_s: float = 30.0
    deadline: float | None = None
    """Of time.monotonic(); None: until the log ends."""
    collapse: bool = False
    """Identical lines of several ranks are one; so each waits a moment for its twins."""
    beside: Beside | None = None
    _reasons: set[str] = field(default_factory=set)

    def write(self, open_logs: OpenLogs, params: Params) -> None:
        """All of it, as it comes. Raises WaitTimeout at the deadline, and what the server refuses."""
        printer = LogPrinter(
            prefix=self.prefix,
            timestamps=self.timestamps,
            columns=self._columns(),
            collapse=self.collapse,
            bars_beside=self.beside is not None,
        )
        page = _Page(self.out, printer, self.beside)

        def blocks(wanted: Params) -> Iterator[bytes]:
            self._check_deadline()
            for block in open_logs(wanted, deadline=self.deadline):
                self._check_deadline()
                yield block
                _flush(page)  # the lines of this block are written; the next may be long in coming

        say, say_gap = partial(self._say, page), partial(self._say_gap, page)
        entries = log_entries(blocks, params, on_state=say, on_gap=say_gap, retry_s=self.retry_s)
        try:
            with closing(entries), _idle_thread(page, self.collapse and "follow" in params):  # type: ignore[type-var]
                for entry in entries:
                    if entry.stream == LAUNCHER and "stream" not in params:
                        page.beside(f"job {self.name}, worker {entry.worker}: {entry.text}\n")
                    else:
                        page.feed(entry)
        except _OutputGone as gone:
            raise gone.error from None
        except (KeyboardInterrupt, ClientLibError):
            page.close()  # what was held back, and the end of a bar's line
            raise
        page.close()
        page.flush()

    def say(self, sentence: str) -> None:
        """What is no line of the job: on stderr, so that nothing takes it for one."""
        (self.beside.say if self.beside else sys.stderr.write)(sentence)

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise WaitTimeout(f"job {self.name} is not final yet")

    def _columns(self) -> int | None:
        return shutil.get_terminal_size().columns if self.out.isatty() else None

    def _say(self, page: _Page, facts: dict[str, Any]) -> None:
        """Why there are no lines, once for each reason."""
        if self.beside:
            self.beside.state(facts)
            return
        why = f": {facts['message']}" if facts.get("message") else ""
        sentence = f"job {self.name} {facts.get('state')} ({facts.get('reason')}){why}"
        if facts.get("state") in _SAID and sentence not in self._reasons:
            self._reasons.add(sentence)
            page.beside(f"{sentence}\n")

    def _say_gap(self, page: _Page, gap: Gap) -> None:
        page.beside(f"{gap.records} lines of worker {gap.worker} in attempt {gap.attempt} are gone\n")


class _Page:
    """What is printed so far. Lines come from the thread that reads the stream, which can't see that nothing comes;
    `idle_until_closed` is for a second one."""

    def __init__(self, out: TextOut, printer: LogPrinter, beside: Beside | None = None) -> None:
        self._out = out
        self._beside = beside
        self._printer = printer
        self._changed = threading.Condition()  # its lock guards all of this
        self._fed_at: float | None = None
        """Of time.monotonic(); None: nothing came since the last `idle`."""
        self._closed = False

    def feed(self, entry: LogEntry) -> None:
        with self._changed:
            self._out.write(self._printer.feed(entry))
            self._show_bars()
            if self._fed_at is None:
                self._changed.notify()
            self._fed_at = time.monotonic()

    def beside(self, text: str) -> None:
        """What is no line of the job: on stderr, so that nothing takes it for one."""
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
            self._out.write(self._printer.close())
            self._show_bars()

    def _show_bars(self) -> None:
        if self._beside:
            self._beside.bars(self._printer.bars)

    def idle_until_closed(self) -> None:
        """Whenever nothing came for COLLAPSE, write what waited for its twins. Wakes up only while lines come."""
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
    """In the block a second thread watches for moments without a line."""
    if not wanted:
        yield
        return

    def watch() -> None:
        # the output is gone: the next write of the reading thread fails likewise, and its caller hears of it
        with suppress(OSError):
            page.idle_until_closed()

    thread = threading.Thread(target=watch, name="client_lib-idle", daemon=True)
    thread.start()
    try:
        yield
    finally:
        page.end_idle()
        thread.join()


def _flush(page: _Page) -> None:
    """Called while the stream is read, where an OSError would count as a cut connection and be tried again."""
    try:
        page.flush()
    except OSError as error:
        raise _OutputGone(error) from error


def goes_on(name: str) -> str:
    """What someone who stops looking should know."""
    return f"\njob {name} goes on; `client-lib logs -f {name}` shows it again, `client-lib cancel {name}` stops it\n"
