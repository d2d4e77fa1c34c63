"""A page of 100 and the status of one job, with 100 000 jobs in the database and with 100: goal <= 1.5 x.

    python benchmarks/submits_pages.py [-n CALLS]

The service without HTTP, on SQLite; both databases in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from pathlib import Path

from sqlalchemy import Connection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.files.request_log import Place
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.service import JobFilters, Service
from server_stub.service.values import User
from server_stub.settings import Settings
from server_stub.store import Store, rows
from server_stub.store.rows import JobRow, NewJob
from tests.fakes import FakeRuntime

ANN = User("ann")
SIZES = (100, 100_000)
NOW = datetime.now(timezone.utc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--calls", type=int, default=200)
    asyncio.run(_measure(parser.parse_args().calls))


async def _measure(calls: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        services = {size: await _filled(Path(scratch) / str(size), size) for size in SIZES}
        every, succeeded = JobFilters(), JobFilters(states=(State.SUCCEEDED,))
        ways: dict[str, Callable[[Service, int], Awaitable[object]]] = {
            "page of 100": lambda service, _: service.page(ANN, every, 100, None),
            "page of 100 from the middle": lambda service, size: service.page(ANN, every, 100, str(size // 2 + 51)),
            "page of one state": lambda service, _: service.page(ANN, succeeded, 100, None),
            "status": lambda service, size: service.get(ANN, f"job-{size // 2}"),
        }
        print("| | " + " | ".join(f"{size} jobs, ms" for size in SIZES) + " | ratio |\n|---|---|---|---|")
        for name, way in ways.items():
            times: dict[int, list[float]] = {size: [] for size in SIZES}
            for _ in range(calls):
                for size in SIZES:
                    began = time.perf_counter()
                    await way(services[size], size)
                    times[size].append(time.perf_counter() - began)
            small, large = (statistics.median(times[size]) * 1e3 for size in SIZES)
            print(f"| {name} | {small:.2f} | {large:.2f} | {large / small:.2f} |")
        for service in services.values():
            await service.close()


async def _filled(folder: Path, size: int) -> Service:
    settings = Settings(state_dir=folder)
    settings.data_dir.mkdir(parents=True)
    Snapshots(settings.data_dir / "snapshots", 1, Room(settings.data_dir, 0)).open()
    store = Store(settings.database_url)
    await store.open()
    for first in range(0, size, 5000):
        await store.write(_add_some, range(first, min(first + 5000, size)))
    await store.close()
    service = Service(settings, FakeRuntime())
    await service.start()
    return service


def _add_some(connection: Connection, numbers: range) -> None:
    for number in numbers:
        _add(connection, number)


def _add(connection: Connection, number: int) -> None:
    info = JobInfo(
        name=f"job-{number}",
        id=uuid.uuid4().hex,
        owner="ann",
        version=3,
        runtime="local",
        state=State.SUCCEEDED,
        reason=Reason.COMPLETED,
        spec=JobSpec(script="/home/ann/train.py", labels={"team": "vision"}),
        code=CodeInPlace(),
        created_at=NOW,
        finished_at=NOW,
    )
    row = JobRow(
        id=info.id,
        owner=info.owner,
        name=info.name,
        state=info.state,
        version=info.version,
        attempt=1,
        created_at=NOW,
        finished_at=NOW,
        info=info.model_dump_json(),
        place=Place(1, 0, 0),
    )
    rows.add_jobs(connection, [NewJob(row, info.spec.labels, None)])


if __name__ == "__main__":
    main()
