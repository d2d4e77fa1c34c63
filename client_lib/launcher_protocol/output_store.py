"""Keeps outputs in a directory of this machine.

    <job>/outputs/lock                  held while sizes are read and changed
    <job>/outputs/sizes.json            {"<attempt>.<worker>": bytes}: all kept files of the job
    <job>/outputs/<attempt>.<worker>/   one writer each: the launcher, or the server for a remote
                                        worker
        index.jsonl                     the list of kept files
        data/<sha256>                   the bytes; complete as soon as they have that name
        incoming/                       incomplete files

Equal contents are kept once per worker. Files survive a crash of programs; after a loss of power
the newest ones may be short, which their digest reveals. The list has appended lines of JSON, of
which the last one of each path counts; there is one writer and any number of readers, and a last
line without its end, which a crash has cut off, is ignored:

    {"path": "model.pt", "size": 12, "sha256": "...", "mtime": 1700000000.5, "executable": false}
    {"path": "tmp.pt", "gone": true}                      the script has removed it
    {"path": "huge.bin", "size": 99, "left_out": "..."}   the reason why it is not kept
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from typing import Callable, Dict, NamedTuple, Optional

from client_lib import durable
from client_lib.durable import Opener, locked, read_json, remove, write_all, write_file, write_json

BLOCK = 1024 * 1024
INDEX = "index.jsonl"
_LOCK = "lock"
_SIZES = "sizes.json"
_DATA = "data"
_INCOMING = "incoming"


class Kept(NamedTuple):
    """One kept file, in the version that was kept."""

    path: str
    size: int
    sha256: str
    mtime: float
    executable: bool


class LeftOut(NamedTuple):
    """One file whose newest version is not kept."""

    path: str
    size: int
    why: str


class Index(NamedTuple):
    kept: Dict[str, Kept]
    left_out: Dict[str, LeftOut]

    def text(self) -> bytes:
        """The shortest list that says this."""
        return b"".join([_line(**kept._asdict()) for kept in self.kept.values()]) + b"".join(
            [
                _line(path=path, size=size, left_out=why)
                for path, size, why in self.left_out.values()
            ]
        )


def read_index(folder: str, opener: Optional[Opener] = None) -> Index:
    """The list in the folder of one worker; empty if there is none."""
    index = Index({}, {})
    try:
        with open(os.path.join(folder, INDEX), "rb", opener=opener) as file:
            *lines, _ = file.read().split(b"\n")
    except FileNotFoundError:
        return index
    for line in lines:
        entry = json.loads(line)
        path = entry["path"]
        index.left_out.pop(path, None)
        if entry.get("gone"):
            index.kept.pop(path, None)
        elif "left_out" in entry:
            index.left_out[path] = LeftOut(path, entry["size"], entry["left_out"])
        else:
            index.kept[path] = Kept(
                path, entry["size"], entry["sha256"], entry["mtime"], entry["executable"]
            )
    return index


def data_path(folder: str, sha256: str) -> str:
    """Path of the content with that digest in the folder of one worker."""
    return os.path.join(folder, _DATA, sha256)


def _line(**entry: object) -> bytes:
    return json.dumps(entry).encode() + b"\n"


class NotKept(Exception):
    """The file cannot be kept; the message gives the reason."""


class BeingWritten(Exception):
    """The file was changed while it was read: a later scan tries again."""


class SourceFile:
    """One open file that is to be kept. `check_time` is called before each block, and raises to end
    the scan. `at_rest`: its absolute path, if it will never change again."""

    def __init__(
        self,
        path: str,
        fd: int,
        executable: bool,
        check_time: Callable[[], None],
        at_rest: Optional[str] = None,
    ) -> None:
        self.path = path
        self.fd = fd
        self.executable = executable
        self.at_rest = at_rest
        self.status = os.fstat(fd)
        self.size = self.status.st_size
        self._check_time = check_time

    def sha256(self, copy: Optional[int] = None) -> str:
        """Digest of its bytes up to its size, which are also written to the descriptor `copy`.
        Raises BeingWritten if it was changed meanwhile."""
        digest = hashlib.sha256()
        position = 0
        while position < self.size:
            self._check_time()
            block = os.pread(self.fd, min(BLOCK, self.size - position), position)
            if not block:
                raise BeingWritten(self.path)
            position += len(block)
            digest.update(block)
            if copy is not None:
                write_all(copy, block)
        after = os.fstat(self.fd)
        if (after.st_size, after.st_mtime_ns) != (self.size, self.status.st_mtime_ns):
            raise BeingWritten(self.path)
        return digest.hexdigest()


class DirectoryStore:
    """The store of one worker in one attempt, on this machine: its only writer. Methods
    block, and raise OSError.
    """

    def __init__(self, folder: str, limit_bytes: int, keep_free: int = 0) -> None:
        """`folder`: `<job>/outputs/<attempt>.<worker>`; `limit_bytes`: of the job;
        `keep_free`: bytes of the disk.
        """
        self._folder = folder
        self._limit = limit_bytes
        self._keep_free = keep_free
        self._taken = -1  # bytes of this worker in the file of sizes; -1: not known
        for name in (_DATA, _INCOMING):
            durable.make_private_folders(os.path.join(folder, name))
        self.index = read_index(folder)
        path = os.path.join(folder, INDEX)
        self._list = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        shortest = self.index.text()
        # superseded lines, or a part of one after a crash
        if os.fstat(self._list).st_size != len(shortest):
            try:
                write_file(path, shortest, durable=True)
            except OSError:  # the disk is full: `forget` must make room, and needs whole lines only
                os.ftruncate(
                    self._list,
                    os.pread(self._list, os.fstat(self._list).st_size, 0).rfind(b"\n") + 1,
                )
            else:
                os.close(self._list)
                self._list = os.open(path, os.O_RDWR | os.O_APPEND)
        self._uses = Counter(kept.sha256 for kept in self.index.kept.values())
        """Number of paths with this content, by its digest."""
        self._bytes = sum({kept.sha256: kept.size for kept in self.index.kept.values()}.values())

    def keep(self, source: SourceFile) -> None:
        """Keep this version of the file instead of an older one. Raises NotKept, BeingWritten."""
        self.make_room(source.path, source.size)
        temporary = self.incoming(str(os.getpid()))
        remove(temporary)
        try:
            # another name may be written by another program
            if source.at_rest and source.status.st_nlink == 1:
                with contextlib.suppress(OSError):  # another file system, or one without links
                    os.link(source.at_rest, temporary)
            if os.path.exists(temporary):
                sha256 = source.sha256()
            else:
                durable.check_room(self._folder, source.size, self._keep_free)
                with open(temporary, "wb", buffering=0, opener=durable.private) as file:
                    sha256 = source.sha256(file.fileno())
            self.adopt(
                Kept(source.path, source.size, sha256, source.status.st_mtime, source.executable),
                temporary,
            )
        finally:
            remove(temporary)
            # less than `make_room` took if the content was kept before, or can't be now
            self._take_room(self._bytes)

    def leave_out(self, path: str, size: int, why: str) -> None:
        """Note the reason; a kept older version stays."""
        left = LeftOut(path, size, why)
        if self.index.left_out.get(path) != left:
            self._append(_line(path=path, size=size, left_out=why))
            self.index.left_out[path] = left

    def forget(self, path: str) -> None:
        """Remove it: the script has removed the original."""
        if path in self.index.kept or path in self.index.left_out:
            self._append(_line(path=path, gone=True))
        self.index.left_out.pop(path, None)
        self._drop(self.index.kept.pop(path, None))
        self._take_room(self._bytes)

    def sync(self) -> None:
        """Return when the list is on the disk."""
        os.fsync(self._list)

    def close(self) -> None:
        os.close(self._list)

    def make_room(self, path: str, size: int) -> None:
        """Reserve the size. Raises NotKept if the job would exceed its limit."""
        before = self.index.kept.get(path)
        replaced = before.size if before and self._uses[before.sha256] == 1 else 0
        self._take_room(self._bytes - replaced + size)

    def _take_room(self, size: int) -> None:
        """Set the bytes of this worker to `size`. If they grow, outputs of earlier attempts are
        removed to make room, the oldest first. Raises NotKept: the limit of the job would be
        exceeded even so, and nothing changes."""
        if size == self._taken:
            return
        job, mine = os.path.split(self._folder)
        with locked(os.path.join(job, _LOCK)):
            known = read_json(os.path.join(job, _SIZES)) or {}
            others = {name: size for name, size in known.items() if isinstance(size, int)}
            now = others.pop(mine, 0)
            stay = sum(size for name, size in others.items() if _attempt(name) >= _attempt(mine))
            if size > now and stay + size > self._limit:
                shown = (durable.megabytes(stay + now), durable.megabytes(self._limit))
                raise NotKept("the job keeps %s without it, and may keep %s" % shown)
            while size > now and sum(others.values()) + size > self._limit:
                oldest = min(others, key=_attempt)
                shutil.rmtree(os.path.join(job, oldest), ignore_errors=True)
                del others[oldest]
            write_json(os.path.join(job, _SIZES), {**others, mine: size})
        self._taken = size

    def incoming(self, name: str) -> str:
        return os.path.join(self._folder, _INCOMING, name)

    def adopt(self, kept: Kept, complete: str) -> None:
        """Move the file at the path `complete` into the store and list it."""
        before = self.index.kept.get(kept.path)
        os.replace(complete, data_path(self._folder, kept.sha256))
        try:
            self._append(_line(**kept._asdict()))
        except OSError:
            if not self._uses[kept.sha256]:
                remove(data_path(self._folder, kept.sha256))
            raise
        self.index.kept[kept.path] = kept
        self.index.left_out.pop(kept.path, None)
        self._uses[kept.sha256] += 1
        if self._uses[kept.sha256] == 1:
            self._bytes += kept.size
        self._drop(before)

    def _drop(self, before: Optional[Kept]) -> None:
        """Remove the content of a replaced file unless another path has that content."""
        if before is not None:
            self._uses[before.sha256] -= 1
            if not self._uses[before.sha256]:
                del self._uses[before.sha256]
                self._bytes -= before.size
                remove(data_path(self._folder, before.sha256))

    def _append(self, line: bytes) -> None:
        """Append to the list, before `index` says the same: a caller repeats
        what a full disk has refused.
        """
        size = os.fstat(self._list).st_size
        try:
            write_all(self._list, line)
        except OSError:  # a full disk may have taken a part of the line
            os.ftruncate(self._list, size)
            raise


def _attempt(name: str) -> int:
    return int(name.partition(".")[0])
