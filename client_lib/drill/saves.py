"""The checkpoints of a folder, as they come and go while a run writes them."""

import os
from collections.abc import Collection, Iterable
from typing import NamedTuple

from client_lib.checkpoints import Checkpoint, search


class Save(NamedTuple):
    """A save: a whole checkpoint that has appeared, or was written again."""

    path: str
    """Relative to the folder."""
    at: float
    """Its last change, in seconds since 1970."""


class Saves:
    """The saves below a folder since this object was made."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._known: dict[str, Checkpoint] = {}
        self.seen: list[Save] = []
        self.look()
        self._before = dict(self._known)
        self.seen.clear()

    def look(self) -> bool:
        """Look once more; True if something of a checkpoint was written since the last look."""
        found = {each.path: each for each in search(self.folder, known=self._known) if each}
        changed = [each for path, each in found.items() if self._is_new(path, each)]
        self._known = found
        self.seen += [Save(each.path, each.modified) for each in changed if not each.missing]
        return bool(changed)

    def _is_new(self, path: str, checkpoint: Checkpoint) -> bool:
        before = self._known.get(path)
        state = (checkpoint.modified, checkpoint.missing)
        return before is None or (before.modified, before.missing) != state

    def found(self) -> list[Checkpoint]:
        """The checkpoints that the script has written, as they are now, the latest first."""
        self.look()
        written = [
            each
            for path, each in self._known.items()
            if path not in self._before or self._before[path].modified != each.modified
        ]
        return sorted(written, key=lambda each: each.modified, reverse=True)

    def folders(self) -> list[str]:
        """The folders in which checkpoints were seen; before the first one the whole folder."""
        paths = {os.path.join(self.folder, each.path) for each in self.seen}
        return sorted({os.path.dirname(path) for path in paths}) or [self.folder]

    def times(self) -> list[float]:
        """The times of the saves, in seconds since 1970."""
        return moments([save.at for save in self.seen])


def moments(times: Iterable[float], together_s: float = 0.05) -> list[float]:
    """The times of saves: files that are written one directly after the other are one save."""
    found: list[float] = []
    for at in sorted(times):
        if not found or at - found[-1] > together_s:
            found.append(at)
        else:
            found[-1] = at
    return found


def is_renamed(path: str, renamed: Collection[str]) -> bool:
    """True if a checkpoint got its name, or a file in it got its own, by a rename."""
    below = path + os.sep
    return any(each == path or each.startswith(below) for each in renamed)


def cut(path: str) -> None:
    """Cut a checkpoint to half of its size: of a folder its largest file."""
    if os.path.isdir(path):
        files = [os.path.join(each, name) for each, _, names in os.walk(path) for name in names]
        path = max(files, key=os.path.getsize)
    os.truncate(path, os.path.getsize(path) // 2)
