"""Outputs that workers elsewhere upload in pieces."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from client_lib.errors import StorageFull
from client_lib.worker.outputs.store import Kept
from server_stub.files.outputs import OutputsUpload
from server_stub.files.room import Room

DATA = b"x" * 1000


def test_a_file_that_the_disk_has_no_room_for_leaves_none_of_its_pieces(tmp_path: Path) -> None:
    folder, free = tmp_path / "1.0", 1600
    uploads = OutputsUpload(10**6, Room(tmp_path, 1000, lambda _: free))
    kept = Kept("model.pt", len(DATA), hashlib.sha256(DATA).hexdigest(), 0.0, executable=False)

    async def run() -> None:
        nonlocal free
        assert await uploads.put(folder, kept, 0, DATA[:500]) == 500
        free -= 500
        assert len(list((folder / "incoming").iterdir())) == 1
        with pytest.raises(StorageFull):
            await uploads.put(folder, kept, 500, DATA[500:])
        assert not list((folder / "incoming").iterdir())

    asyncio.run(run())
