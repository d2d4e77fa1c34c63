"""Keeps outputs in a directory of this machine.

    <job>/outputs/lock                  held while sizes are read and changed
    <job>/outputs/sizes.json            {"<attempt>.<worker>": bytes}: all kept files of the job
    <job>/outputs/<attempt>.<worker>/   one writer each: the launcher, or the server for a remote worker
        index.jsonl                     see index.py
        data/<sha256>                   the bytes; complete as soon as they have that name
        incoming/                       incomplete files

Equal contents are kept once per worker. Files survive a crash of programs; after a loss of power the newest ones may be
short, which their digest reveals.
"""

import hashlib
import os
import shutil
from typing import Callable, Dict, Iterator, Optional, Tuple

from client_lib.worker import disk
from client_lib.worker.directory import locked, read_json, remove, write_all, write_json
from client_lib.worker.outputs.index import Index, IndexWriter, Kept, LeftOut

BLOCK = 1024 * 1024
_LOCK, _SIZES, _DATA, _INCOMING = "lock", "sizes.json", "data", "incoming"


class NotKept(Exception):
    """The file cannot be kept; the message gives the reason."""


class BeingWritten(Exception):
    """The file was changed while it was read: a later scan tries again."""


class SourceFile:
    """One open file that is to be kept. `check_time` is called before each block, and raises to end the scan."""

    def __init__(self, path: str, fd: int, executable: bool, check_time: Callable[[], None]) -> None:
        self.path = path
        self.fd = fd
        self.executable = executable
        self.status = os.fstat(fd)
        self._check_time = check_time

    @property
    def size(self) -> int:
        return self.status.st_size

    def blocks(self) -> Iterator[bytes]:
        """Its bytes up to its size. Raises BeingWritten if it was changed meanwhile."""
        position = 0
        while position < self.size:
            self._check_time()
            block = os.pread(self.fd, min(BLOCK, self.size - position), position)
            if not block:
                raise BeingWritten(self.path)
            position += len(block)
            yield block
        after = os.fstat(self.fd)
        if (after.st_size, after.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise BeingWritten(self.path)

    def sha256(self) -> str:
        """Digest of the whole file. Raises BeingWritten."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()


class DirectoryStore:
    """The store of one worker in one attempt, on this machine. Its methods may block, and raise OSError."""

    def __init__(self, folder: str, limit_bytes: int, keep_free: int = 0) -> None:
        """`folder`: `<job>/outputs/<attempt>.<worker>`. `limit_bytes`: limit for the whole job. `keep_free`: bytes of
        the disk that stay free."""
        self._keep_free = keep_free
        self._room = Room(os.path.dirname(folder), os.path.basename(folder), limit_bytes)
        self._data, self._incoming = os.path.join(folder, _DATA), os.path.join(folder, _INCOMING)
        for path in (self._data, self._incoming):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._writer = IndexWriter(folder)
        self._uses: Dict[str, int] = {}  # digest -> number of paths with this content
        self._bytes = 0
        for kept in self.index.kept.values():
            self._count(kept)

    @property
    def index(self) -> Index:
        return self._writer.index

    def keep(self, source: SourceFile, at_rest: Optional[str]) -> None:
        """Keep this version of the file instead of an older one. `at_rest`: its path, if it will never change again.

        Raises NotKept, BeingWritten.
        """
        self.make_room(source.path, source.size)
        temporary = self.incoming(str(os.getpid()))
        remove(temporary)
        try:
            sha256 = self._link(source, temporary, at_rest) or self._copy(source, temporary)
            kept = Kept(source.path, source.size, sha256, source.status.st_mtime, source.executable)
            self.adopt(kept, temporary)
        finally:
            remove(temporary)
        self._room.take(self._bytes)  # less than `make_room` took if the same content was kept before

    def leave_out(self, path: str, size: int, why: str) -> None:
        self._writer.leave_out(LeftOut(path, size, why))

    def forget(self, path: str) -> None:
        """Remove it: the script has removed the original."""
        before = self.index.kept.get(path)
        self._writer.forget(path)
        self._drop(before)
        self._room.take(self._bytes)

    def close(self) -> None:
        self._writer.close()

    def make_room(self, path: str, size: int) -> None:
        """Reserve the size. Raises NotKept if the job would exceed its limit."""
        before = self.index.kept.get(path)
        replaced = before.size if before and self._uses[before.sha256] == 1 else 0
        if not self._room.take(self._bytes - replaced + size):
            raise NotKept("the job keeps %s without it, and may keep %s" % self._room.shown())

    def incoming(self, name: str) -> str:
        return os.path.join(self._incoming, name)

    def drop_incoming(self, name: str) -> None:
        remove(self.incoming(name))

    def adopt(self, kept: Kept, complete: str) -> None:
        before = self.index.kept.get(kept.path)
        os.replace(complete, os.path.join(self._data, kept.sha256))
        self._writer.keep(kept)
        self._count(kept)
        self._drop(before)

    def sync(self) -> None:
        self._writer.sync()

    def _link(self, source: SourceFile, temporary: str, at_rest: Optional[str]) -> Optional[str]:
        """Link the file instead of copying it. Returns its digest, or None if it cannot be linked."""
        if at_rest is None:
            return None
        try:
            os.link(at_rest, temporary)
        except OSError:  # another file system, or one without links
            return None
        return source.sha256()

    def _copy(self, source: SourceFile, temporary: str) -> str:
        digest = hashlib.sha256()
        disk.check_room(self._incoming, source.size, self._keep_free)
        with open(temporary, "wb", buffering=0) as file:
            for block in source.blocks():
                digest.update(block)
                write_all(file.fileno(), block)
        return digest.hexdigest()

    def _count(self, kept: Kept) -> None:
        uses = self._uses.get(kept.sha256, 0)
        self._uses[kept.sha256] = uses + 1
        if not uses:
            self._bytes += kept.size

    def _drop(self, before: Optional[Kept]) -> None:
        """Remove the content of a replaced file unless another path has the same."""
        if before is None:
            return
        self._uses[before.sha256] -= 1
        if not self._uses[before.sha256]:
            del self._uses[before.sha256]
            self._bytes -= before.size
            remove(os.path.join(self._data, before.sha256))


class Room:
    """Bytes that all workers of a job keep, and their limit."""

    def __init__(self, folder: str, mine: str, limit_bytes: int) -> None:
        self._folder, self._mine, self._limit = folder, mine, limit_bytes
        self._taken = -1
        self._others = 0

    def take(self, size: int) -> bool:
        """Set the bytes of this worker to `size`. Outputs of earlier attempts are removed to make room, the oldest
        first. False: the limit would still be exceeded, and nothing changes."""
        if size == self._taken:
            return True
        with locked(os.path.join(self._folder, _LOCK)):
            known = read_json(os.path.join(self._folder, _SIZES)) or {}
            sizes = {name: size for name, size in known.items() if isinstance(size, int)}
            sizes[self._mine] = size
            while sum(sizes.values()) > self._limit:
                earlier = [name for name in sizes if _attempt(name) < _attempt(self._mine)]
                if not earlier:
                    self._others = sum(sizes.values()) - size
                    return False
                oldest = min(earlier, key=_attempt)
                shutil.rmtree(os.path.join(self._folder, oldest), ignore_errors=True)
                del sizes[oldest]
            write_json(os.path.join(self._folder, _SIZES), sizes)
        self._taken = size
        return True

    def shown(self) -> Tuple[str, str]:
        """(bytes kept at the last refusal, the limit), for people."""
        return disk.megabytes(self._others + max(self._taken, 0)), disk.megabytes(self._limit)


def data_path(folder: str, sha256: str) -> str:
    """Path of the content with that digest in the folder of one worker."""
    return os.path.join(folder, _DATA, sha256)


def _attempt(name: str) -> int:
    return int(name.partition(".")[0])
