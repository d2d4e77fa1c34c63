"""A log that another launcher goes on with, in the directory of one that was killed."""

from pathlib import Path

import pytest

from client_lib.launcher_protocol.directory import Directory, renew
from client_lib.launcher_protocol.log_segments import SegmentWriter, segment_name
from client_lib.launcher_protocol.record import parse
from client_lib.worker.worker_log import WorkerLog

RECORD = b"%d 2026-11-21T10:58:55.123456Z 0 stdout line\n"


def written(folder: Path, *parts: bytes) -> SegmentWriter:
    """Segments with these bytes, and who goes on behind them."""
    at = 0
    for part in parts:
        (folder / segment_name(at)).write_bytes(part)
        at += len(part)
    return SegmentWriter(str(folder), 10**6, 10**5)


def test_it_goes_on_behind_the_last_whole_record(tmp_path: Path) -> None:
    whole = [RECORD % 0 + RECORD % 1, RECORD % 2]
    writer = written(tmp_path, *whole[:1], whole[1] + b"3 2026-11-21T10:5")
    assert (writer.offset, writer.next_seq, writer.removed_bytes) == (len(b"".join(whole)), 3, 0)
    writer.add(RECORD % 3)
    assert writer.flush()
    files = sorted(tmp_path.iterdir())
    assert files[-1].name == segment_name(len(b"".join(whole)))
    assert b"".join(path.read_bytes() for path in files) == b"".join(
        RECORD % seq for seq in range(4)
    )


@pytest.mark.parametrize("last", [b"", b"3 2026"])
def test_a_segment_without_a_whole_record_is_none(tmp_path: Path, last: bytes) -> None:
    writer = written(tmp_path, RECORD % 0, last)
    assert (writer.offset, writer.next_seq) == (len(RECORD % 0), 1)
    assert len(list(tmp_path.iterdir())) == 1


def test_what_was_removed_from_its_middle_is_still_counted(tmp_path: Path) -> None:
    written(tmp_path, RECORD % 0, RECORD % 1, RECORD % 2)
    (tmp_path / segment_name(len(RECORD % 0))).unlink()
    writer = SegmentWriter(str(tmp_path), 10**6, 10**5)
    assert (writer.next_seq, writer.removed_bytes) == (3, len(RECORD % 1))


def test_a_directory_that_is_renewed_keeps_its_log_and_its_code(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    for name in ("log", "work", "errors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").touch()
    for name in ("plan.json", "lock", "report.json", "processes.json", "control.sock"):
        (tmp_path / name).touch()
    for _ in range(2):
        renew(directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "errors",
        "log",
        "plan.json",
        "work",
    ]
    assert [path.name for path in tmp_path.rglob("0")] == ["0", "0"]


def test_its_numbers_go_on(tmp_path: Path) -> None:
    writer = written(tmp_path, RECORD % 0)
    output = WorkerLog(None, writer)  # type: ignore[arg-type]  # nothing is read here
    output.add_message("again")
    assert writer.flush()
    last = sorted(tmp_path.iterdir())[-1].read_bytes().splitlines()[-1]
    assert (parse(last).seq, parse(last).text) == (1, "again")
