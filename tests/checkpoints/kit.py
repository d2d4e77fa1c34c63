"""Searches a folder as a caller does, without the pauses."""

from pathlib import Path

from client_lib.checkpoints import Checkpoint, search


def found(folder: Path) -> dict[str, Checkpoint]:
    """The checkpoints in a folder, by path."""
    return {each.path: each for each in search(str(folder)) if each}


def only(folder: Path) -> Checkpoint:
    """The one checkpoint in a folder."""
    (checkpoint,) = found(folder).values()
    return checkpoint


def cut(path: Path, size: int) -> None:
    """Leave the first bytes of a file, as a full disk or an interrupted copy does."""
    with path.open("r+b") as file:
        file.truncate(size)
