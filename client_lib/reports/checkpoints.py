"""The table of a job's checkpoints, for the terminal and the page. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.filesize import decimal

from client_lib.spec.checkpoints import EarlyCheckpoint, JobCheckpoint
from client_lib.spec.wording import duration

COLUMNS = ("step", "state", "format", "size", "age", "attempt", "path")
EARLY = ("STEP", "SIZE", "PATH")
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


def early_rows(found: Iterable[EarlyCheckpoint]) -> list[Sequence[str]]:
    """A row for each checkpoint that goes, with a cell for each of EARLY."""
    return [(str(each.step), decimal(each.size), each.path) for each in found]


def amount(found: Sequence[EarlyCheckpoint]) -> str:
    """Their number and size: `2 checkpoints (1.2 GB)`."""
    number = "1 checkpoint" if len(found) == 1 else f"{len(found)} checkpoints"
    return f"{number} ({decimal(sum(each.size for each in found))})"
