"""Drawings on a terminal by rich: tables, and a line that says what is going on.

`printer` loads this module when it draws: rich takes as long to load as all else of a quick
command.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from client_lib.reports.table import Row

STATE_COLOURS = {
    "PENDING": "yellow",
    "RUNNING": "cyan",
    "RESTARTING": "yellow",
    "SUCCEEDED": "green",
    "FAILED": "red",
    "CANCELLED": "magenta",
}


def table(columns: Row, rows: Sequence[Row], cut: Row) -> None:
    """Print a table on stdout; see `printer.table`."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        # The first column is what one copies into the next command: never cut.
        drawn.add_column(heading, no_wrap=heading not in (cut or columns[-1:]), overflow="fold")
    for row in rows:
        texts = [
            Text("" if cell == "-" else cell, style=STATE_COLOURS.get(cell, "")) for cell in row
        ]
        for heading, text in zip(columns, texts, strict=True):
            if heading in cut:
                text.no_wrap = True
                text.overflow = "ellipsis"
        drawn.add_row(*texts)
    Console(highlight=False).print(drawn)


class Work:
    """A line on stderr that shows that the command is still at work."""

    def __init__(self, doing: str) -> None:
        self._status: Status = Console(stderr=True).status(Text(doing))
        self._status.start()

    def update(self, doing: str) -> None:
        self._status.update(Text(doing))

    def stop(self) -> None:
        self._status.stop()
