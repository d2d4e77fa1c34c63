"""Reading a log directory that is written, cut into segments and shortened meanwhile."""

from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from server_stub.logs.query import parse_since
from server_stub.logs.segments import BLOCK, LogReader, offset_of_time
from tests.logs.support import START, LogWriter, stamp


def read_all(reader: LogReader, size: int = BLOCK) -> bytes:
    data, offset = b"", 0
    while block := reader.block(offset, size):
        data += block.data
        offset = block.end
    return data


@pytest.mark.parametrize("size", [1, 200, BLOCK])
def test_blocks_are_whole_records_of_any_size(tmp_path: Path, size: int) -> None:
    log = LogWriter(tmp_path)
    data = b"".join(log.write("x" * (number % 500)) for number in range(1000))
    assert read_all(LogReader(tmp_path), size) == data


def test_a_reader_goes_on_in_segments_that_begin_later(tmp_path: Path) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    assert (reader.block(0), reader.end(), reader.whole_end()) == (None, 0, 0)
    offset = 0
    for text in ("a", "b", "c"):
        data = log.write(text)
        block = reader.block(offset)
        assert block
        assert (block.start, block.data) == (offset, data)
        offset = block.end
        assert reader.block(offset) is None
        log.new_segment()
    assert reader.end() == offset


def test_what_was_written_to_a_segment_before_its_successor_is_not_missed(tmp_path: Path) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    first = log.write("first")
    assert reader.block(0)
    assert reader.block(len(first)) is None
    late = log.write("late")
    log.new_segment()
    log.write("next")
    block = reader.block(len(first))
    assert block
    assert block.data == late


def test_a_removed_part_is_stepped_over(tmp_path: Path) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    head = log.write("head")
    log.new_segment()
    lost, begin = log.path, log.offset
    log.write("lost")
    log.new_segment()
    tail_begin, tail = log.offset, log.write("tail")
    lost.unlink()
    block = reader.block(len(head))
    assert block == (tail_begin, tail)
    assert reader.block(begin + 3) == (tail_begin, tail)
    assert reader.record_before(tail_begin) == head


def test_a_record_that_a_dying_writer_left_half_is_stepped_over(tmp_path: Path) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    whole = log.write("whole")
    log.append([b"2 2026-11-2"])
    assert reader.block(len(whole)) is None
    assert reader.whole_end() == len(whole)
    log.new_segment()
    after = log.write("after")
    block = reader.block(len(whole))
    assert block
    assert block.data == after


def test_the_record_before_an_offset_may_lie_in_the_segment_before(tmp_path: Path) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    first = log.write("first")
    last = log.write("last" * 4000)
    log.new_segment()
    log.write("next")
    assert reader.record_before(len(first)) == first
    assert reader.record_before(len(first + last)) == last
    assert reader.record_before(0) is None


@pytest.mark.parametrize("cut", [b"", b"2 2026-11-2"])
def test_since_finds_older_lines_before_a_segment_that_has_no_record(
    tmp_path: Path, cut: bytes
) -> None:
    log, reader = LogWriter(tmp_path), LogReader(tmp_path)
    old = log.write("old", at=1)
    middle = log.write("middle", at=3)
    for _ in range(3):
        log.new_segment()
        log.append([cut])  # left by a writer that was killed, or has just begun a segment
        log.offset += 1
    begins = [0, len(old), len(old + middle)]
    assert [offset_of_time(reader, stamp(at).encode()) for at in (0, 2, 4)] == begins


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", -90),
        ("30s", -30),
        ("10m", -600),
        ("1.5h", -5400),
        ("1d", -86400),
        ("2026-11-21T10:00:05Z", 5),
        ("2026-11-21T12:00:05+02:00", 5),
        ("2026-11-21T10:00:05.250", 5.25),
    ],
)
def test_since_is_a_time_or_how_long_ago(text: str, seconds: float) -> None:
    assert parse_since(text, START) == stamp(seconds)


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5m", "999999999d", "2026-13-01"])
def test_since_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="since="):
        parse_since(text, START)
