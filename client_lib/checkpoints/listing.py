"""The names in a folder and the folders below it, listed in small pieces."""

import os
from collections import deque
from typing import Deque, Dict, Generator, Iterator, List, Optional, Set, Tuple

DEPTH = 4
"""Folders below the searched one, counted downwards."""
ENTRIES = 20_000
"""Names that are listed in all."""
ENTRIES_OF_FOLDER = 10_000
"""Names of one folder: the others are listed even if this one holds a data set."""
_PIECE = 200


class Folder:
    """The names in a folder. Hidden ones are left out, except those of checkpoints."""

    def __init__(self, location: str, path: str, parent: "Optional[Folder]" = None) -> None:
        self.parent = parent
        self.location = location
        """Path for the operating system."""
        self.path = path
        """Relative to the searched folder, which is "."."""
        self.files: List[str] = []
        self.names: Set[str] = set()
        """Those of files, and of links, which stand for files."""
        self.links: Dict[str, str] = {}
        """Targets of links, as they are written."""
        self.folders: Dict[str, "Folder"] = {}
        self.is_whole = False
        """All of its names are known: not so behind the bounds, or if it can't be read."""
        self.error = ""
        """The reason why it can't be read."""

    @property
    def name(self) -> str:
        """Its own name; of the searched folder too."""
        return os.path.basename(self.location.rstrip("/"))

    @property
    def is_empty(self) -> bool:
        """True if nothing is in it, or hidden files alone."""
        return self.is_whole and not (self.files or self.links or self.folders)

    def path_of(self, name: str) -> str:
        """Path of an entry, relative to the searched folder."""
        return name if self.path == "." else f"{self.path}/{name}"

    def location_of(self, name: str) -> str:
        return f"{self.location}/{name}"

    def tree(self) -> "Iterator[Folder]":
        """This folder and all that are listed below it."""
        yield self
        for folder in self.folders.values():
            yield from folder.tree()


def listed(location: str) -> Generator[None, None, Folder]:
    """The folder with all below it, level by level; of folders beside each other the newest first.

    Yields after each piece. Links are not followed. What is beyond the bounds is left out.
    """
    root = Folder(location.rstrip("/") or location[:1], ".")
    waiting: Deque[Tuple[Folder, int]] = deque([(root, 0)])
    left = ENTRIES
    while waiting and left > 0:
        folder, level = waiting.popleft()
        left -= yield from _list(folder, min(left, ENTRIES_OF_FOLDER))
        if level < DEPTH:
            below = yield from _newest_first(folder)
            waiting.extend((each, level + 1) for each in below)
    return root


def _list(folder: Folder, most: int) -> Generator[None, None, int]:
    """Fill in the names; returns how many there were."""
    count = 0
    try:
        with os.scandir(folder.location) as entries:
            for entry in entries:
                _add(folder, entry)
                count += 1
                if count % _PIECE == 0:
                    yield
                if count >= most:
                    break
            else:
                folder.is_whole = True
    except (FileNotFoundError, NotADirectoryError):  # gone, or something else is in its place
        if folder.parent:
            folder.parent.folders.pop(folder.name, None)
    except OSError as error:
        folder.error = error.strerror or type(error).__name__
    yield
    return count


def _add(folder: Folder, entry: "os.DirEntry[str]") -> None:
    name = entry.name
    if name.startswith(".") and not name.startswith(".metadata"):
        return
    if entry.is_symlink():
        try:
            folder.links[name] = os.readlink(entry.path)
        except FileNotFoundError:  # it is gone
            return
        folder.names.add(name)
    elif entry.is_dir(follow_symlinks=False):
        folder.folders[name] = Folder(entry.path, folder.path_of(name), folder)
    elif entry.is_file(follow_symlinks=False):
        folder.files.append(name)
        folder.names.add(name)


def _newest_first(folder: Folder) -> Generator[None, None, List[Folder]]:
    times: Dict[str, float] = {}
    for number, (name, below) in enumerate(folder.folders.items(), 1):
        try:
            times[name] = os.lstat(below.location).st_mtime
        except OSError:  # it is gone
            times[name] = 0
        if number % _PIECE == 0:
            yield
    order = sorted(times, key=lambda name: times[name], reverse=True)
    return [folder.folders[name] for name in order]
