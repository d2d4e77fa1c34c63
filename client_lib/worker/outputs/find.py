"""Which files lie in a working directory, and which of them are new. Standard library only, Python >= 3.8.

Nothing is followed out of the directory: a link counts as the file that it leads to where that lies inside, and is left
out where it doesn't. What changed since a first look is told by size, times and inode: the kernel's time of change
can't be set back.
"""

import hashlib
import os
import stat
from typing import Iterator, List, NamedTuple, Optional, Set

from client_lib.worker.outputs.patterns import ENVIRONMENT_MARKS, Patterns, never

_DIGEST = 8  # bytes that stand for a file as it was: there may be 200 000
_OUT_OF_REACH = "it is a link out of the working directory"


class Found(NamedTuple):
    """One file. Times in nanoseconds, as the file system has them."""

    path: str
    """Relative to the working directory, with slashes."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool
    why_not: Optional[str] = None
    """Why it can't be kept."""


class Finder:
    """Looks at one working directory. What lay there at the first `begin` and is as it was is never found."""

    def __init__(self, root: str, globs: List[str], memory: str) -> None:
        """`memory`: a file that keeps what was found first, for a launcher that goes on in the place of a dead one."""
        self._memory = memory
        self._root = os.path.realpath(root)
        self._patterns = Patterns(globs)
        self._before: Set[bytes] = set()

    @property
    def root(self) -> str:
        return self._root

    def begin(self) -> None:
        """Before anything runs."""
        try:
            with open(self._memory, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b"".join(_digest(found) for found in self._walk(""))
            with open(self._memory + ".new", "wb") as file:
                file.write(data)
            os.replace(self._memory + ".new", self._memory)
        self._before = {data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)}

    def look(self) -> List[Found]:
        """Everything that was created or changed since, in the order of the paths."""
        return sorted(found for found in self._walk("") if _digest(found) not in self._before)

    def _walk(self, folder: str) -> Iterator[Found]:
        """An explicit stack: a script may nest folders deeper than Python recurses."""
        waiting = [folder]
        while waiting:
            below = waiting.pop()
            entries = self._entries(below)
            if any(entry.name in ENVIRONMENT_MARKS for entry in entries):
                continue
            for entry in entries:
                path = below + "/" + entry.name if below else entry.name
                if never(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if self._patterns.may_lie_below(path):
                        waiting.append(path)
                elif self._patterns.match(path):
                    found = self._file(entry, path)
                    if found is not None:
                        yield found

    def _entries(self, folder: str) -> "List[os.DirEntry[str]]":
        try:
            with os.scandir(os.path.join(self._root, folder)) as entries:
                return list(entries)
        except OSError:  # removed meanwhile, or closed to us: then so is what is in it
            return []

    def _file(self, entry: "os.DirEntry[str]", path: str) -> Optional[Found]:
        """None: it is gone, or no file that anybody would want."""
        try:
            if entry.is_symlink():
                return self._link(entry, path)
            return _found(path, entry.stat(follow_symlinks=False))
        except OSError:
            return None

    def _link(self, entry: "os.DirEntry[str]", path: str) -> Optional[Found]:
        if not entry.is_file():  # it leads nowhere, or to a folder, whose files are found by their own names
            return None
        status = entry.stat()
        target = os.path.realpath(entry.path)
        if target.startswith(self._root + os.sep):
            return _found(path, status)
        return _found(path, status)._replace(why_not=_OUT_OF_REACH)


def _digest(found: Found) -> bytes:
    return hashlib.blake2b(repr(found).encode("utf-8", "surrogateescape"), digest_size=_DIGEST).digest()


def _found(path: str, status: os.stat_result) -> Found:
    return Found(
        path,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        bool(status.st_mode & stat.S_IXUSR),
        _why_not(path, status.st_mode),
    )


def _why_not(path: str, mode: int) -> Optional[str]:
    if not stat.S_ISREG(mode):
        return "it is no file but a pipe, a socket or a device"
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return "its name is no UTF-8"
    return None
