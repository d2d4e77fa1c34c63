"""The archives that clients upload: content-addressed files, and who uploaded each.

`<root>/<sha256>/code.tar.gz` and beside it `owners/<user>`, an empty file per user who sent the
very bytes. A digest proves nothing, because answers and manifests show it: a user sees an archive
only after uploading it. The service reads these folders at submit and in retention; the worker
launcher unpacks the archives, and pages show files of them.
"""

import asyncio
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from client_lib.durable import make_private_folders, private, sync
from client_lib.errors import InvalidRequest, TooLarge
from server_stub.files.room import Room, refusing_full_disk

_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING = "incoming"
_BATCH = 2**20  # bytes hashed and written by a thread at once, in about a millisecond


class StoredSnapshot(NamedTuple):
    """An archive, for retention."""

    digest: str
    at: datetime
    """Last time that a client uploaded the archive, asked for it, or named it in a submit."""
    size: int
    """Bytes."""


class Snapshots:
    """All archives of one server. User names are file names:
    `server_stub.http.users_file` allows no others.
    """

    def __init__(self, root: Path, max_bytes: int, room: Room) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._room = room

    def open(self) -> None:
        """Create the folder and remove unfinished uploads of an earlier server."""
        shutil.rmtree(self._root / _INCOMING, ignore_errors=True)
        self._root.mkdir(mode=0o700, exist_ok=True)
        (self._root / _INCOMING).mkdir(mode=0o700)

    def path(self, sha256: str) -> Path:
        """The path of the archive, which may not exist. Raises InvalidRequest: the text is no
        digest, and could name another file."""
        if not _DIGEST.fullmatch(sha256):
            raise InvalidRequest(
                f"{sha256[:80]!r} is not a SHA-256 digest",
                hint="it has 64 characters of 0-9 and a-f",
            )
        return self._root / sha256 / "code.tar.gz"

    def find(self, sha256: str, user: str) -> Path | None:
        """The archive if `user` uploaded it, else None. Marks it as used now, so that retention
        does not remove it before the submit that follows."""
        path = self.path(sha256)
        if not path.is_file() or not (path.parent / "owners" / user).exists():
            return None
        _mark_used(path)
        return path

    async def put(
        self, sha256: str, user: str, chunks: AsyncIterator[bytes], size: int = 0
    ) -> bool:
        """Store the archive; it is on disk when this returns. Returns False if this user had it
        already; another user's archive makes no difference.

        `size`: the announced bytes, for which room is claimed at once; 0: for each batch as it
        comes.

        Raises:
            InvalidRequest: the bytes have another digest.
            TooLarge, StorageFull: nothing was stored.
        """
        path = self.path(sha256)
        digest = hashlib.sha256()
        incoming = self._root / _INCOMING / f"{sha256}.{os.urandom(6).hex()}"

        def write(batch: bytearray) -> None:
            digest.update(batch)
            file.write(batch)

        try:
            with refusing_full_disk(), self._room.claim(size) as claim:
                with await asyncio.to_thread(open, incoming, "xb", opener=private) as file:
                    async for batch in batches(chunks, self.check_size):
                        claim.cover(len(batch))
                        await asyncio.to_thread(write, batch)
                        claim.wrote(len(batch))
                if digest.hexdigest() != sha256:
                    raise InvalidRequest(
                        f"the uploaded bytes have the digest {digest.hexdigest()}, not {sha256}",
                        hint="send them again",
                    )
                return await asyncio.to_thread(_adopt, incoming, path, user)
        finally:
            incoming.unlink(missing_ok=True)

    def check_size(self, size: int) -> None:
        """Raises TooLarge: an archive of `size` bytes is over the limit."""
        if size > self._max_bytes:
            raise TooLarge(
                f"the code snapshot is larger than the {self._max_bytes / 1e6:.0f} MB that this "
                "server takes",
                hint="leave data and results out with a .clientlibignore file",
            )

    def stored(self) -> Iterator[StoredSnapshot]:
        """All archives; for retention."""
        for folder in self._root.iterdir():
            if not _DIGEST.fullmatch(folder.name):
                continue
            try:
                there = (folder / "code.tar.gz").stat()
            except FileNotFoundError:
                # a crash between folder and archive, or a removal just now
                continue
            last_use = datetime.fromtimestamp(there.st_mtime, timezone.utc)
            yield StoredSnapshot(folder.name, last_use, there.st_size)

    def remove(self, sha256: str, last_use: datetime) -> None:
        """Remove the archive, if it exists, and its owners. One that was
        used after `last_use` stays.
        """
        path = self.path(sha256)
        with suppress(FileNotFoundError):
            if datetime.fromtimestamp(path.stat().st_mtime, timezone.utc) <= last_use:
                shutil.rmtree(path.parent, ignore_errors=True)


async def batches(
    chunks: AsyncIterator[bytes], check_size: Callable[[int], None]
) -> AsyncIterator[bytearray]:
    """Yields the bytes in batches large enough to be written by a thread. `check_size` is called
    with the size so far, before a chunk is added; it raises if that is too large."""
    batch = bytearray()
    size = 0
    async for chunk in chunks:
        size += len(chunk)
        check_size(size)
        batch += chunk
        if len(batch) >= _BATCH:
            yield batch
            batch = bytearray()
    yield batch


def _mark_used(path: Path) -> None:
    """Set the time of the last use by our clock. The file system's clock, utime()'s default, is up
    to 4 ms late.
    """
    now = time.time()
    os.utime(path, (now, now))


def _adopt(incoming: Path, path: Path, user: str) -> bool:
    """Move a complete archive to its place and note its owner; both are on
    the disk when this returns.
    """
    sync(incoming)
    owner = path.parent / "owners" / user
    make_private_folders(str(owner.parent))
    there = path.exists() and owner.exists()
    owner.touch(mode=0o600)
    _mark_used(incoming)
    os.replace(incoming, path)
    for folder in (path.parent / "owners", path.parent, path.parent.parent):
        sync(folder)
    return not there
