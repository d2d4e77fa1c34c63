"""Follows the files that a script writes beside its output: train.log. Standard library only, Python >= 3.8.

A file that is there when the attempt starts is read from its size at that moment: what is in it belongs to earlier
runs. One that appears later is read from its beginning. A file that got shorter was truncated: it is read from its
beginning; one that was replaced is read to its end, then the new one is. By looking, not by inotify, which says nothing
on network file systems.
"""

import glob
import os
from typing import Callable, Dict, List, Optional

LOOK_S = 0.05  # how often open files are looked at
SEARCH_S = 1.0  # how often new files are searched for, and replaced ones noticed
_BLOCK = 65536

Sink = Callable[[str, bytes], None]


class _File:
    """One followed file. `position` is where the next byte is read."""

    def __init__(self, path: str, from_end: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)
        self.position = status.st_size if from_end else 0

    def read(self) -> bytes:
        """The next bytes, at most one block; empty at the end."""
        size = os.fstat(self.fd).st_size
        if size < self.position:
            self.position = 0
        if size == self.position:
            return b""
        data = os.pread(self.fd, _BLOCK, self.position)
        self.position += len(data)
        return data


class Tail:
    """All files that match `pattern` in any of `folders`. `sink(path, bytes)` gets what was added to them."""

    def __init__(self, pattern: str, folders: List[str], sink: Sink) -> None:
        self._patterns = _patterns(pattern, folders)
        self._sink = sink
        self._files: Dict[str, _File] = {}
        self._search(from_end=True)

    def look(self) -> bool:
        """Hand on at most a block of each file; True where there may be more."""
        return any([self._look_at(path, file) for path, file in list(self._files.items())])

    def search(self) -> None:
        """Find files that appeared or were replaced since."""
        self._search(from_end=False)

    def finish(self) -> None:
        """The ranks have ended: hand on all that is left."""
        self.search()
        while self.look():
            pass
        for path in list(self._files):
            self._close(path)

    def _look_at(self, path: str, file: _File) -> bool:
        try:
            data = file.read()
        except OSError:  # a stale handle of a network file system: it is found again by the next search
            self._close(path)
            return False
        if data:
            self._sink(path, data)
        return bool(data)

    def _search(self, from_end: bool) -> None:
        for path in self._matches():
            known = self._files.get(path)
            if known is None:
                self._open(path, from_end)
            elif known.identity != _identity(path):
                while self._look_at(path, known):
                    pass
                self._close(path)
                self._open(path, from_end=False)

    def _matches(self) -> List[str]:
        found: Dict[object, str] = {}  # two spellings of one file are one
        for pattern in self._patterns:
            for path in sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]:
                identity = _identity(path)
                if identity and identity not in found:
                    found[identity] = path
        return list(found.values())

    def _open(self, path: str, from_end: bool) -> None:
        if not os.path.isfile(path):
            return
        try:
            self._files[path] = _File(path, from_end)
        except OSError:  # gone again, or unreadable: looked for again
            return

    def _close(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file:
            os.close(file.fd)


def _patterns(pattern: str, folders: List[str]) -> List[str]:
    if os.path.isabs(pattern):
        return [pattern]
    roots = list(dict.fromkeys(os.path.realpath(folder) for folder in folders))
    return [os.path.join(glob.escape(root) if glob.has_magic(pattern) else root, pattern) for root in roots]


def _identity(path: str) -> Optional[object]:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
