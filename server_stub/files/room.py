"""Room on the disk of the data directory: each writer of much data claims its room before it writes.

A check alone would let many writers at once see the same free bytes. One server works on a data directory, so claims
are kept in memory. They are made on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from client_lib.errors import StorageFull
from client_lib.worker import disk

FreeBytes = Callable[[Path], int]


def free_bytes(folder: Path) -> int:
    return disk.free_bytes(str(folder))


class Room:
    """The room of one data directory, of which `min_free_bytes` stay free."""

    def __init__(self, folder: Path, min_free_bytes: int, free: FreeBytes = free_bytes) -> None:
        self._folder, self._min_free_bytes, self._free = folder, min_free_bytes, free
        self._claims: set[Claim] = set()

    @property
    def free(self) -> int:
        """Bytes that are free and not claimed."""
        return self._free(self._folder) - sum(claim.unwritten for claim in self._claims)

    @property
    def is_short(self) -> bool:
        return self.free < self._min_free_bytes

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
        """Raises StorageFull: too little would be free after `size` more bytes."""
        free, kept = self.free, self._min_free_bytes
        if free - size < kept:
            raise StorageFull(
                f"the server's disk has {free / 1e6:.0f} MB left, and {kept / 1e6:.0f} MB must stay free; "
                "nothing was stored",
                hint=f"make room in {self._folder}: `client-lib delete` removes finished jobs",
            )


class Claim:
    """Room for one writer."""

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
