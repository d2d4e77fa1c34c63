"""Prints a job's log: stream in, text out. How a line looks is `log_printer`; only `job` uses this."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from client_lib.errors import ClientLibError, WaitTimeout
from client_lib.log_frames import Params
from client_lib.log_printer import LogPrinter
from client_lib.log_reader import Gap, log_entries
from client_lib.spec.states import State
from client_lib.worker.format import LAUNCHER

_SAID = frozenset({State.PENDING, State.RESTARTING})  # while a job is in one of these, its log is silent


class TextOut(Protocol):
    """What logs are printed on: an open text file, or what behaves like one."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


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
    _reasons: set[str] = field(default_factory=set)

    def write(self, open_logs: OpenLogs, params: Params) -> None:
        """All of it, as it comes. Raises WaitTimeout at the deadline, and what the server refuses."""
        printer = LogPrinter(prefix=self.prefix, timestamps=self.timestamps, columns=self._columns())

        def blocks(wanted: Params) -> Iterator[bytes]:
            self._check_deadline()
            for block in open_logs(wanted, deadline=self.deadline):
                self._check_deadline()
                yield block
                self._flush()  # the lines of this block are written; the next may be long in coming

        say, say_gap = partial(self._say, printer), partial(self._say_gap, printer)
        entries = log_entries(blocks, params, on_state=say, on_gap=say_gap, retry_s=self.retry_s)
        try:
            with closing(entries):  # type: ignore[type-var]
                for entry in entries:
                    if entry.stream == LAUNCHER and "stream" not in params:
                        self._beside(printer, f"job {self.name}, worker {entry.worker}: {entry.text}\n")
                    else:
                        self.out.write(printer.feed(entry))
        except _OutputGone as gone:
            raise gone.error from None
        except (KeyboardInterrupt, ClientLibError):
            self.out.write(printer.close())  # what was held back, and the end of a bar's line
            raise
        self.out.write(printer.close())
        self.out.flush()

    def _flush(self) -> None:
        """Called while the stream is read, where an OSError would count as a cut connection and be tried again."""
        try:
            self.out.flush()
        except OSError as error:
            raise _OutputGone(error) from error

    def _check_deadline(self) -> None:
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise WaitTimeout(f"job {self.name} is not final yet")

    def _columns(self) -> int | None:
        return shutil.get_terminal_size().columns if self.out.isatty() else None

    def _say(self, printer: LogPrinter, facts: dict[str, Any]) -> None:
        """Why there are no lines, once for each reason."""
        why = f": {facts['message']}" if facts.get("message") else ""
        sentence = f"job {self.name} {facts.get('state')} ({facts.get('reason')}){why}"
        if facts.get("state") in _SAID and sentence not in self._reasons:
            self._reasons.add(sentence)
            self._beside(printer, f"{sentence}\n")

    def _say_gap(self, printer: LogPrinter, gap: Gap) -> None:
        self._beside(printer, f"{gap.records} lines of worker {gap.worker} in attempt {gap.attempt} are gone\n")

    def _beside(self, printer: LogPrinter, text: str) -> None:
        """What is no line of the job: on stderr, so that nothing takes it for one."""
        self.out.write(printer.clear())
        self.out.flush()
        sys.stderr.write(text)
        sys.stderr.flush()


def goes_on(name: str) -> str:
    """What someone who stops looking should know."""
    return f"\njob {name} goes on; `client-lib logs -f {name}` shows it again, `client-lib cancel {name}` stops it\n"
