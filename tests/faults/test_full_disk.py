"""The disk of the data directory is full: a real one, a small tmpfs."""

import hashlib
import io
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from tests.faults.conftest import Server, Start
from tests.kit import small_disk as disks
from tests.kit.processes import processes_of
from tests.kit.waiting import until

pytestmark = pytest.mark.process

SETTINGS = {"CLIENT_LIB_SERVER_MIN_FREE_BYTES": str(2**20), "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "2"}
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
def disk(tmp_path: Path) -> Iterator[Path]:
    """The state and the data of the servers."""
    with disks.small_disk(tmp_path / "state", "size=64m,mode=700") as folder:
        yield folder


@pytest.fixture
def small(start: Start, disk: Path) -> Server:
    return start(**SETTINGS)


@pytest.fixture
def fill(disk: Path, small: Server) -> Callable[[], Path]:
    """Fill the disk to its last byte; the file that did it."""
    spare = disk / "data" / "spare"
    until(lambda: spare.exists() and spare.stat().st_size and small.facts())
    return lambda: disks.fill(disk)


def submit_snapshot(server: Server, name: str, size: int) -> requests.Response:
    """Submit a script beside a file of so many zeros, as a small archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for file, data in (("train.py", b"print('never')"), ("zeros", bytes(size))):
            info = tarfile.TarInfo(file)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    sha256 = hashlib.sha256(packed.getvalue()).hexdigest()
    assert server.call("PUT", paths.snapshot(sha256), data=packed.getvalue()).status_code == 201
    code = {"mode": "snapshot", "sha256": sha256, "root": "/", "script": "train.py"}
    request = {
        "spec": {"script": "train.py", "name": name, "log_file": None},
        "code": code,
        "submitter": {"python": sys.executable, "environment": {}, "working_dir": "/"},
    }
    return server.call("POST", paths.JOBS, json=request)


def counting(server: Server, folder: Path) -> tuple[Path, Path]:
    """A job that prints until the second file is there; the first is written at each line."""
    beats, stop = folder / "beats", folder / "stop"
    server.accepted("count", COUNT, args=[str(beats), str(stop)])
    until(lambda: beats.exists() and beats.read_text())
    return beats, stop


def test_submits_are_refused_logs_stall_and_the_job_runs_through(
    small: Server, fill: Callable[[], Path], tmp_path: Path
) -> None:
    beats, stop = tmp_path / "beats", tmp_path / "stop"
    small.accepted("count", COUNT, args=[str(beats), str(stop)])
    until(lambda: beats.exists() and beats.read_text())
    ballast = fill()
    answer = small.submit("more", "print('hello')")
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")
    assert "disk" in answer.json()["message"]
    assert small.job("count")["state"] == "RUNNING"
    assert not next(
        check for check in small.get(paths.DOCTOR).json()["checks"] if check["name"] == "disk"
    )["ok"]
    ballast.unlink()
    before = int(beats.read_text() or 0)
    until(lambda: int(beats.read_text() or 0) > before)
    stop.touch()
    assert small.ended("count")["state"] == "SUCCEEDED"
    lines = small.lines("count")
    assert [line.split()[1] for line in lines] == [
        str(number) for number in [*range(len(lines) - 1), len(lines) - 1]
    ]
    until(lambda: small.submit("after", "print('hello')").status_code == 201)
    assert small.ended("after")["state"] == "SUCCEEDED"


def test_code_that_unpacks_to_more_than_the_disk_harms_no_other_job(
    small: Server, disk: Path, tmp_path: Path
) -> None:
    beats, stop = counting(small, tmp_path)
    answer = submit_snapshot(small, "bomb", 300 * 2**20)
    assert answer.status_code == 201, answer.text
    ended = small.ended("bomb")
    assert (ended["state"], ended["reason"]) == ("FAILED", "StorageFull")
    assert "/work" in ended["message"]
    assert disks.free(disk) > 30 * 2**20
    before = int(beats.read_text() or 0)
    until(lambda: int(beats.read_text() or 0) > before)
    assert small.submit("more", "print('hello')").status_code == 201
    assert small.call("DELETE", paths.job("bomb")).status_code == 200
    stop.touch()
    assert small.ended("count")["state"] == "SUCCEEDED"


def test_a_job_that_ends_while_the_disk_is_full_ended_well(
    small: Server, fill: Callable[[], Path], tmp_path: Path
) -> None:
    _, stop = counting(small, tmp_path)
    fill()
    stop.touch()
    assert small.ended("count")["state"] == "SUCCEEDED"
    assert small.lines("count")[-1].startswith("last")


def test_on_a_full_disk_jobs_are_cancelled_and_deleted(
    small: Server, disk: Path, fill: Callable[[], Path], tmp_path: Path
) -> None:
    counting(small, tmp_path)
    small.accepted("sleeps", "import time; time.sleep(600)")
    waiting = [f"waits-{number}" for number in range(10)]
    for name in waiting:
        small.accepted(name, "print('hello')")
    # its launcher needs the disk for its start
    until(lambda: small.job("sleeps")["state"] == "RUNNING")
    assert small.job("waits-0")["state"] == "PENDING"
    fill()
    for name in waiting:
        assert small.call("POST", paths.job(name, "cancel")).status_code == 200
        assert small.ended(name)["state"] == "CANCELLED"
    for name in waiting:
        assert small.call("DELETE", paths.job(name)).status_code == 200
        assert small.get(paths.job(name)).status_code == 404
    assert small.call("POST", paths.job("count", "cancel")).status_code == 200
    assert small.ended("count")["state"] == "CANCELLED"
    assert not processes_of(tmp_path / "count.py")
    job_dir = disk / "data" / "jobs" / small.job("count")["id"]
    assert job_dir.exists()
    assert small.call("DELETE", paths.job("count")).status_code == 200
    assert not list(job_dir.parent.glob(f"{job_dir.name}*"))


def test_a_server_starts_on_a_full_disk_and_finds_its_jobs(
    small: Server, start: Start, fill: Callable[[], Path], tmp_path: Path
) -> None:
    counting(small, tmp_path)
    small.kill()
    fill()
    again = start(**SETTINGS)
    assert again.job("count")["state"] == "RUNNING"
    assert again.call("DELETE", paths.job("count") + "?force=true").status_code == 200
    until(lambda: again.get(paths.job("count")).status_code == 404)
    assert not processes_of(tmp_path / "count.py")
