"""Many writers at once leave the room free that must stay free."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import StorageFull
from server_stub.files.room import Claim, Room
from tests.kit.small_disk import fill, free, small_disk

KEPT = 100


class Disk:
    """Free bytes of a disk, and bytes that writers may still add to it."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.room = Room(Path("/"), KEPT, lambda folder: self.free)


SIZES = st.integers(0, 400)


@given(st.integers(0, 1000), st.lists(st.tuples(SIZES, SIZES, SIZES), max_size=10), st.randoms())
def test_however_claims_and_writes_follow_each_other_the_rest_stays_free(
    free: int, writers: list[tuple[int, int, int]], order: object
) -> None:
    disk = Disk(free)
    least = min(free, KEPT)
    with ExitStack() as claims:
        running: list[tuple[Claim, list[int]]] = []
        for announced, *batches in writers:
            try:
                running.append((claims.enter_context(disk.room.claim(announced)), batches))
            except StorageFull:
                continue
        while running:
            claim, batches = running.pop(order.randrange(len(running)))  # type: ignore[attr-defined]
            if not batches:
                continue
            batch = batches.pop()
            try:
                claim.cover(batch)
            except StorageFull:
                continue
            disk.free -= batch
            claim.wrote(batch)
            running.append((claim, batches))
            assert disk.free >= least
    assert disk.room.free == disk.free


def test_what_one_has_claimed_another_does_not_get(tmp_path: Path) -> None:
    disk = Disk(KEPT + 10)
    with disk.room.claim(6):
        with pytest.raises(StorageFull, match="must stay free"), disk.room.claim(5):
            pass
        with disk.room.claim(4):
            pass
    with disk.room.claim(10):
        pass


def test_a_full_disk_gives_up_room_in_slices_and_takes_it_back_when_there_is_some(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "size=16m") as folder:
        room = Room(folder, 2**20)
        room.restore_spare()
        whole = 16 * 2**20 - free(folder)
        ballast = fill(folder)
        assert room.spare.run((folder / "report").write_bytes, bytes(1000)) == 1000
        given_up = free(folder)
        assert 0 < given_up < whole // 4
        with pytest.raises(OSError, match="No space left"):
            room.spare.run((folder / "too-large").write_bytes, bytes(2 * whole))
        assert not room.spare.give_up()
        room.restore_spare()
        assert room.spare.missing == whole
        ballast.unlink()
        (folder / "too-large").unlink()
        room.restore_spare()
        assert room.spare.missing == 0


def test_a_server_that_starts_on_a_full_disk_gets_some_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=16m") as folder:
        room = Room(folder, 2**20)
        room.open()
        assert room.spare.missing  # nothing to give up
        room.restore_spare()
        fill(folder)
        room.open()
        assert 2**20 <= free(folder) < 2**21
