"""Removes a checkpoint in small pieces of work."""

import contextlib
import os
import stat
from typing import Generator, Iterator

_GOING = ".removing-"
"""Begin of the name that a checkpoint has while it is removed: no loader finds it, and the next
removal in the folder finishes one that was interrupted."""


def remove(path: str) -> Generator[None, None, bool]:
    """Remove a file, or a folder with all that is in it; yield after each file, so that the caller
    can do other things in between. False: it stays, because it can't be renamed."""
    folder, name = os.path.split(path)
    yield from _finish_others(folder)
    going = os.path.join(folder, _GOING + name)
    try:
        os.rename(path, going)
    except OSError:
        return not os.path.lexists(path)
    yield from _removed(going)
    return True


def _finish_others(folder: str) -> Iterator[None]:
    """Finish the removals that were interrupted."""
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
