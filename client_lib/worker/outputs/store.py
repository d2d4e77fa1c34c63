"""Where outputs are kept: what every transport promises, and the one that keeps them on this machine.

    <job>/outputs/lock                  held while sizes are looked at and changed
    <job>/outputs/sizes.json            {"<attempt>.<worker>": bytes}: all that is kept of the job
    <job>/outputs/<attempt>.<worker>/   one writer each: the launcher, or the server for a worker elsewhere
        index.jsonl                     see index.py
        data/<sha256>                   the bytes; complete as soon as they have that name
        incoming/                       what is on its way

The same bytes are kept once per worker. There is no promise beyond a crash of programs: after a loss of power the
newest files may be short, and their digest says so. Standard library only, Python >= 3.8.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from abc import ABC, abstractmethod
from typing import Callable, Dict, Iterator, Optional, Tuple

from client_lib.worker.outputs.index import Index, IndexWriter, Kept, LeftOut

BLOCK = 1024 * 1024
_LOCK, _SIZES, _DATA, _INCOMING = "lock", "sizes.json", "data", "incoming"


class NotKept(Exception):
    """Why the file can't be kept: for people."""


class BeingWritten(Exception):
    """The file was changed while it was read: it is looked at again later."""


class Source:
    """One file to be kept, open. `wait` is called before each step that takes time, and raises when there is none."""

    def __init__(self, path: str, fd: int, executable: bool, patience: Callable[[], None]) -> None:
        self.path = path
        self.fd = fd
        self.executable = executable
        self.status = os.fstat(fd)
        self.wait = patience

    @property
    def size(self) -> int:
        return self.status.st_size

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Its bytes from `start` to its size. Raises BeingWritten if it is another file at the end."""
        position = start
        while position < self.size:
            self.wait()
            block = os.pread(self.fd, min(BLOCK, self.size - position), position)
            if not block:
                raise BeingWritten(self.path)
            position += len(block)
            yield block
        after = os.fstat(self.fd)
        if (after.st_size, after.st_mtime_ns) != (self.status.st_size, self.status.st_mtime_ns):
            raise BeingWritten(self.path)

    def sha256(self) -> str:
        """Reads it all. Raises BeingWritten."""
        digest = hashlib.sha256()
        for block in self.blocks():
            digest.update(block)
        return digest.hexdigest()


class Store(ABC):
    """What a transport does. All of it may block; OSError means that it can't be done."""

    wait: Callable[[], None] = staticmethod(lambda: None)
    """As of Source: a transport that waits for something asks it again and again."""

    @abstractmethod
    def keep(self, source: Source, at_rest: Optional[str]) -> None:
        """Keep this version of the file; an older one goes. `at_rest`: where it lies, if nobody will ever change it
        again.

        Raises:
            NotKept: it can't be, and why. BeingWritten: not now.
        """

    @abstractmethod
    def leave_out(self, path: str, size: int, why: str) -> None:
        """Say that it is not kept."""

    @abstractmethod
    def forget(self, path: str) -> None:
        """The script removed it."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is kept."""


class DirectoryStore(Store):
    """Of one worker in one attempt, on this machine."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        """`folder`: `<job>/outputs/<attempt>.<worker>`. `limit_bytes`: of the whole job."""
        self._room = Room(os.path.dirname(folder), os.path.basename(folder), limit_bytes)
        self._data, self._incoming = os.path.join(folder, _DATA), os.path.join(folder, _INCOMING)
        for path in (self._data, self._incoming):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._writer = IndexWriter(folder)
        self._uses: Dict[str, int] = {}  # how many paths have these bytes
        self._bytes = 0
        for kept in self.index.kept.values():
            self._count(kept)

    @property
    def index(self) -> Index:
        return self._writer.index

    def keep(self, source: Source, at_rest: Optional[str]) -> None:
        self.make_room(source.path, source.size)
        temporary = self.incoming(str(os.getpid()))
        _remove(temporary)
        try:
            sha256 = self._link(source, temporary, at_rest) or self._copy(source, temporary)
            self.adopt(kept_of(source, sha256), temporary)
        finally:
            _remove(temporary)
        self._room.take(self._bytes)  # less than there was made room for, where the same bytes were there

    def leave_out(self, path: str, size: int, why: str) -> None:
        self._writer.leave_out(LeftOut(path, size, why))

    def forget(self, path: str) -> None:
        before = self.index.kept.get(path)
        self._writer.forget(path)
        self._drop(before)
        self._room.take(self._bytes)

    def close(self) -> None:
        self._writer.close()

    def make_room(self, path: str, size: int) -> None:
        """Raises NotKept: with that size the job would keep too much."""
        before = self.index.kept.get(path)
        replaced = before.size if before and self._uses[before.sha256] == 1 else 0
        if not self._room.take(self._bytes - replaced + size):
            raise NotKept("the job keeps %s without it, and may keep %s" % self._room.shown())

    def incoming(self, name: str) -> str:
        """Where bytes that arrive are collected."""
        return os.path.join(self._incoming, name)

    def adopt(self, kept: Kept, complete: str) -> None:
        """Take over a complete file with these bytes; it is gone from where it was."""
        before = self.index.kept.get(kept.path)
        os.replace(complete, os.path.join(self._data, kept.sha256))
        self._writer.keep(kept)
        self._count(kept)
        self._drop(before)

    def sync(self) -> None:
        """The list is on the disk."""
        self._writer.sync()

    def _link(self, source: Source, temporary: str, at_rest: Optional[str]) -> Optional[str]:
        """The digest, if the file itself can be kept: no byte is copied."""
        if at_rest is None:
            return None
        try:
            os.link(at_rest, temporary)
        except OSError:  # another file system, or one without links
            return None
        return source.sha256()

    def _copy(self, source: Source, temporary: str) -> str:
        digest = hashlib.sha256()
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
        """A path has these bytes no more; they go with the last one."""
        if before is None:
            return
        self._uses[before.sha256] -= 1
        if not self._uses[before.sha256]:
            del self._uses[before.sha256]
            self._bytes -= before.size
            _remove(os.path.join(self._data, before.sha256))


class Room:
    """How much of a job is kept, by all of its workers."""

    def __init__(self, folder: str, mine: str, limit_bytes: int) -> None:
        self._folder, self._mine, self._limit = folder, mine, limit_bytes
        self._taken = -1
        self._others = 0

    def take(self, size: int) -> bool:
        """This worker keeps `size` bytes from now on; False: that is too much, and nothing changes. Where it is too
        much, what earlier attempts left goes first, the oldest before the others."""
        if size == self._taken:
            return True
        with _locked(os.path.join(self._folder, _LOCK)):
            sizes = _read_sizes(os.path.join(self._folder, _SIZES))
            sizes[self._mine] = size
            while sum(sizes.values()) > self._limit:
                earlier = [name for name in sizes if _attempt(name) < _attempt(self._mine)]
                if not earlier:
                    self._others = sum(sizes.values()) - size
                    return False
                self._remove(min(earlier, key=_attempt), sizes)
            _write_sizes(os.path.join(self._folder, _SIZES), sizes)
        self._taken = size
        return True

    def shown(self) -> Tuple[str, str]:
        """(what was kept when something was refused, the limit), for people."""
        return megabytes(self._others + max(self._taken, 0)), megabytes(self._limit)

    def _remove(self, name: str, sizes: Dict[str, int]) -> None:
        shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)
        del sizes[name]


def data_path(folder: str, sha256: str) -> str:
    """Where the bytes of that digest are or would be, in the folder of one worker."""
    return os.path.join(folder, _DATA, sha256)


def megabytes(size: int) -> str:
    return "%.1f MB" % (size / 1e6)


def kept_of(source: Source, sha256: str) -> Kept:
    return Kept(source.path, source.size, sha256, source.status.st_mtime, source.executable)


def _attempt(name: str) -> int:
    return int(name.partition(".")[0])


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _read_sizes(path: str) -> Dict[str, int]:
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except (FileNotFoundError, ValueError):
        return {}
    return {name: size for name, size in found.items() if isinstance(size, int)}


def _write_sizes(path: str, sizes: Dict[str, int]) -> None:
    with open(path + ".new", "wb") as file:
        file.write(json.dumps(sizes).encode())
    os.replace(path + ".new", path)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
