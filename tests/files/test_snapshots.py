"""Archives are stored whole or not at all, by digest, for those who sent them."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest, StorageFull, TooLarge
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from tests.kit.small_disk import free, small_disk

DATA = b"archive" * 400_000  # several batches
SHA = hashlib.sha256(DATA).hexdigest()


async def chunks(
    data: bytes = DATA, size: int = 65536, fail: Exception | None = None
) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
    if fail:
        raise fail


@pytest.fixture
def store(tmp_path: Path) -> Snapshots:
    snapshots = Snapshots(tmp_path / "snapshots", max_bytes=len(DATA), room=Room(tmp_path, 0))
    snapshots.open()
    return snapshots


def put(store: Snapshots, user: str = "ann", sha256: str = SHA, data: bytes = DATA) -> bool:
    return asyncio.run(store.put(sha256, user, chunks(data)))


def leftovers(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "snapshots" / "incoming").iterdir())


def test_what_was_put_is_found_by_who_put_it(store: Snapshots) -> None:
    assert put(store)
    found = store.find(SHA, "ann")
    assert found
    assert found.read_bytes() == DATA


def test_a_digest_alone_proves_nothing_sending_the_bytes_does(store: Snapshots) -> None:
    put(store)
    assert store.find(SHA, "ben") is None
    assert put(store, "ben")  # the same answer as if nobody had them
    assert not put(store, "ben")
    assert store.find(SHA, "ben")


def test_other_bytes_than_the_digest_are_refused_and_give_no_access(
    store: Snapshots, tmp_path: Path
) -> None:
    put(store)
    with pytest.raises(InvalidRequest, match="have the digest"):
        put(store, "ben", data=b"guess")
    assert store.find(SHA, "ben") is None
    assert not leftovers(tmp_path)


def test_one_byte_over_the_bound_is_refused_and_leaves_nothing(
    store: Snapshots, tmp_path: Path
) -> None:
    with pytest.raises(TooLarge):
        put(store, data=DATA + b"x")
    assert not store.path(SHA).exists()
    assert not leftovers(tmp_path)


def test_a_cut_upload_leaves_nothing(store: Snapshots, tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        asyncio.run(store.put(SHA, "ann", chunks(DATA[:100_000], fail=ConnectionError("cut"))))
    assert not store.path(SHA).exists()
    assert not leftovers(tmp_path)


def test_halves_that_a_crash_left_go_at_the_next_start(store: Snapshots, tmp_path: Path) -> None:
    (tmp_path / "snapshots" / "incoming" / "half").write_bytes(b"x")
    store.open()
    assert not leftovers(tmp_path)


@pytest.mark.parametrize(
    "name", ["", "..", "../" * 21 + "x", "A" * 64, "0" * 63, "0" * 64 + "/", "incoming"]
)
def test_what_is_no_digest_names_no_file(name: str, store: Snapshots) -> None:
    with pytest.raises(InvalidRequest):
        store.path(name)


def test_a_disk_with_too_little_room_takes_none(tmp_path: Path) -> None:
    store = Snapshots(tmp_path / "snapshots", max_bytes=2**40, room=Room(tmp_path, 2**62))
    store.open()
    with pytest.raises(StorageFull):
        put(store)


@pytest.mark.parametrize("announced", [True, False])
def test_many_uploads_at_once_leave_free_what_must_stay_free(
    tmp_path: Path, announced: bool
) -> None:
    with small_disk(tmp_path / "disk", "size=40m") as disk:
        kept = 16 * 2**20
        store = Snapshots(disk / "snapshots", max_bytes=2**30, room=Room(disk, kept))
        store.open()
        least = [free(disk)]

        async def upload(number: int) -> bool:
            data = bytes([number]) * 2**21

            async def slowly() -> AsyncIterator[bytes]:
                async for chunk in chunks(data):
                    await asyncio.sleep(0)
                    least.append(free(disk))
                    yield chunk

            try:
                sha256 = hashlib.sha256(data).hexdigest()
                return await store.put(sha256, "ann", slowly(), len(data) if announced else 0)
            except StorageFull:
                return False

        async def all_at_once() -> list[bool]:
            return await asyncio.gather(*(upload(number) for number in range(40)))

        stored = asyncio.run(all_at_once())
        assert min(least) >= kept
        assert not announced or sum(stored) == 12  # in 24 MiB
        assert len(list(store.stored())) == sum(stored)
        assert not list((disk / "snapshots" / "incoming").iterdir())


def test_retention_sees_what_is_there_and_what_was_asked_for_lately(store: Snapshots) -> None:
    put(store)
    (before,) = store.stored()
    assert (before.digest, before.size) == (SHA, len(DATA))
    os.utime(store.path(SHA), (0, 0))
    store.find(SHA, "ann")
    (after,) = store.stored()
    assert after.at >= before.at


def test_what_was_asked_for_since_it_was_listed_stays(store: Snapshots) -> None:
    put(store)
    os.utime(store.path(SHA), (0, 0))
    (stored,) = store.stored()
    found = store.find(SHA, "ann")
    store.remove(SHA, stored.at)
    assert found
    assert found.exists(), "the submit that follows needs it"


def test_what_was_removed_is_gone_for_all(store: Snapshots) -> None:
    put(store)
    (stored,) = store.stored()
    store.remove(SHA, stored.at)
    store.remove(SHA, stored.at)
    assert store.find(SHA, "ann") is None
    assert put(store, "ben")
    assert store.find(SHA, "ann") is None
