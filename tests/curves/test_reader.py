"""Reading logs once, across restarts of the server and attempts of a job."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.record import metric_lines
from client_lib.spec.states import Reason, State
from client_lib.worker.preflight import WARNING
from server_stub.curves import lag, reader as curve_reader
from server_stub.curves.reader import FOLDER, CurveReader, Curves, Whose
from server_stub.files.job_dirs import log_dir, worker_dir
from server_stub.logs.records import LoggedJob
from server_stub.logs.segments import LogReader
from server_stub.worker_gateway.log_file import WorkerClock
from tests.curves.test_lag import line
from tests.kit.bounds import Bounds
from tests.kit.small_disk import no_file_grows_over
from tests.logs.support import LogWriter


def logged_job(folder: Path, **changes: Any) -> LoggedJob:
    usual: dict[str, Any] = {
        "n_workers": 1,
        "attempt": 1,
        "state": State.RUNNING,
        "reason": Reason.RUNNING,
    } | changes
    return LoggedJob(job_id="j", job_dir=folder, version=1, message="", **usual)


def writer(folder: Path, attempt: int = 1, worker: int = 0) -> LogWriter:
    return LogWriter(log_dir(folder, attempt, worker))


def read(reader: CurveReader, of: LoggedJob, rank: Whose) -> Curves:
    return reader.curves(of, rank, time.monotonic() + 60)


def losses(reader: CurveReader, of: LoggedJob, rank: Whose = 0) -> list[float]:
    return [
        value
        for (_, name), curve in sorted(read(reader, of, rank).curves.items())
        for value in curve.values
        if name == "loss"
    ]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Offsets of the blocks that are read."""
    offsets: list[int] = []
    real = LogReader.block

    def block(self: LogReader, offset: int, *arguments: Any, **options: Any) -> Any:
        offsets.append(offset)
        return real(self, offset, *arguments, **options)

    # counts the reads, which show in no result
    monkeypatch.setattr(LogReader, "block", block)
    return offsets


def test_new_lines_are_added_and_no_byte_is_read_twice(tmp_path: Path, reads: list[int]) -> None:
    log, reader = writer(tmp_path), CurveReader(10**6)
    assert losses(reader, logged_job(tmp_path)) == []
    for n in range(3):
        log.write(f"step {n} loss={n}", at=n)
    assert losses(reader, logged_job(tmp_path)) == [0, 1, 2]
    begin = log.offset
    log.write("step 3 loss=3", at=3)
    reads.clear()
    assert losses(reader, logged_job(tmp_path)) == [0, 1, 2, 3]
    assert min(reads) == begin


def test_a_new_server_reads_the_log_of_an_ended_job_no_more(
    tmp_path: Path, reads: list[int]
) -> None:
    log = writer(tmp_path)
    for n in range(3):
        log.write(f"step {n} loss={n} acc=nan", at=n)
    ended = logged_job(tmp_path, state=State.SUCCEEDED, reason=Reason.COMPLETED)
    before = read(CurveReader(10**6), ended, 0).curves
    reads.clear()
    after = read(CurveReader(10**6), ended, 0).curves
    assert min(reads) == log.offset
    assert repr(after) == repr(before)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{}\n",
        b'{"version": 3, "offset": 5, "dropped": 0, "bars": [[], []], "entries": [], "written": [],'
        b' "checkpoints": null, "warnings": [], "curves": [[0, "a", "step", "x", false, 9]]}\n',
    ],
)
def test_a_damaged_file_is_made_again(tmp_path: Path, damage: bytes) -> None:
    log = writer(tmp_path)
    for n in range(3):
        log.write(f"step {n} loss={n}", at=n)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "1-0").write_bytes(damage)
    assert losses(CurveReader(10**6), logged_job(tmp_path)) == [0, 1, 2]


def test_curves_that_a_full_disk_can_not_hold_take_no_room_on_it(tmp_path: Path) -> None:
    log = writer(tmp_path)
    for n in range(500):
        log.write(f"step {n} loss={n}", at=n)
    ended = logged_job(tmp_path, state=State.SUCCEEDED, reason=Reason.COMPLETED)
    with no_file_grows_over(2**12):
        assert len(losses(CurveReader(10**6), ended)) == 500
    assert not list((tmp_path / FOLDER).iterdir())


def test_attempts_continue_and_each_rank_has_its_curve(tmp_path: Path) -> None:
    for attempt in (1, 2):
        for worker in (0, 1):
            log = writer(tmp_path, attempt, worker)
            for n in range(3):
                log.write(f"step {n} loss={10 * attempt + n}", at=n, rank=worker)
    both = logged_job(tmp_path, attempt=2, n_workers=2)
    reader = CurveReader(10**6)
    assert losses(reader, both) == [10, 11, 12, 20, 21, 22]
    assert set(read(reader, both, 1).curves) == {(1, "loss")}
    assert set(read(reader, both, "all").curves) == {(0, "loss"), (1, "loss")}


def test_what_workers_used_is_no_metric_and_no_progress_of_the_job(tmp_path: Path) -> None:
    of, reader = logged_job(tmp_path, n_workers=2), CurveReader(10**6)
    for worker in (0, 1):
        log = writer(tmp_path, worker=worker)
        for n in range(4):
            log.write(
                f'{{"used": {{"worker/cpu_cores": {worker + n}}}}}',
                at=n,
                rank="-",
                stream="metrics",
            )
    assert read(reader, of, 0).curves == read(reader, of, "all").curves == {}
    assert reader.progress(of, now=9, until=time.monotonic() + 60) is None
    assert (
        reader.step(of, time.monotonic() + 60),
        reader.first_steps(of, time.monotonic() + 60),
    ) == (None, "")
    for again in (reader, CurveReader(10**6)):  # the second one reads the file of the first
        found = read(
            again, logged_job(tmp_path, n_workers=2, state=State.SUCCEEDED), "workers"
        ).curves
        assert {key: [*curve.values] for key, curve in found.items()} == {
            (0, "worker/cpu_cores"): [0, 1, 2, 3],
            (1, "worker/cpu_cores"): [1, 2, 3, 4],
        }


def test_lines_of_train_log_belong_to_no_rank(tmp_path: Path) -> None:
    log = writer(tmp_path)
    for n in range(3):
        log.write(f"step {n}/9 loss={n}", at=n, rank="-", stream="train.log")
        log.write("loss=9", at=n, rank="-", stream="launcher")
    reader = CurveReader(10**6)
    assert set(read(reader, logged_job(tmp_path), 0).curves) == {(None, "loss")}
    assert losses(reader, logged_job(tmp_path)) == [0, 1, 2]
    latest = reader.progress(logged_job(tmp_path), now=1e9, until=time.monotonic() + 9)
    assert latest is not None
    assert latest.metrics == {"loss": 2}


def test_a_list_waits_for_no_long_log(tmp_path: Path) -> None:
    log, reader = writer(tmp_path), CurveReader(10**6)
    for n in range(3):
        log.write(f"step {n} loss={n}", at=n)
    assert reader.progress(logged_job(tmp_path), now=0, until=0) is None
    latest = reader.progress(logged_job(tmp_path), now=0, until=time.monotonic() + 9)
    assert latest is not None
    assert latest.metrics == {"loss": 2}


def test_a_long_log_is_read_in_parts(tmp_path: Path) -> None:
    log, reader = writer(tmp_path), CurveReader(10**6)
    for n in range(3):
        log.write(f"step {n} loss={n}", at=n)
        log.new_segment()
    parts = [reader.curves(logged_job(tmp_path), 0, 0.0) for _ in range(4)]
    assert [part.complete for part in parts] == [False, False, False, True]
    assert parts[-1].curves[0, "loss"].values.tolist() == [0, 1, 2]


def test_the_curves_of_a_removed_job_leave_nothing(tmp_path: Path) -> None:
    gone = logged_job(tmp_path / "gone", state=State.SUCCEEDED, reason=Reason.COMPLETED)
    assert read(CurveReader(10**6), gone, 0).curves == {}
    assert list(tmp_path.iterdir()) == []


def test_values_of_a_script_are_exact_and_need_no_third(tmp_path: Path) -> None:
    log, reader = writer(tmp_path), CurveReader(10**6)
    for n in range(3):
        log.write(f"loss={n}", at=n, rank=5)
    line = (
        metric_lines(
            5, 7, {"loss": 0.1, "any name": math.nan, "written": 1, "collectives": 2}, dropped=4
        )[0]
        .decode()
        .strip()
    )
    log.write(line, at=3, rank="-", stream="metrics")
    for junk in (
        "",
        "{}",
        "[1]",
        "[[[[",
        '[0, 0, 0, {"x": "y"}]',
        '["a", 0, 0, {"x": 1}]',
        "[0, 0, 1e999, {}]",
        "[" * 3999,
    ):
        log.write(junk, at=4, rank="-", stream="metrics")
    found, complete, dropped = read(reader, logged_job(tmp_path), 5)
    assert (complete, dropped) == (True, 4)
    assert set(found) == {(5, name) for name in ("loss", "any name", "written", "collectives")}
    assert found[5, "loss"].steps.tolist() == [7]
    assert found[5, "loss"].values.tolist() == [0.1]


TIME = b"2026-11-21T10:00:00.000000Z"
HOSTILE = {
    "bar": b"0 " + TIME + b" 0 stdout   1%|x| 1/" + b"9" * 400 + b" [00:01<",
    "open bar": b"0 " + TIME + b" 0 stdout " + b"9" * 400 + b"it [00:01, loss=1",
    "rank": b"0 " + TIME + b" " + b"9" * 5000 + b" stdout step 1 loss=1",
    "month": b"0 2026-13-21T10:00:00.000000Z 0 stdout step 1 loss=1",
    "seconds": b"0 2026-11-21T10:00:+infinityZ 0 stdout step 1/3 loss=1",
    "time": b"0 never-never-never-never-nev 0 stdout step 1 loss=1",
    "digits": b"9" * 30_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_record_that_a_job_writes_itself_ends_the_reading(tmp_path: Path, kind: str) -> None:
    log, reader = writer(tmp_path), CurveReader(10**6)
    for n in range(3):
        log.append([HOSTILE[kind] + b"\n"])
        log.write(f"step {n} loss={n}", at=n)
    latest = reader.progress(logged_job(tmp_path), now=1e9, until=time.monotonic() + 60)
    assert latest is not None
    assert latest.metrics == {"loss": 2}


@pytest.mark.parametrize("limits", [{"_OPEN": 1}, {"_POINTS": 3}])
def test_logs_that_are_too_many_leave_the_memory_and_keep_their_progress(
    tmp_path: Path, bounds: Bounds, reads: list[int], limits: dict[str, int]
) -> None:
    bounds(curve_reader, **limits)
    log, running = writer(tmp_path), logged_job(tmp_path)
    for n in range(5):
        log.write(f"step {n}/9 loss={n}", at=n)
    reader = CurveReader(10**6)
    before = reader.progress(running, now=1e9, until=time.monotonic() + 60)
    assert before is not None
    assert before.done is not None
    assert (
        reader.progress(logged_job(tmp_path / "other"), now=1e9, until=time.monotonic() + 60)
        is None
    )
    assert (tmp_path / FOLDER / "1-0").exists()
    reads.clear()
    assert reader.progress(running, now=1e9, until=time.monotonic() + 60) == before
    assert min(reads) == log.offset


def enters(log: LogWriter, first: int, ranks: int = 3) -> None:
    """Twenty steps with a collective each, into which rank 1 is late."""
    for rank in range(ranks):
        times = [1e9 + 0.1 * n + 0.05 * (rank == 1) for n in range(first, first + 20)]
        log.write(line(rank, first, 1, times), rank="-", stream="metrics")


def test_the_slow_rank_is_looked_for_once_until_ranks_send_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches, real = [], lag.steps

    def steps(*arguments: Any) -> list[lag.SeenStep]:
        searches.append(arguments)
        return real(*arguments)

    def slow(of: LoggedJob) -> tuple[int, int]:
        """Return how many of the last steps were looked at, and the number of searches."""
        searches.clear()
        found = reader.slow(of, time.monotonic() + 60)[1]
        assert found
        assert found.rank == 1
        return found.steps, len(searches)

    # counts the searches, which show in no result
    monkeypatch.setattr(lag, "steps", steps)
    log, other, reader = writer(tmp_path), writer(tmp_path, worker=1), CurveReader(10**6)
    ended = logged_job(tmp_path, state=State.SUCCEEDED, reason=Reason.COMPLETED)
    enters(log, 0)
    assert slow(logged_job(tmp_path)) == (19, 2)  # in the newest windows, and in all
    log.write("step 1 loss=0.5", at=1)
    assert [slow(each) for each in (logged_job(tmp_path), ended)] == [(19, 0), (19, 0)]
    enters(log, 20)
    assert [slow(logged_job(tmp_path)) for _ in range(2)] == [(39, 2), (39, 0)]
    two = logged_job(tmp_path, n_workers=2)
    other.write("no entries", at=1)
    assert [slow(two) for _ in range(2)] == [(39, 2), (39, 0)]


def test_the_clock_of_a_worker_makes_no_rank_slow(tmp_path: Path) -> None:
    two, reader = logged_job(tmp_path, n_workers=2), CurveReader(10**6)
    for worker, ahead in ((0, 0.0), (1, 0.05)):
        times = [1e9 + 0.1 * n + ahead for n in range(20)]
        writer(tmp_path, worker=worker).write(line(worker, 0, 1, times), rank="-", stream="metrics")
    slow = CurveReader(10**6).slow(two, time.monotonic() + 60)[1]
    assert slow
    assert slow.rank == 1
    for worker, ahead in ((0, 0.0), (1, 0.05)):
        clock = WorkerClock(worker_dir(two.job_dir, 1, worker))
        for n in range(60):  # requests of an agent, each 0.1 s
            clock.note("1970-01-01T00:01:40.500000Z", 100.5 - ahead + 0.002 + n % 10 / 100)
    assert reader.slow(two, time.monotonic() + 60)[1] is None


def test_the_slow_workers_of_the_preflight_are_kept(tmp_path: Path) -> None:
    log, ended = (
        writer(tmp_path),
        logged_job(tmp_path, state=State.SUCCEEDED, reason=Reason.COMPLETED),
    )
    log.write(f"{WARNING}worker 2 (node-2) is slow", at=0, rank="-")
    log.write(f"{WARNING}of the script", at=1)
    for reader in (CurveReader(10**6), CurveReader(10**6)):  # the second one reads the file
        assert reader.slow(ended, time.monotonic() + 60)[0] == ["worker 2 (node-2) is slow"]


def test_logs_with_many_entries_leave_the_memory_too(
    tmp_path: Path, bounds: Bounds, reads: list[int]
) -> None:
    # the entries need the memory of 3 * (500 + 8 * 20) / 24 points
    bounds(curve_reader, _POINTS=80)
    log, running, until = writer(tmp_path), logged_job(tmp_path), time.monotonic() + 60
    enters(log, 0)
    reader = CurveReader(10**6)
    before = reader.slow(running, until)[1]
    assert before
    assert reader.progress(logged_job(tmp_path / "other"), now=1e9, until=until) is None
    assert (tmp_path / FOLDER / "1-0").exists()
    reads.clear()
    assert reader.slow(running, until)[1] == before
    assert min(reads) == log.offset
