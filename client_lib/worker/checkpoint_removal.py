"""Removes a checkpoint in small pieces of work."""

import contextlib
import os
import stat
from typing import Iterator

_GOING = ".removing-"
"""Begin of the name that a checkpoint has while it is removed: no loader finds it, and the next
removal in the folder finishes one that was interrupted."""


def remove(path: str) -> Iterator[None]:
    """Remove a file, or a folder with all that is in it; yield after each file, so that the caller
    can do other things in between. What can't be removed stays."""
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        os.rename(path, os.path.join(folder, _GOING + name))
    names = []
    with contextlib.suppress(OSError):
        names = os.listdir(folder)
    for each in names:
        if each.startswith(_GOING):
            yield from _removed(os.path.join(folder, each))


def _removed(path: str) -> Iterator[None]:
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            yield
            return
        for name in os.listdir(path):
            yield from _removed(os.path.join(path, name))
        os.rmdir(path)
        yield
