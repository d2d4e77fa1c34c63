"""The disk of the data directory is full: a real one, a small tmpfs that only the server and its jobs see."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from tests.end_to_end.conftest import processes_of
from tests.faults.conftest import Server, Start, poll

pytestmark = pytest.mark.process

SIZE = "64m"
COUNT = """
import os, pathlib, sys, time
beats, stop = map(pathlib.Path, sys.argv[1:])
number = 0
while not stop.exists():
    print("line", number, "x" * 1000)
    number += 1
    beats.write_text(str(number))
    time.sleep(0.005)
print("last", number, flush=True)
"""


@pytest.fixture
def small(start: Start, tmp_path: Path) -> Server:
    """A server whose state and data are on a disk of their own."""
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("a disk of a test's own needs unshare as root")
    (tmp_path / "state").mkdir()
    mount = f'mount -t tmpfs -o mode=700,size={SIZE} none {tmp_path}/state && exec "$@"'
    return start(before=("unshare", "-m", "sh", "-c", mount, "sh"), CLIENT_LIB_SERVER_MIN_FREE_BYTES=str(2**20))


@pytest.fixture
def fill(small: Server) -> Callable[[], Path]:
    """Fill the disk to its last byte; the file that did it."""

    def filled() -> Path:
        small.facts()
        ballast = small.seen_from_here(small.state_dir) / "ballast"
        with open(ballast, "ab", buffering=0) as file:
            for block in (2**20, 2**12, 1):
                try:
                    while file.write(bytes(block)) == block:
                        pass
                except OSError:
                    continue
        return ballast

    return filled


def test_submits_are_refused_logs_stall_and_the_job_runs_through(
    small: Server, fill: Callable[[], Path], tmp_path: Path
) -> None:
    beats, stop = tmp_path / "beats", tmp_path / "stop"
    small.accepted("count", COUNT, args=[str(beats), str(stop)])
    poll(lambda: beats.exists() and beats.read_text())
    ballast = fill()
    answer = small.submit("more", "print('hello')")
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
    assert "disk" in answer.json()["message"]
    assert small.job("count")["state"] == "RUNNING"
    assert not next(check for check in small.get(paths.DOCTOR).json()["checks"] if check["name"] == "disk")["ok"]
    ballast.unlink()
    before = int(beats.read_text() or 0)
    poll(lambda: int(beats.read_text() or 0) > before)
    stop.touch()
    assert small.ended("count")["state"] == "SUCCEEDED"
    lines = small.lines("count")
    assert [line.split()[1] for line in lines] == [str(number) for number in [*range(len(lines) - 1), len(lines) - 1]]
    poll(lambda: small.submit("after", "print('hello')").status_code == 201)
    assert small.ended("after")["state"] == "SUCCEEDED"


def test_a_job_that_ends_while_the_disk_is_full_ended_well(
    small: Server, fill: Callable[[], Path], tmp_path: Path
) -> None:
    beats, stop = tmp_path / "beats", tmp_path / "stop"
    small.accepted("count", COUNT, args=[str(beats), str(stop)])
    poll(lambda: beats.exists() and beats.read_text())
    ballast = fill()
    stop.touch()
    poll(lambda: small.job("count")["state"] == "RUNNING")
    ballast.unlink()
    assert small.ended("count")["state"] == "SUCCEEDED"
    assert small.lines("count")[-1].startswith("last")


def test_a_cancel_on_a_full_disk_ends_the_processes(small: Server, fill: Callable[[], Path], tmp_path: Path) -> None:
    beats, stop = tmp_path / "beats", tmp_path / "stop"
    small.accepted("count", COUNT, args=[str(beats), str(stop)])
    poll(lambda: beats.exists() and beats.read_text())
    ballast = fill()
    with contextlib.suppress(requests.Timeout):  # it answers when the order is durable, which it can't be
        small.call("POST", paths.job_cancel("count"), timeout=0.2)
    poll(lambda: not processes_of(tmp_path / "count.py"), within_s=10)
    ballast.unlink()
    assert small.ended("count")["state"] == "CANCELLED"
