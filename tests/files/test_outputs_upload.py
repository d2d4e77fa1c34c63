"""Outputs that workers elsewhere upload in pieces."""

import asyncio
import hashlib
import threading
from pathlib import Path

import pytest

from client_lib.durable import sha256_of
from client_lib.errors import StorageFull
from client_lib.launcher_protocol.output_store import Kept, read_index
from server_stub.files import outputs
from server_stub.files.outputs import OutputsUpload
from server_stub.files.room import Room
from tests.kit.bounds import Bounds

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
    assert not uploads._locks, "nothing stays in memory of a worker that uploads no more"


def test_the_store_of_an_upload_stays_open_while_others_open_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: Bounds
) -> None:
    uploads = OutputsUpload(10**6, Room(tmp_path, 0))
    kept = Kept("model.pt", len(DATA), hashlib.sha256(DATA).hexdigest(), 0.0, executable=False)
    reads, others_have_opened = threading.Event(), threading.Event()

    def slow(path: str) -> str:  # a file that takes minutes is no test's
        reads.set()
        assert others_have_opened.wait(30.0)
        return sha256_of(path)

    async def run() -> None:
        upload = asyncio.create_task(uploads.put(tmp_path / "1.0", kept, 0, DATA))
        await asyncio.to_thread(reads.wait, 30.0)
        for number in (1, 2):
            await uploads.leave_out(tmp_path / f"1.{number}", "huge.bin", 1, "why")
        others_have_opened.set()
        assert await upload == len(DATA)

    bounds(outputs, _OPEN_MAX=1)
    # a disk that reads slowly, as long as the test wants
    monkeypatch.setattr(outputs, "sha256_of", slow)
    asyncio.run(run())
    assert list(read_index(str(tmp_path / "1.0")).kept) == ["model.pt"]
