"""Finds the files of a working directory that are new or changed.

Links are followed only within the directory: a link to a file inside counts as that file, any other is left out. A
change is detected by size, times and inode: the kernel's change time cannot be set back.
"""

import hashlib
import os
import stat
from typing import Iterator, List, NamedTuple, Optional, Set

from client_lib.worker.directory import write_file
from client_lib.worker.outputs.patterns import ENVIRONMENT_MARKS, Patterns, never

_DIGEST = 8  # bytes that stand for a file as it was: there may be 200 000
_OUT_OF_REACH = "it is a link out of the working directory"


class Found(NamedTuple):
    """One file. Times are the file system's, in nanoseconds."""

    path: str
    """Relative to the working directory, with slashes."""
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    executable: bool
    why_not: Optional[str] = None
    """The reason why it cannot be kept; None: it can."""


class FileFinder:
    """Scans one working directory. Files that existed at the first `begin` and are unchanged are not found."""

    def __init__(self, root: str, globs: List[str], memory: str) -> None:
        """`memory`: a file that stores the first scan, for the launcher that replaces a dead one."""
        self._memory = memory
        self.root = os.path.realpath(root)
        self._patterns = Patterns(globs)
        self._before: Set[bytes] = set()

    def begin(self) -> None:
        """Record the existing files; call before anything runs."""
        try:
            with open(self._memory, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            data = b"".join(_digest(found) for found in self._walk())
            write_file(self._memory, data)
        self._before = {data[at : at + _DIGEST] for at in range(0, len(data), _DIGEST)}

    def look(self) -> List[Found]:
        """Files that were created or changed since, in the order of their paths."""
        return sorted(found for found in self._walk() if _digest(found) not in self._before)

    def _walk(self) -> Iterator[Found]:
        """Walk with an explicit stack: a script may nest folders deeper than Python's recursion limit."""
        waiting = [""]
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
            with os.scandir(os.path.join(self.root, folder)) as entries:
                return list(entries)
        except OSError:  # removed meanwhile, or not readable
            return []

    def _file(self, entry: "os.DirEntry[str]", path: str) -> Optional[Found]:
        """None: it is gone, or a link to a folder or to nothing."""
        try:
            if entry.is_symlink():
                return self._link(entry, path)
            return _found(path, entry.stat(follow_symlinks=False))
        except OSError:
            return None

    def _link(self, entry: "os.DirEntry[str]", path: str) -> Optional[Found]:
        if not entry.is_file():  # broken, or a link to a folder, whose files are found by their own paths
            return None
        status = entry.stat()
        target = os.path.realpath(entry.path)
        if target.startswith(self.root + os.sep):
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
