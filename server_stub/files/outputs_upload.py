"""Stores output files that workers on other machines upload in pieces (`client_lib.worker.outputs.http_store`).

They are stored as the launcher on this machine stores them (`client_lib.worker.outputs.store`). A piece is on disk when
its upload is answered, because the pod and its files may be gone the next moment.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from client_lib.errors import InvalidRequest, StorageFull, TooLarge
from client_lib.worker.directory import sha256_of
from client_lib.worker.outputs.index import Kept
from client_lib.worker.outputs.store import DirectoryStore, NotKept
from server_stub.files.room import Room, refusing_full_disk

_OPEN_MAX = 64  # stores kept in memory, the most recently used ones
_PATH_MAX = 4096

T = TypeVar("T")


class Piece(NamedTuple):
    """A part of one version of a file. `mtime` in Unix seconds."""

    kept: Kept
    offset: int
    data: bytes


class OutputsUpload:
    """The uploads of one server. Used on one event loop, one call at a time per worker."""

    def __init__(self, limit_bytes: int, room: Room) -> None:
        """`limit_bytes`: the largest size of one job's outputs."""
        self._limit_bytes, self._room = limit_bytes, room
        self._stores: OrderedDict[Path, DirectoryStore] = OrderedDict()
        self._locks: dict[Path, asyncio.Lock] = {}

    async def put(self, folder: Path, piece: Piece) -> int:
        """Store a piece; returns how many bytes of this version the server has. The file is kept when it has them all,
        or deleted (0) if their digest is wrong. A piece after a missing part is not stored.

        Raises:
            TooLarge: the job keeps too much; StorageFull: the disk is full.
            InvalidRequest: a path that could lie elsewhere.
        """
        check_path(piece.kept.path)
        try:
            with self._room.claim(len(piece.data)):
                return await self._with_store(folder, lambda store: _put(store, piece))
        except StorageFull:  # the worker leaves the file out
            await self._with_store(folder, lambda store: store.drop_incoming(piece.kept.sha256))
            raise

    async def leave_out(self, folder: Path, path: str, size: int, why: str) -> None:
        """Note that a file is not kept."""
        check_path(path)
        await self._with_store(folder, lambda store: store.leave_out(path, size, why))

    async def forget(self, folder: Path, path: str) -> None:
        """Forget a file that the script removed."""
        await self._with_store(folder, lambda store: store.forget(path))

    async def _with_store(self, folder: Path, act: Callable[[DirectoryStore], T]) -> T:
        async with self._locks.setdefault(folder, asyncio.Lock()):
            with refusing_full_disk():
                return await asyncio.to_thread(self._act, folder, act)

    def _act(self, folder: Path, act: Callable[[DirectoryStore], T]) -> T:
        store = self._stores.pop(folder, None) or DirectoryStore(str(folder), self._limit_bytes)
        self._stores[folder] = store
        if len(self._stores) > _OPEN_MAX:
            self._stores.popitem(last=False)[1].close()
        try:
            done = act(store)
        except NotKept as refused:
            raise TooLarge(str(refused), hint="name fewer files in `outputs`") from refused
        store.sync()
        return done


def _put(store: DirectoryStore, piece: Piece) -> int:
    kept, there = piece.kept, store.index.kept.get(piece.kept.path)
    if there is not None and (there.sha256, there.size) == (kept.sha256, kept.size):
        return kept.size
    store.make_room(kept.path, kept.size)
    incoming = store.incoming(kept.sha256)
    with open(incoming, "ab") as file:
        have = file.tell()
        if piece.offset <= have < piece.offset + len(piece.data):
            file.write(piece.data[have - piece.offset :])
            file.flush()
            os.fsync(file.fileno())
            have = file.tell()
    if have < kept.size:
        return have
    if sha256_of(incoming) != kept.sha256:  # the worker changed it during the upload
        os.unlink(incoming)
        return 0
    store.adopt(kept, incoming)
    return kept.size


def check_path(path: str) -> None:
    """Raises InvalidRequest: the path could lead out of the folder."""
    parts = path.split("/")
    if len(path.encode()) > _PATH_MAX or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(f"{path[:200]!r} is no relative path")
