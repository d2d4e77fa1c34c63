"""A worker whose disk has no room: it ends, and its report says so."""

import os
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib import durable
from client_lib.launcher_protocol import directory
from client_lib.worker.programs import launcher_command
from tests.kit import small_disk
from tests.kit.small_disk import fill, free
from tests.kit.waiting import until
from tests.worker.conftest import Worker

pytestmark = pytest.mark.process
PRINTS = """
    import pathlib, sys, time
    print("begun", flush=True)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    print("last " + "x" * 60_000, flush=True)
"""


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk.small_disk(tmp_path / "disk", "size=8m") as folder:
        yield folder


def new_worker(full_disk: Path, script: str = "", *, reserve: bool = True, **fields: Any) -> Worker:
    folder = full_disk / "job"
    folder.mkdir()
    one = Worker(folder, script, environment={"PATH": os.environ["PATH"]}, **fields)
    if reserve:
        directory.take_reserve(one.directory.reserve, 1)
    return one


def snapshot(tmp_path: Path, size: int) -> str:
    path = tmp_path / "code.tar.gz"
    (tmp_path / "zeros").write_bytes(bytes(size))
    with tarfile.open(path, "w:gz") as archive:
        archive.add(tmp_path / "zeros", "zeros")
    return str(path)


def test_code_that_unpacks_to_more_than_the_disk_ends_the_worker(
    full_disk: Path, tmp_path: Path
) -> None:
    one = new_worker(
        full_disk, snapshot=snapshot(tmp_path, 100 * 2**20), working_dir="", keep_free_bytes=2**20
    )
    try:
        report = one.start().report()
        assert report["reason"] == "StorageFull"
        assert f"{one.directory.work}" in report["message"]
        assert "104.9 MB are needed" in report["message"]
        assert not [name for name in os.listdir(one.directory.path) if name.startswith("work")]
        assert free(full_disk) > 7 * 2**20
    finally:
        one.close()


def test_a_disk_without_room_for_the_rank_runner_ends_the_worker_with_a_sentence(
    full_disk: Path,
) -> None:
    one = new_worker(full_disk, "print('never')")
    ballast = fill(full_disk)
    os.truncate(ballast, ballast.stat().st_size - 16 * 1024)  # for all files but this one
    try:
        report = one.start().report()
        assert report["reason"] == "StorageFull"
        assert report["message"] == (
            "the worker could not be prepared: [Errno 28] No space left on device: "
            f"'{one.directory.path}'"
        )
    finally:
        one.close()


def test_a_worker_that_ends_on_a_full_disk_reports_and_loses_no_line(
    full_disk: Path, tmp_path: Path
) -> None:
    one = new_worker(full_disk, PRINTS)
    one.plan = one.plan._replace(command=[*one.plan.command, str(tmp_path / "stop")])
    Path(one.directory.plan).write_text(one.plan.to_json())
    try:
        one.start().go()
        one.waits_for("begun")
        fill(full_disk)
        (tmp_path / "stop").touch()
        assert one.report()["reason"] == "Completed"
        assert "".join(one.lines())[:10] == "begunlast "
        assert not Path(one.directory.reserve).exists()
    finally:
        one.close()


def test_a_stalled_worker_that_is_stopped_reports_on_the_full_disk(full_disk: Path) -> None:
    one = new_worker(full_disk, "while True: print('x' * 1000)")
    try:
        one.start().go()
        until(lambda: free(full_disk) == 0, "the disk is full")
        one.stop(1.0)
        assert one.report()["reason"] == "Cancelled"
    finally:
        one.close()


def test_a_stalled_log_leaves_the_last_room_to_others(full_disk: Path) -> None:
    one = new_worker(full_disk, "while True: print('x' * 1000)")
    try:
        one.start().go()
        until(lambda: free(full_disk) == 0, "the disk is full")
        time.sleep(1.0)  # the launcher has tried to write more, and stalls
        directory.give_up_reserve(one.directory.reserve)  # as when something else frees some room
        with pytest.raises(AssertionError):
            until(lambda: free(full_disk) == 0, "the log takes it", within_s=1.5)
    finally:
        one.close()


def test_a_launcher_that_dies_of_a_full_disk_says_so(full_disk: Path) -> None:
    one = new_worker(full_disk)
    output = Path(one.directory.path) / "launcher.out"
    output.touch()
    fill(full_disk)
    with output.open("ab") as file:
        done = subprocess.run(launcher_command(one.directory.path), stdout=file, stderr=file)
    assert done.returncode == 1
    last = output.read_text().splitlines()[-1]
    assert durable.ended_program(one.directory.path, 1, last), last


def test_the_end_of_a_program_on_a_full_disk(full_disk: Path) -> None:
    assert not durable.ended_program(str(full_disk), 1, "")
    fill(full_disk)
    assert durable.ended_program(str(full_disk), 120, "")
    assert not durable.ended_program(str(full_disk), -9, "")
    assert not durable.ended_program(str(full_disk), 1, "ValueError: no")
    assert not durable.ended_program(str(full_disk / "gone"), 1, "")
    assert durable.ended_program(
        str(full_disk), 1, "OSError: [Errno 28] No space left on device: '/x'"
    )
