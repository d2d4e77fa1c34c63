"""The disk of the server and of its pods, which is one here, has no room."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from client_lib import Client, Job
from client_lib.errors import StorageFull
from server_stub.files.room import Spare
from server_stub.worker_gateway.worker import RemoteWorker
from tests.faults.conftest import Server
from tests.kit.small_disk import fill, free, small_disk
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Site, Start

pytestmark = pytest.mark.process


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "state", "size=64m,mode=700") as folder:
        yield folder


@pytest.fixture
def gateway(disk: Path, site: Start) -> Site:
    return site(CLIENT_LIB_SERVER_MIN_FREE_BYTES=str(2**20))


@pytest.fixture
def client(gateway: Site) -> Client:
    url = gateway.facts()["url"]
    return Client(url, (gateway.state_dir / "token").read_text().strip())


def with_data(client: Client, folder: Path, data: bytes) -> Job:
    folder.mkdir()
    (folder / "train.py").write_text("print('never')")
    (folder / "data").write_bytes(data)
    job = Job(script=str(folder / "train.py"), code="snapshot", name="large", client=client)
    job.submit()
    return job


def test_code_that_unpacks_to_more_than_the_pods_disk(
    gateway: Site, client: Client, tmp_path: Path
) -> None:
    with_data(client, tmp_path / "code", bytes(100 * 2**20))
    ended = gateway.ended("large")
    assert (ended["state"], ended["reason"]) == ("FAILED", "StorageFull")
    assert "the code snapshot could not be unpacked" in ended["message"]
    assert "/run/work" in ended["message"]


def test_code_that_the_pod_has_no_room_to_fetch(
    gateway: Site, client: Client, tmp_path: Path
) -> None:
    with_data(client, tmp_path / "code", os.urandom(34 * 2**20))
    ended = gateway.ended("large")
    assert (ended["state"], ended["reason"]) == ("FAILED", "StorageFull")
    assert "No space left on device" in ended["message"]
    assert "/pods/0/run" in ended["message"]


def test_workers_report_their_end_to_a_server_whose_disk_is_full(
    gateway: Server, client: Client, disk: Path, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    script = (
        "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)"
    )
    gateway.accepted("waits", script, args=[str(stop)], n_workers=2)
    gateway.running("waits")
    spare = disk / "data" / "spare"
    until(lambda: spare.exists() and spare.stat().st_size)
    reserves = list(disk.rglob("reserve"))
    assert len(reserves) == 2
    kept = sum(path.stat().st_size for path in (spare, *reserves))
    fill(disk)
    stop.touch()
    assert gateway.ended("waits")["state"] == "SUCCEEDED"
    assert free(disk) < kept, "something else has made room"


@pytest.mark.parametrize("size", [4000, 2**20])
def test_a_result_without_room_is_refused_and_not_stored(tmp_path: Path, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(size)

    with small_disk(tmp_path / "small", "size=1m,mode=700") as folder:
        worker = RemoteWorker(0, folder, 2**20, Spare(folder / "spare"), lambda: None)
        (folder / "results").mkdir()
        (folder / "results" / "0.new").touch()
        fill(folder)
        with pytest.raises(StorageFull):
            asyncio.run(worker.take_result(0, chunks(), 2**30))
        assert [path.name for path in (folder / "results").iterdir()] == ["0.new"]
