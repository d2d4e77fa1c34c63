"""The one place that prints: data on stdout, everything for the eye of a human on stderr.

A table is drawn by rich on a terminal and is aligned plain text in a pipe; `-o json` and `-o name` look the same in
both. What is shown is decided elsewhere (`show`); rich is loaded only where it draws.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from client_lib.errors import ClientLibError

if TYPE_CHECKING:
    from rich.status import Status

Row = Sequence[str]

PATIENCE_S = 1.0  # what takes longer than this says on a terminal that it goes on
STATE_COLOURS = {
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "RESTARTING": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
}
_CONTROL = {code: "�" for code in (*range(0x20), *range(0x7F, 0xA0))}


def prepare_streams() -> None:
    """Text that the terminal's encoding can't hold is escaped instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def data(text: str) -> None:
    """One line (or more) of what the command is for."""
    sys.stdout.write(text + "\n")


def data_at_once(text: str) -> None:
    """As data, and it is out before this returns: for what somebody watches while it comes."""
    data(text)
    sys.stdout.flush()


def lines(texts: Iterable[str]) -> None:
    """Each on a line of its own, its control characters made harmless."""
    for text in texts:
        data(text.translate(_CONTROL))


def data_json(value: Any) -> None:
    data(json.dumps(value, indent=2, ensure_ascii=False))


def hint(text: str) -> None:
    """What helps a human, and what no program should have to skip: the next command, a notice."""
    sys.stdout.flush()  # so that both streams stand in order where they share a terminal
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(problem: ClientLibError) -> None:
    hint(str(problem))


def show_notices_of(logger: str) -> None:
    """What the SDK logs (a retry, the size of a snapshot, what a snapshot leaves out) is a hint here."""
    import logging

    class Hints(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hint(record.getMessage())

    log = logging.getLogger(logger)
    log.setLevel(logging.INFO)
    log.addHandler(Hints())


def table(columns: Row, rows: Iterable[Row]) -> None:
    """`columns` are the headings. A cell is one line of plain text: control characters are shown, not obeyed."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _draw(columns, cells)
    else:
        data(aligned([columns, *cells]))


def one_line(text: str) -> str:
    """`text` with its white space folded and its control characters made harmless; `-` if nothing is left."""
    return " ".join(text.split()).translate(_CONTROL) or "-"


def aligned(rows: Sequence[Row]) -> str:
    """Columns two spaces apart, nothing cut off, no tab, no space at a line's end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _draw(columns: Row, rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        # the first column is what one copies into the next command: never cut
        drawn.add_column(heading, no_wrap=heading != columns[-1], overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell, style=STATE_COLOURS.get(cell, "")) for cell in row))
    Console().print(drawn)


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """On a terminal, say `doing` on stderr while the block runs, from the second second on; elsewhere nothing.

    The block gets a function that changes the words.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    spinner = _Spinner(doing)
    try:
        yield spinner.say
    finally:
        spinner.stop()


class _Spinner:
    """A rich status that appears late, so that what is quick shows nothing and doesn't load rich."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._lock = threading.Lock()
        self._status: Status | None = None
        self._timer = threading.Timer(PATIENCE_S, self._appear)
        self._timer.daemon = True
        self._timer.start()

    def _appear(self) -> None:
        from rich.console import Console

        with self._lock:
            if not self._timer.finished.is_set():  # set: stop() came first
                self._status = Console(stderr=True).status(escaped(self._doing))
                self._status.start()

    def say(self, doing: str) -> None:
        with self._lock:
            self._doing = one_line(doing)
            if self._status is not None:
                self._status.update(escaped(self._doing))

    def stop(self) -> None:
        with self._lock:
            self._timer.cancel()
            if self._status is not None:
                self._status.stop()


def escaped(text: str) -> str:
    """`text` for rich, with nothing in it read as markup."""
    from rich.markup import escape

    return escape(text)


def abandon_stdout() -> None:
    """Our reader is gone: let the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
