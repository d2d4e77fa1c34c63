"""A worker's log as the server keeps it: by offset, in segments, over crashes."""

import errno
import os
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.errors import InvalidRequest
from client_lib.spec.request import LogLengths
from server_stub.worker_gateway import log_file
from server_stub.worker_gateway.log_file import CLOCK_FILE, LogFile, read_clock


def record(seq: int, text: str = "text") -> bytes:
    return f"{seq} 2026-11-21T10:58:55.123456Z 0 stdout {text}\n".encode()


def records(first: int, last: int) -> bytes:
    return b"".join(record(seq) for seq in range(first, last))


def opened(folder: Path, limit: int = 2**30, segment: int = 2**20) -> LogFile:
    log = LogFile(folder / "log", limit, segment)
    log.resume()
    return log


def stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "log").glob("*.log")))


def test_what_is_here_already_is_passed_over(tmp_path: Path) -> None:
    log = opened(tmp_path)
    text = records(0, 10)
    assert log.put(0, text, gap=False) == 0
    assert log.put(0, text, gap=False) == 0
    assert log.put(len(records(0, 5)), records(5, 12), gap=False) == 0
    assert stored(tmp_path) == records(0, 12)
    assert (log.offset, log.next_seq) == (len(records(0, 12)), 12)


def test_nothing_is_taken_behind_what_is_missing_unless_it_is_gone(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(0, records(0, 2), gap=False)
    behind = len(records(0, 7))
    assert log.put(behind, records(7, 9), gap=False) == 0
    assert log.offset == len(records(0, 2))
    assert log.put(behind, records(7, 9), gap=True) == 5
    assert log.put(behind, records(7, 9), gap=True) == 0
    assert log.offset == len(records(0, 9))
    assert [path.name for path in sorted((tmp_path / "log").iterdir())] == [
        f"{0:020}.log",
        f"{behind:020}.log",
    ]


@pytest.mark.parametrize(
    "data",
    [b"no record at all\n", record(0)[:-1], b"\n", b"x 2026 0 stdout text\n", b"    raise\n"],
)
def test_what_is_no_record_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        opened(tmp_path).put(0, data, gap=False)
    assert not (tmp_path / "log").exists()


def test_half_a_record_that_a_crash_left_is_cut_off_and_sent_again(tmp_path: Path) -> None:
    opened(tmp_path).put(0, records(0, 3), gap=False)
    (segment,) = (tmp_path / "log").iterdir()
    with segment.open("ab") as file:
        file.write(record(3)[:20])
    log = opened(tmp_path)
    assert (log.offset, log.next_seq) == (len(records(0, 3)), 3)
    log.put(log.offset, record(3), gap=False)
    assert stored(tmp_path) == records(0, 4)


def test_a_segment_that_was_begun_and_never_written_is_gone_on_with(tmp_path: Path) -> None:
    opened(tmp_path).put(0, records(0, 3), gap=False)
    (tmp_path / "log" / f"{len(records(0, 3)):020}.log").touch()
    log = opened(tmp_path)
    assert (log.offset, log.next_seq) == (len(records(0, 3)), 3)


def test_a_segment_that_could_not_be_begun_takes_no_records_of_another_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    log.put(0, records(0, 3), gap=False)

    def broken(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patch:
        # no disk here fails on time
        patch.setattr(log_file, "sync", broken)
        with pytest.raises(OSError, match="Input/output error"):
            log.put(len(records(0, 5)), records(5, 6), gap=True)
    log.put(log.offset, records(3, 8), gap=False)
    assert stored(tmp_path) == records(0, 8)
    assert opened(tmp_path).lengths().length == log.offset == len(records(0, 8))


@pytest.mark.parametrize("by_seq", [False, True])
def test_records_of_which_a_full_disk_stored_a_part_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_seq: bool
) -> None:
    log = opened(tmp_path, segment=len(records(0, 3)))

    def send() -> int:
        return (
            log.add(records(0, 8))[1]
            if by_seq
            else log.put(log.offset, records(0, 8)[log.offset :], gap=False)
        )

    def full(fd: int, data: bytes) -> None:
        if stored(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.write(fd, data)

    with monkeypatch.context() as patch:
        # no disk is full on time, behind the first bytes
        patch.setattr(log_file, "write_all", full)
        with pytest.raises(OSError, match="No space left"):
            send()
    assert stored(tmp_path) == records(0, 3)
    assert send() == 0
    assert stored(tmp_path) == records(0, 8)
    assert log.next_seq == 8


def test_head_and_tail_of_a_long_log_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path, limit=64_000, segment=8_000)
    for first in range(0, 20_000, 500):
        log.put(log.offset, records(first, first + 500), gap=False)
    kept = stored(tmp_path)
    assert len(kept) <= 64_000
    assert kept.startswith(record(0))
    assert kept.endswith(record(19_999))
    assert log.offset == len(records(0, 20_000))


def test_what_is_answered_as_durable_is_not_more_than_there_is(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(0, records(0, 3), gap=False)
    log.put(log.offset, records(3, 4), gap=False)
    before = log.lengths()
    assert before.durable <= before.length == len(records(0, 4))
    log.sync()
    assert log.lengths() == LogLengths(length=before.length, durable=before.length, next_seq=4)


def test_records_read_elsewhere_are_taken_by_seq(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.put(0, records(0, 5), gap=False)
    read = (
        b"client-lib: the log waits\n"
        + records(3, 7)
        + b"Traceback\n    raise\n"
        + records(7, 8)
        + record(8)[:-1]
    )
    assert log.add(read) == (3, 0)
    assert log.add(records(2, 8)) == (0, 0)
    assert stored(tmp_path) == records(0, 8)
    assert log.add(records(10, 12) + records(15, 16)) == (3, 5)
    assert log.next_seq == 16
    assert stored(tmp_path) == records(0, 8) + records(10, 12) + records(15, 16)


def test_a_text_with_carriage_returns_is_one_record(tmp_path: Path) -> None:
    log = opened(tmp_path)
    assert log.add(record(0, "50%\r100%") + record(1)) == (2, 0)
    assert stored(tmp_path) == record(0, "50%\r100%") + record(1)


@settings(deadline=None)  # the disk of a busy machine may take long
@given(
    sent=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans()), max_size=20),
    restarts=st.sets(st.integers(0, 19)),
)
def test_whatever_is_sent_the_log_holds_each_record_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[int, int, bool]], restarts: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    log, missing = opened(folder, segment=200), 0
    for number, (first, count, gap) in enumerate(sent):
        if number in restarts:
            log = opened(folder, segment=200)
        missing += log.put(len(records(0, first)), records(first, first + count), gap=gap)
    seqs = [
        int(line.split()[0])
        for line in (stored(folder) if (folder / "log").exists() else b"").splitlines()
    ]
    assert seqs == sorted(set(seqs))
    assert log.next_seq == (seqs[-1] + 1 if seqs else 0)
    assert log.next_seq - len(seqs) == missing
    assert log.offset == len(records(0, log.next_seq))


def test_the_clock_of_the_worker_is_known_by_the_newest_records(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for seq in range(3):
        stamp = datetime.fromtimestamp(time.time() + 60, timezone.utc).strftime(
            "%Y-%m-%dT%H:%M:%S.%fZ"
        )
        old = record(2 * seq, "old")
        log.put(log.offset, old + f"{2 * seq + 1} {stamp} 0 stdout new\n".encode(), gap=False)
    known = read_clock(tmp_path)
    assert known
    assert known.ahead_s == pytest.approx(60, abs=0.5)
    assert known.arrivals == 2  # each doubling is written
    (tmp_path / CLOCK_FILE).write_text('{"ahead_s": []}')
    assert read_clock(tmp_path) is None
