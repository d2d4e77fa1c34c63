"""Follows the log files that a script writes: train.log.

A file that exists when the attempt starts is read from its size at that moment: its content belongs to earlier runs. A
file that appears later is read from its beginning, and so is one that was truncated or rewritten between two checks. A
file that was replaced (rotated) is read to its end, then the new one is read. Files are polled, as inotify reports no
changes on network file systems: content that exists for less than LOOK_S may be missed.
"""

import glob
import os
import time
from typing import Callable, Dict, List, Optional

LOOK_S = 0.05  # interval of the checks of files and plain names
_SEARCH_S = 1.0  # interval of the searches for a pattern
_SURE_S = 1.0  # a write sets a file's time before its size; the size follows within this time
_BLOCK = 65536
_COMPARED = 256  # bytes before the position; a change of them means that the file was rewritten

Sink = Callable[[str, bytes], None]


class _File:
    """One followed file. `_position` is the offset of the next byte to read."""

    def __init__(self, path: str, from_end: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self.fd)
        self.identity = (status.st_dev, status.st_ino)
        self._position = status.st_size if from_end else 0
        self._before = self._bytes_before()
        self._written_at = status.st_mtime_ns
        self._of_earlier_runs = from_end  # nothing of this attempt was read yet
        self._doubted_since: Optional[float] = None

    def read(self, ended: bool) -> bytes:
        """The next bytes, at most one block; empty at the end. `ended`: all writers have ended."""
        status = os.fstat(self.fd)
        if self._written_anew(status, ended):
            self._position, self._before = 0, b""
        data = os.pread(self.fd, min(_BLOCK, status.st_size - self._position), self._position)
        if data:
            self._position += len(data)
            self._before = (self._before + data)[-_COMPARED:]
            self._written_at, self._of_earlier_runs = status.st_mtime_ns, False
        return data

    def _written_anew(self, status: os.stat_result, ended: bool) -> bool:
        if status.st_size < self._position:
            return True
        grown = status.st_size > self._position
        if not grown and status.st_mtime_ns in (self._written_at, status.st_atime_ns):
            self._written_at = status.st_mtime_ns  # unchanged, or touched, which sets both times
            return False
        return self._bytes_before() != self._before or (not grown and self._same_text_again(ended))

    def _same_text_again(self, ended: bool) -> bool:
        """Decide about a file of which only the time has changed: the text of an earlier run was written again, or a
        write has begun."""
        if not self._of_earlier_runs:
            return False
        now = time.monotonic()
        self._doubted_since = self._doubted_since or now
        return ended or now - self._doubted_since > _SURE_S

    def _bytes_before(self) -> bytes:
        begin = max(0, self._position - _COMPARED)
        return os.pread(self.fd, self._position - begin, begin)


class Tail:
    """All files that match `pattern` in any of `folders`. `sink(path, bytes)` gets the bytes added to them."""

    def __init__(self, pattern: str, folders: List[str], sink: Sink) -> None:
        self._patterns = _patterns(pattern, folders)
        self._search_s = _SEARCH_S if glob.has_magic(pattern) else 0.0
        self._sink = sink
        self._files: Dict[str, _File] = {}
        self._searched_at = 0.0
        self._search(from_end=True)

    def look(self) -> bool:
        """Find new and replaced files, and pass at most a block of each to the sink; True: there may be more."""
        if time.monotonic() - self._searched_at >= self._search_s:
            self._search()
        return self._look_at_all()

    def finish(self) -> None:
        """Pass the rest of all files to the sink; the ranks have ended."""
        self._search()
        while self._look_at_all(ended=True):
            pass
        for path in list(self._files):
            self._close(path)

    def _look_at_all(self, ended: bool = False) -> bool:
        return any([self._look_at(path, file, ended) for path, file in list(self._files.items())])

    def _look_at(self, path: str, file: _File, ended: bool) -> bool:
        try:
            data = file.read(ended)
        except OSError:  # a stale handle of a network file system: the next search opens the file again
            self._close(path)
            return False
        if data:
            self._sink(path, data)
        return bool(data)

    def _search(self, from_end: bool = False) -> None:
        self._searched_at = time.monotonic()
        for path in self._matches():
            known = self._files.get(path)
            if known is None:
                self._open(path, from_end)
            elif known.identity != _identity(path):
                while self._look_at(path, known, ended=False):
                    pass
                self._close(path)
                self._open(path, from_end=False)

    def _matches(self) -> List[str]:
        found: Dict[object, str] = {}  # by identity: one file may have two paths
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
        except OSError:  # removed again, or unreadable: the next search tries again
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
