"""Room on the disk of the data directory: each writer of much data claims its room before it
writes. A spare file keeps room for small writes that must succeed on a full disk.

A check alone would let many writers at once see the same free bytes. One server works on a data
directory, so claims are kept in memory. They are made on the event loop.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from client_lib import durable
from client_lib.errors import StorageFull

P = ParamSpec("P")
T = TypeVar("T")
_SLICE = 256 * 1024  # more than a few rows, their log in the database, or the report of a worker
_SLICES = 16
_TO_START = 4 * _SLICE  # for server.json, and for the database's log and its index


@contextmanager
def refusing_full_disk() -> Iterator[None]:
    """Raises StorageFull in place of the OSError of a full disk."""
    try:
        yield
    except OSError as error:
        if durable.is_full(error):
            raise StorageFull(f"the server's disk is full: {error}") from error
        raise


class Room:
    """The room of one data directory, of which `min_free_bytes` stay free."""

    def __init__(
        self,
        folder: Path,
        min_free_bytes: int,
        free_bytes: Callable[[str], int] = durable.free_bytes,
    ) -> None:
        """`free_bytes` returns the number of free bytes on the disk of a folder."""
        self._folder = str(folder)
        self._min_free_bytes = min_free_bytes
        self._free_bytes = free_bytes
        self._claims: set[Claim] = set()
        self.spare = Spare(folder / "spare")

    def open(self) -> None:
        """Free enough of the spare file for the start of a server on a full disk."""
        while self._free_bytes(self._folder) < _TO_START and self.spare.give_up():
            pass

    def restore_spare(self) -> None:
        """Extend the spare file to its full size, if there is room. Blocks."""
        if self.free - self.spare.missing >= self._min_free_bytes:
            self.spare.restore()

    @property
    def free(self) -> int:
        """Bytes that are free and not claimed."""
        free = self._free_bytes(self._folder)
        return free - sum(claim.unwritten for claim in tuple(self._claims))  # also read by a thread

    @contextmanager
    def claim(self, size: int) -> Iterator[Claim]:
        """Keep room for `size` bytes while they are written. Raises StorageFull."""
        claim = Claim(self)
        claim.cover(size)
        self._claims.add(claim)
        try:
            yield claim
        finally:
            self._claims.remove(claim)

    def check(self, size: int) -> None:
        """Raises StorageFull if too few bytes would be free after `size` more."""
        free = self.free
        kept = self._min_free_bytes
        if free - size < kept:
            raise StorageFull(
                f"the server's disk has {free / 1e6:.0f} MB left, and {kept / 1e6:.0f} MB must "
                "stay free; nothing was stored",
                hint="make room there: `client-lib delete` removes finished jobs",
            )


class Claim:
    def __init__(self, room: Room) -> None:
        self._room = room
        self.unwritten = 0
        """Bytes that are claimed and not on the disk yet."""

    def cover(self, size: int) -> None:
        """Claim more, if the claim has less than `size` bytes left. Raises StorageFull."""
        if size > self.unwritten:
            self._room.check(size - self.unwritten)
            self.unwritten = size

    def wrote(self, size: int) -> None:
        """Note that so many of its bytes are on the disk."""
        self.unwritten -= size


class Spare:
    """A file that keeps room for small writes that must succeed on a full disk: orders, ends of
    jobs, reports and removals. A write that finds no room shortens the file by a slice and tries
    again. Slices are small, so that other processes that wait for room get little of it. Callable
    from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    @property
    def missing(self) -> int:
        """Bytes by which the file is shorter than its full size."""
        return _SLICE * _SLICES - self._size()

    def restore(self) -> None:
        """Extend the file to its full size, or leave it as it is if the disk is full."""
        with self._lock, open(self._path, "ab", opener=durable.private) as file:
            size = file.tell()
            try:
                durable.allocate(file.fileno(), _SLICE * _SLICES)
            except OSError:
                file.truncate(size)

    def give_up(self) -> bool:
        """Free a slice. Returns False if there is none."""
        with self._lock:
            size = self._size()
            if size:
                os.truncate(self._path, max(0, size - _SLICE))
            return size > 0

    def run(self, call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        """Return the result of `call`. While the disk is full a slice is freed and `call` is
        repeated.

        Raises OSError: the disk is full and nothing is left to give up; and other errors of `call`.
        """
        while True:
            try:
                return call(*args, **options)
            except OSError as error:
                if not (durable.is_full(error) and self.give_up()):
                    raise

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0
