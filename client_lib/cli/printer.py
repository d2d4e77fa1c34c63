"""The one place that prints, data on stdout, hints and first tips for a human on stderr.

A table is drawn on a terminal (`drawing`) and is aligned plain text in a pipe; `-o json` and `-o
name` look the same in both.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from client_lib import visible_text
from client_lib.errors import ClientLibError, JobFailed
from client_lib.reports.table import Row, aligned, one_line

if TYPE_CHECKING:
    from client_lib.cli.drawing import Work
    from client_lib.reports.explanation import Part
    from client_lib.spec.wire import JobInfo
    from client_lib.transport.download import Progress

ADVISED = 10  # jobs
PATIENCE_S = 0.3  # after this time a terminal shows that the command is still at work
# bold red, bold, yellow, dim, yellow
STYLES = {"summary": "1;31", "exception": "1", "hint": "33", "next": "2", "warning": "33"}
_FIELD = re.compile(r"\b(?P<field>[a-z_]+)=(?:\['(?P<items>[^\]]*)'\]|(?P<value>'[^']*'|\d+\b))")
_undo: list[Callable[[], None]] = []  # ends the notices
_shown: list[
    Callable[[str], None]
] = []  # each changes the text of a block of `progress`; the last: the innermost's


def data(text: str) -> None:
    """One line (or more) of what the command is for."""
    sys.stdout.write(text + "\n")


def data_at_once(text: str) -> None:
    """Print a line of data that a user watches as it comes."""
    data(text)
    sys.stdout.flush()


def data_bytes(line: bytes, *, at_once: bool) -> None:
    """One line of data as it is. `at_once`: a user watches it as it comes."""
    sys.stdout.buffer.write(line + b"\n")
    if at_once:
        sys.stdout.buffer.flush()


def lines(texts: Iterable[str]) -> None:
    """Each on a line of its own, whatever its characters."""
    for text in texts:
        data(visible_text.one_line(text))


def data_json(value: object) -> None:
    data(visible_text.in_json(json.dumps(value, indent=2, ensure_ascii=False)))


def hint(text: str) -> None:
    """Print on stderr what helps a human and would be in the way of a program:
    the next command, a notice.
    """
    sys.stdout.flush()  # keeps the order of both streams on a shared terminal
    sys.stderr.write(visible_text.plain(text) + "\n")
    sys.stderr.flush()


def error(problem: ClientLibError) -> None:
    """Print it on stderr; of a failed job the report, with commands as next steps."""
    sys.stdout.flush()
    if isinstance(problem, JobFailed) and problem.info is not None:
        failure(problem.info, sys.stderr, before="Error: ", printed=problem.printed)
    else:
        hint(f"Error: {problem}")


# --- reports of jobs


def failure(info: JobInfo, file: TextIO, before: str = "", *, printed: bool = False) -> None:
    """Print the report of a failed job, with commands as next steps.
    `printed`: see `failure_report`.
    """
    from client_lib.reports.explanation import SHELL, advice, failure_report

    report([*failure_report(info, printed=printed), *advice(info, SHELL)], file, before)


def end(text: str, file: TextIO, *, deserves_attention: bool) -> None:
    """Print the last line about a job that was followed or waited for."""
    from client_lib.reports.explanation import Part

    report([Part("warning" if deserves_attention else "line", text)], file)


def report(parts: Iterable[Part], file: TextIO, before: str = "") -> None:
    """Print a report or an explanation. On a terminal it has colours (unless NO_COLOR is set, or
    TERM=dumb), and advice is wrapped between words. `before`: text in front of the first line."""
    from client_lib.log_reading import text_output

    width = max(20, text_output.width(file) - 1) if file.isatty() else None
    coloured = width and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for part in parts:
        is_advice = part.kind in ("hint", "next", "warning")
        lines = f"{before}{_FIELD.sub(_option, str(part)) if is_advice else part}".splitlines()
        before = ""
        if width and is_advice:
            lines = textwrap.wrap(
                " ".join(lines),
                width,
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        style = STYLES.get(part.kind) if coloured else None
        for line in map(visible_text.one_line, lines):
            file.write(f"\x1b[{style}m{line}\x1b[0m\n" if style else f"{line}\n")
    file.flush()


def _option(found: re.Match[str]) -> str:
    """`requirements=['x']` -> `--requirement x`: the server spells the fields of
    its hints as Python does.
    """
    from client_lib.spec.command_line import option_names
    from client_lib.spec.job import JobSpec

    field, items, value = found.group("field", "items", "value")
    if field not in JobSpec.model_fields:
        return found.group()
    values = [value.strip("'")] if items is None else items.split("', '")
    return " ".join(f"{option_names(field)[-1]} {shlex.quote(each)}" for each in values)


# --- advice for beginners


def advise(text: str) -> None:
    """Print advice on stderr until the user has submitted ADVISED jobs by the command line."""
    if _submits()[1] <= ADVISED:
        hint(text)


def count_submit() -> None:
    file, submits = _submits()
    if submits <= ADVISED:
        with suppress(OSError):  # if the folder can't be written to, advice is printed for ever
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a") as opened:
                opened.write(".")


def _submits() -> tuple[Path, int]:
    """The file beside the configuration file that has one character for each
    submit, and their number.
    """
    from client_lib.transport.config import config_file

    file = config_file().with_name(f".{config_file().name}.runs")
    with suppress(OSError):
        return file, file.stat().st_size
    return file, 0


# --- what the SDK logs


def show_notices() -> None:
    """Show what the SDK logs (a retry, files left out) as hints, and its steps (DEBUG)
    in the block of `progress`.
    """
    import logging

    class Hints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                from client_lib.reports.explanation import Part

                sys.stdout.flush()
                report([Part("warning", record.getMessage())], sys.stderr)
            elif record.levelno > logging.DEBUG:
                hint(record.getMessage())
            elif _shown:
                _shown[-1](record.getMessage())

    if not _undo:
        log = logging.getLogger("client_lib")
        hints = Hints()
        _undo.extend([partial(log.setLevel, log.level), partial(log.removeHandler, hints)])
        log.setLevel(logging.DEBUG)
        log.addHandler(hints)


def end_notices() -> None:
    """Leave the logger as it was, for a program that goes on."""
    while _undo:
        _undo.pop()()


def table(columns: Row, rows: Iterable[Row], *, cut: Row = (), whole: bool = False) -> None:
    """Print rows below the headings `columns`. Control characters are shown as escapes. On a
    terminal a row is one line: the columns of `cut` end with an ellipsis; without `cut` the last
    one is wrapped. `whole`: as in a pipe."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty() and not whole:
        from client_lib.cli import drawing

        drawing.table(columns, cells, cut)
    else:
        data(aligned([columns, *cells]))


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, show `doing` on stderr after 0.3 s of the block, which gets a
    function that changes the text.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    lock = threading.Lock()
    shown: Work | None = None
    text = doing

    def appear() -> None:
        nonlocal shown
        from client_lib.cli import drawing

        with lock:
            if not timer.finished.is_set():  # set: the block has ended
                shown = drawing.Work(text)

    def update(doing: str) -> None:
        nonlocal text
        with lock:
            text = one_line(doing)
            if shown is not None:
                shown.update(text)

    timer = threading.Timer(PATIENCE_S, appear)
    timer.daemon = True
    timer.start()
    _shown.append(update)
    try:
        yield update
    finally:
        _shown.remove(update)
        with lock:
            timer.cancel()
            if shown is not None:
                shown.stop()


@contextmanager
def transfer(title: str) -> Iterator[Callable[[Progress], None]]:
    """Draw a bar on stderr if it is a terminal. The block gets a function that
    takes how far the transfer is.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from client_lib.cli import transfer_bar

    with transfer_bar.transfer(title) as update:
        yield update


@contextmanager
def hint_on_interrupt(name: str) -> Iterator[None]:
    """Ctrl-C in the block stops following the job `name`; print that the job keeps
    running, and how to stop it.
    """
    try:
        yield
    except KeyboardInterrupt:
        from client_lib.log_reading.text_output import keeps_running

        hint(keeps_running(name).rstrip())
        raise
