"""A bar on a terminal for what is transferred; elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from client_lib.download import Progress


@contextmanager
def transfer(what: str) -> Iterator[Callable[[Progress], None]]:
    """The block gets a function that is told how far it is. On stderr, so that stdout stays the data's."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bar(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(escape(what), total=None)

        def tell(now: Progress) -> None:
            doing = f"{what}: {now.files} of {now.all_files} files"
            bar.update(task, description=escape(doing), completed=now.size, total=now.all_size)

        yield tell
