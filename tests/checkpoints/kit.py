"""Writes checkpoints, and searches a folder as a caller does, without the pauses."""

import os
import time
from pathlib import Path

import torch

from client_lib.checkpoints import Checkpoint, search

WEIGHTS = {"weight": torch.zeros(2000)}


def save(
    path: Path, *, age_s: float = 60.0, at: float | None = None, cut_to: int | None = None
) -> Path:
    """Write a checkpoint of torch, last changed so long ago or at a time (seconds since 1970), in
    a folder that is made. `cut_to`: only its first bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(WEIGHTS, path)
    if cut_to is not None:
        cut(path, cut_to)
    changed = time.time() - age_s if at is None else at
    os.utime(path, (changed, changed))
    return path


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
