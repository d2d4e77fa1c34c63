"""What the ranks write, and how it arrives in the log: nothing lost, whatever it is."""

import itertools
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.launcher_protocol.record import GOES_ON, LINE, MAX_TEXT, PROGRESS
from tests.kit import small_disk as disks
from tests.kit.waiting import until
from tests.worker.conftest import Worker

Make = Callable[..., Worker]


def test_each_line_has_its_rank_and_stream_and_the_numbers_have_no_holes(worker: Make) -> None:
    script = """
        import os, sys
        for i in range(1000):
            print("out", os.environ["RANK"], i)
            print("err", os.environ["RANK"], i, file=sys.stderr)
    """
    one = worker(script, processes_per_worker=2)
    report = one.run()
    records = one.records()
    assert [record.seq for record in records] == list(range(len(records)))
    assert [record.time for record in records] == sorted(record.time for record in records)
    for rank in (0, 1):
        assert one.lines("stdout", rank) == [f"out {rank} {i}" for i in range(1000)]
        assert one.lines("stderr", rank) == [f"err {rank} {i}" for i in range(1000)]
    size = sum(path.stat().st_size for path in Path(one.directory.log).iterdir())
    assert (report["log_end_seq"], report["log_end_offset"]) == (len(records), size)


def test_output_without_a_final_newline_is_a_line(worker: Make) -> None:
    one = worker("import sys; sys.stdout.write('a\\nb')")
    one.run()
    assert [(record.text, record.kind) for record in one.records() if record.rank == 0] == [
        ("a", LINE),
        ("b", LINE),
    ]


def test_bytes_that_are_no_utf8_arrive_as_they_are(worker: Make) -> None:
    one = worker("import os; os.write(1, b'caf\\xe9 \\xff\\x00\\n')")
    one.run()
    assert one.lines() == ["caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}\0"]
    assert b"stdout caf\xe9 \xff\x00\n" in next(Path(one.directory.log).iterdir()).read_bytes()


@pytest.mark.parametrize("size", [2**27, pytest.param(2**30, marks=pytest.mark.long)])
def test_a_gigabyte_without_a_newline_is_cut_and_bounded_in_memory(worker: Make, size: int) -> None:
    script = f"""
        import os
        block = b"x" * 2**20
        for _ in range({size} // 2**20):
            os.write(1, block)
        print()
        os.kill(os.getppid(), 0)
        print(open(f"/proc/{{os.getppid()}}/status").read().split("VmHWM:")[1].split()[0])
    """
    one = worker(script)
    one.run()
    records = [record for record in one.records() if record.rank == 0]
    *pieces, end, peak = records
    assert all(record.kind == GOES_ON and len(record.text) <= MAX_TEXT for record in pieces)
    assert end.kind == LINE
    assert sum(len(record.text) for record in [*pieces, end]) == size
    assert int(peak.text) < 64 * 1024  # KiB


def test_a_partial_line_is_shown_after_half_a_second_and_goes_on(worker: Make) -> None:
    one = (
        worker("import sys, time; print('begin', end=''); time.sleep(1.2); print(' end')")
        .start()
        .go()
    )
    one.waits_for("begin")
    one.report()
    found = [(record.text, record.kind) for record in one.records() if record.rank == 0]
    assert found == [("begin", GOES_ON), (" end", LINE)]
    assert one.report()["ranks"][0]["last_lines"] == ["begin end"]


def test_a_tqdm_bar_keeps_few_of_its_states_and_the_last(worker: Make) -> None:
    script = """
        import time, tqdm
        for _ in tqdm.tqdm(range(200), mininterval=0.001):
            time.sleep(0.01)
        print("after")
    """
    one = worker(script)
    one.run()
    bars = [record for record in one.records() if record.stream == "stderr"]
    progress = [record for record in bars if record.kind == PROGRESS]
    assert 2 <= len(progress) <= 6
    assert (bars[-1].kind, "200/200" in bars[-1].text) == (LINE, True)
    assert one.lines("stdout") == ["after"]


def test_a_silent_bar_shows_its_last_state_while_it_waits(worker: Make) -> None:
    script = "import sys, time; sys.stderr.write('\\r 10%|#'); sys.stderr.flush(); time.sleep(1000)"
    one = worker(script).start().go()
    one.waits_for(" 10%|#")
    assert [record.kind for record in one.records() if record.stream == "stderr"] == [PROGRESS]


def test_the_log_keeps_head_and_tail_when_it_is_too_large(worker: Make) -> None:
    script = "for i in range(60_000): print('line', i, 'x' * 60)"
    one = worker(script, log_limit_bytes=2**20, segment_bytes=2**16)
    report = one.run()
    records = one.records()
    lines = [record for record in records if record.rank == 0]
    assert lines[0].text.startswith("line 0 ")
    assert lines[-1].text.startswith("line 59999 ")
    assert "over its size limit" in records[-1].text
    assert sum(path.stat().st_size for path in Path(one.directory.log).iterdir()) < 1.3 * 2**20
    gaps = [(a.seq, b.seq) for a, b in itertools.pairwise(records) if b.seq != a.seq + 1]
    assert len(gaps) == 1
    assert report["log_end_seq"] == records[-1].seq + 1
    names = sorted(path.name for path in Path(one.directory.log).iterdir())
    assert names[0] == "0" * 20 + ".log"


@pytest.fixture
def small_disk(tmp_path: Path) -> object:
    """A file system of 1 MiB."""
    with disks.small_disk(tmp_path / "disk", "size=1m") as folder:
        yield folder


@pytest.mark.parametrize("room", [0, 200_000])
def test_a_full_disk_stalls_the_log_and_loses_no_line(small_disk: Path, room: int) -> None:
    script = """
        for i in range(20_000):
            print("line", i, "x" * 100)
        print("not yet over", end="")
    """
    folder = small_disk / "job"
    folder.mkdir()
    ballast = small_disk / "ballast"
    one = Worker(folder, script, environment={"PATH": os.environ["PATH"]}, log_limit_bytes=2**40)
    try:
        one.start()
        runner = Path(one.directory.path) / "rank_runner.py"
        until(lambda: runner.exists() and runner.read_text().endswith("\n"), "it is prepared")
        free = os.statvfs(small_disk)
        ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize - room))
        one.go()
        until(lambda: os.statvfs(small_disk).f_bavail == 0, "the disk is full")
        assert one.process
        assert one.process.poll() is None
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert one.report()["exit_code"] == 0
        assert one.lines() == [f"line {i} " + "x" * 100 for i in range(20_000)] + ["not yet over"]
        records = one.records()
        assert [record.seq for record in records] == list(range(len(records)))
    finally:
        one.close()


def test_a_stalled_worker_can_still_be_stopped(small_disk: Path) -> None:
    folder = small_disk / "job"
    folder.mkdir()
    one = Worker(folder, "while True: print('x' * 1000)", environment={"PATH": os.environ["PATH"]})
    try:
        one.start().go()
        until(lambda: os.statvfs(small_disk).f_bavail == 0, "the disk is full")
        one.stop(1.0)
        until(lambda: not one.left_over(), "the ranks are gone")
        subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
        assert one.report()["reason"] == "Cancelled"
    finally:
        one.close()


# --- train.log


def test_train_log_is_followed_from_its_size_at_the_start(worker: Make) -> None:
    script = """
        import time
        with open("train.log", "a") as log:
            log.write("epoch 1\\nepoch 2"); log.flush()
            time.sleep(0.7)
            log.write(" done\\nlast without an end")
    """
    one = worker(script, log_file="train.log")
    (one.folder / "train.log").write_text("an earlier run\n")
    one.run()
    found = [(record.text, record.kind) for record in one.records() if record.stream == "train.log"]
    assert found == [
        ("epoch 1", LINE),
        ("epoch 2", GOES_ON),
        (" done", LINE),
        ("last without an end", LINE),
    ]
    assert {record.rank for record in one.records() if record.stream == "train.log"} == {None}


def test_a_train_log_that_appears_later_is_read_from_its_beginning(worker: Make) -> None:
    one = worker("open('train.log', 'w').write('first\\nsecond\\n')", log_file="train.log")
    one.run()
    assert one.lines("train.log", None) == ["first", "second"]


def test_a_truncated_or_replaced_train_log_goes_on(worker: Make) -> None:
    script = """
        import os, time
        open("train.log", "w").write("a" * 100 + "\\n")
        time.sleep(1.5)
        open("train.log", "w").write("truncated\\n")
        time.sleep(0.5)
        open("new", "w").write("replaced\\n")
        os.rename("new", "train.log")
        time.sleep(1.5)
        open("train.log", "a").write("end\\n")
    """
    one = worker(script, log_file="train.log")
    one.run()
    assert one.lines("train.log", None) == ["a" * 100, "truncated", "replaced", "end"]


@pytest.mark.parametrize(
    "new",
    ["old 1\nold 2\n", "new 1\nnew 2\n", "new 1\nnew 2\nnew 3\n"],
    ids=["same", "other", "more"],
)
def test_a_train_log_that_is_written_anew_at_once_is_read_from_its_beginning(
    worker: Make, new: str
) -> None:
    one = worker(f"open('train.log', 'w').write({new!r})", log_file="train.log")
    (one.folder / "train.log").write_text("old 1\nold 2\n")
    os.utime(one.folder / "train.log", (1.7e9, 1.7e9))
    one.run()
    assert one.lines("train.log", None) == new.splitlines()


def test_a_train_log_that_is_only_touched_is_not_read_again(worker: Make) -> None:
    one = worker(
        "import pathlib, time; pathlib.Path('train.log').touch(); time.sleep(0.3)",
        log_file="train.log",
    )
    (one.folder / "train.log").write_text("an earlier run\n")
    one.run()
    assert one.lines("train.log", None) == []


def test_a_train_log_that_is_rotated_often_loses_no_line(worker: Make) -> None:
    script = """
        import logging.handlers, time
        log = logging.getLogger()
        file = logging.handlers.RotatingFileHandler("train.log", maxBytes=100, backupCount=3)
        log.addHandler(file)
        for number in range(20):
            log.warning("line %d %s", number, "x" * 60)
            time.sleep(0.15)
    """
    one = worker(script, log_file="train.log")
    one.run()
    assert [line.split()[1] for line in one.lines("train.log", None)] == [
        str(number) for number in range(20)
    ]


def test_train_log_is_found_in_the_scripts_folder_and_globs_are_followed(
    worker: Make, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script = """
        import os, pathlib
        here = pathlib.Path(__file__).parent
        (here / "run-1.log").write_text("beside the script\\n")
        pathlib.Path("run-2.log").write_text("in the working directory\\n")
        pathlib.Path("other.txt").write_text("no\\n")
    """
    one = worker(script, log_file="run-*.log", working_dir=str(elsewhere))
    one.run()
    assert sorted(one.lines("train.log", None)) == ["beside the script", "in the working directory"]


@pytest.mark.parametrize("log_file", ["train.log", "*.log"])
def test_a_train_log_is_found_in_a_folder_whose_name_looks_like_a_pattern(
    worker: Make, tmp_path: Path, log_file: str
) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    one = worker(
        "open('train.log', 'w').write('once\\n')", log_file=log_file, working_dir=str(folder)
    )
    one.run()
    assert one.lines("train.log", None) == ["once"]


def test_one_file_by_two_paths_is_read_once(worker: Make) -> None:
    one = worker("open('train.log', 'w').write('once\\n')", log_file="train.log")
    one.run()
    assert one.lines("train.log", None) == ["once"]


def test_without_a_log_file_nothing_is_tailed(worker: Make) -> None:
    one = worker("open('train.log', 'w').write('x\\n')", log_file=None)
    one.run()
    assert one.lines("train.log", None) == []


def test_sigint_to_the_launcher_is_a_stop(worker: Make) -> None:
    one = worker("import time; time.sleep(1000)").start().go()
    assert one.process
    one.process.send_signal(signal.SIGINT)
    assert one.report()["reason"] == "Cancelled"
