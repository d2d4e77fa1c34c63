"""The table of a job's checkpoints, for the terminal and the page. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.filesize import decimal

from client_lib.spec.checkpoints import JobCheckpoint
from client_lib.spec.wording import duration

COLUMNS = ("step", "state", "format", "size", "age", "attempt", "path")
NONE = "no checkpoints were recognised"


def rows(found: Iterable[JobCheckpoint], now: datetime) -> list[Sequence[str]]:
    """A row for each checkpoint, with a cell for each of COLUMNS."""
    return [
        (
            "" if each.step is None else str(each.step),
            each.state,
            each.format,
            decimal(each.size),
            duration((now - each.modified_at).total_seconds()),
            "" if each.attempt is None else str(each.attempt),
            each.path,
        )
        for each in found
    ]


def problems(found: Iterable[JobCheckpoint]) -> list[str]:
    """A sentence for each checkpoint that is not complete."""
    return [
        f"{each.path} is {_being(each.state)}: {each.missing}" for each in found if each.missing
    ]


def _being(state: str) -> str:
    return "being written" if state == "writing" else state
