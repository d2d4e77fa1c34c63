"""A bar on a terminal that shows how far a transfer is, by rich."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress as Bar,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from client_lib.transport.download import Progress


@contextmanager
def transfer(title: str) -> Iterator[Callable[[Progress], None]]:
    """Draw a bar on stderr. The block gets a function that takes how far the transfer is."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)

        def update(now: Progress) -> None:
            doing = f"{title}: {now.files} of {now.all_files} files"
            bar.update(task, description=doing, completed=now.size, total=now.all_size)

        yield update
