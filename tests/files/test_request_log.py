"""The file of what submitters sent."""

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from server_stub.files import request_log
from server_stub.files.request_log import Heading, Place, RequestLog
from tests.kit.examples import examples

RECORDS = st.lists(
    st.text(min_size=1, max_size=300).map(lambda s: s.replace("\0", "").encode() + b"\n"),
    max_size=20,
)


@settings(max_examples=examples(50), deadline=None)
@given(runs=st.lists(RECORDS, max_size=4), cut=st.booleans())
def test_every_record_is_read_back_over_restarts(
    tmp_path_factory: pytest.TempPathFactory, runs: list[list[bytes]], cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("submissions")
    written: dict[Place, bytes] = {}
    for records in runs:
        submissions = RequestLog(folder, segment_bytes=1000)
        submissions.open()
        for record in records:
            [place] = submissions.append(record)
            assert place not in written
            written[place] = record
        if cut and records:
            submissions.append(b"cut off")  # as after a crash between the record and its row
        submissions.close()
        assert {place: submissions.read(place) for place in written} == written


def test_a_record_larger_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    submissions = RequestLog(tmp_path / "s", segment_bytes=100)
    submissions.open()
    places = [
        place for record in (b"a" * 90, b"b" * 500, b"c") for place in submissions.append(record)
    ]
    assert [place.segment for place in places] == [1, 2, 3]
    assert submissions.read(places[1]) == b"b" * 500
    assert stat.S_IMODE((tmp_path / "s" / "00000002.jsonl").stat().st_mode) == 0o600


def test_an_erased_record_is_zeros_and_an_unused_segment_goes(tmp_path: Path) -> None:
    submissions = RequestLog(tmp_path, segment_bytes=9)
    submissions.open()
    [first], [second] = submissions.append(b"secret-1\n"), submissions.append(b"secret-2\n")
    submissions.erase(first)
    assert submissions.read(first) == bytes(9)
    assert submissions.read(second) == b"secret-2\n"
    submissions.drop_unused({second.segment})
    assert not (tmp_path / "00000001.jsonl").exists()
    submissions.erase(first)  # gone already: harmless
    submissions.drop_unused(set())
    assert submissions.read(second) == b"secret-2\n", "the newest stays: it is being written"


def test_a_full_disk_leaves_no_half_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(
        *_: object,
    ) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    submissions = RequestLog(tmp_path, segment_bytes=10)
    submissions.open()
    with monkeypatch.context() as patch:
        # a real full disk needs a file system of its own, which needs root
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            submissions.append(b"record")
    assert list(tmp_path.iterdir()) == []
    assert submissions.read(*submissions.append(b"record")) == b"record"


def test_a_segment_that_could_not_be_synced_takes_no_more_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(
        _: int,
    ) -> None:  # once: the kernel reports a lost page to one fdatasync, and the next one succeeds
        monkeypatch.undo()
        raise OSError(errno.EIO, "Input/output error")

    submissions = RequestLog(tmp_path)
    submissions.open()
    [before] = submissions.append(b"before")
    # no disk loses a page when it is told to
    monkeypatch.setattr(request_log, "_flush", fail)
    with pytest.raises(OSError, match="Input/output"):
        submissions.append(b"lost")
    [after] = submissions.append(b"after")
    assert after.segment == before.segment + 1
    assert (submissions.read(before), submissions.read(after)) == (b"before", b"after")


@pytest.mark.parametrize("restart", [True, False])
def test_a_record_that_was_written_in_part_hides_none_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """A power loss keeps some pages of a record, and a disk may fill up in the middle of one."""
    pwrite, tries = os.pwrite, iter((True, False))

    def fills_up(fd: int, data: bytes, at: int) -> int:
        if next(tries):
            return pwrite(fd, data[: len(data) // 2], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    log = RequestLog(tmp_path)
    log.open()
    first, cut, last = (
        Heading(letter * 32, "anna", letter, "2026-11-27T00:00:00+00:00").above(b"{}")
        for letter in "abc"
    )
    log.append(first)
    with monkeypatch.context() as patch:
        # no disk fills up between two writes
        patch.setattr(os, "pwrite", fills_up)
        with pytest.raises(OSError, match="No space"):
            log.append(cut)
    if restart:
        log = RequestLog(tmp_path)
        log.open()
    log.append(last)
    assert [found.name for found, _ in log.headings()] == ["a", "c"]


@pytest.mark.parametrize(
    "damage", [{"length": "3"}, {"id": 3}, {"owner": None}, {"created_at": 1.5}, {"more": 1}]
)
def test_a_heading_of_other_types_is_left_out(tmp_path: Path, damage: dict[str, object]) -> None:
    log, whole = (
        RequestLog(tmp_path),
        Heading("a" * 32, "anna", "train", "2026-11-27T00:00:00+00:00"),
    )
    log.open()
    heading, _ = whole.above(b"{}").split(b"\n", 1)
    damaged = b"#job " + json.dumps(json.loads(heading[5:]) | damage).encode() + b"\n{}\n"
    log.append(damaged, whole.above(b"{}"))
    assert [found._replace(length=0) for found, _ in log.headings()] == [whole]
