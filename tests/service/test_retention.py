"""What has to go, and that it is gone."""

import asyncio
import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from client_lib.errors import NotFound
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.states import State
from server_stub.service import Service
from server_stub.service.retention import UPLOAD_GRACE, Retention, size_of, to_remove
from server_stub.store import rows
from tests.kit.bounds import Bounds
from tests.service.bench import ANN, Bench
from tests.service.test_jobs import in_server, upload

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
GB = 10**9


class Thing(NamedTuple):
    name: str
    at: datetime
    size: int


def thing(name: str, days_ago: float, gb: float) -> Thing:
    return Thing(name, NOW - timedelta(days=days_ago), int(gb * GB))


def removed(
    finished: list[Thing],
    retention: Retention,
    other: int = 0,
    kept: int = 0,
    free: int = 0,
) -> list[str]:
    limits = retention.limits(NOW, kept, free)
    excess = size_of(finished) + other - limits.most_bytes
    return [each.name for each in to_remove(finished, limits.oldest, excess)]


def test_jobs_go_by_age_and_then_the_oldest_by_size() -> None:
    finished = [thing("a", 31, 1), thing("b", 20, 8), thing("c", 10, 8), thing("d", 1, 8)]
    assert removed(finished, Retention(30, 20)) == ["a", "b"]
    assert removed(finished, Retention(30, 1000)) == ["a"]
    for for_ever in (None, 1e6, float("inf")):
        assert removed(finished, Retention(for_ever, 100)) == []
    assert removed(finished, Retention(None, 20), 10 * GB) == ["a", "b", "c"]
    assert removed([], Retention(30, 20), 100 * GB) == []


def test_without_a_size_a_fifth_of_the_room_stays_free() -> None:
    """The rest of a disk of 30 GB is used by others."""
    finished = [thing("a", 3, 8), thing("b", 2, 8), thing("c", 1, 8)]
    retention = Retention(30, None)
    assert retention.limits(NOW, 24 * GB, 0).most_bytes == pytest.approx(19.2 * GB)
    assert removed(finished, retention, kept=24 * GB, free=0) == ["a"]
    assert removed(finished, retention, kept=24 * GB, free=6 * GB) == []
    # more is claimed than is free
    assert removed(finished, retention, kept=24 * GB, free=-GB) == ["a"]


@given(st.lists(st.integers(0, 10**12)), st.integers(0, 10**12), st.integers(-(10**9), 10**13))
def test_what_stays_is_never_more_than_its_share_of_the_room(
    sizes: list[int], other: int, free: int
) -> None:
    finished = [Thing("", NOW, size) for size in sizes]
    retention = Retention(None, None)
    kept = sum(sizes) + other
    stays = sizes[len(removed(finished, retention, other, kept, free)) :]
    assert not stays or sum(stays) + other <= retention.limits(NOW, kept, free).most_bytes


def test_idle_snapshots_go_and_fresh_ones_stay() -> None:
    found = [thing("old", 40, 1), thing("mid", 2, 30), thing("fresh", 0.01, 30)]

    def gone(days: float | None, gb: float) -> list[str]:
        limits = Retention(days, gb).limits(NOW, 0, 0)
        excess = 61 * GB - limits.most_bytes
        removed = to_remove(found, limits.oldest, excess, fresh_from=NOW - UPLOAD_GRACE)
        return [each.name for each in removed]

    assert gone(30, 20) == ["old", "mid"]
    assert gone(30, 1000) == ["old"]
    assert gone(None, 1000) == []


def test_after_30_days_nothing_of_a_job_is_left(bench: Bench) -> None:
    async def run(service: Service) -> None:
        digest, used = await upload(bench, b"archive"), await upload(bench, b"of a running job")
        for name, key, sha256 in (("old", "k", digest), ("running", None, used)):
            request = bench.request(name=name).model_copy(
                update={"code": CodeSnapshot(sha256=sha256, root="/r")}
            )
            await service.submits.submit(ANN, request, key)
        running = await bench.info("running")
        bench.runtime.runs(running.id)
        jobs = bench.settings().data_dir / "jobs"
        for job_id in bench.runtime.attempts:
            (jobs / job_id).mkdir()
        await service.cancel(ANN, "old")
        await bench.until("old", State.CANCELLED)
        long_ago = bench.clock.now().timestamp()
        for sha256 in (digest, used):
            os.utime(bench.snapshots.path(sha256), (long_ago, long_ago))
        bench.clock.pass_time(31 * 24 * 3600)
        await bench.submit(name="fresh")
        await service._cleanup.sweep()
        with pytest.raises(NotFound):
            await service.get(ANN, "old")
        assert (await bench.info("running")).state is State.RUNNING
        assert [path.name for path in jobs.iterdir()] == [running.id]
        assert (bench.snapshots.path(digest).exists(), bench.snapshots.path(used).exists()) == (
            False,
            True,
        )
        _, created = await service.submits.submit(ANN, bench.request(name="again"), "k")
        assert created, "the key is forgotten too"

    in_server(bench, run)


@pytest.mark.parametrize("settings", [{"retention_gb": 0.001}, {"runtime": "kubernetes"}])
def test_the_size_of_a_finished_job_counts(bench: Bench, settings: dict[str, Any]) -> None:
    """The job is larger than the limit, or than its share of a disk that is almost full."""

    async def run(service: Service) -> None:
        for name in ("first", "second"):
            job = await bench.submit(name=name)
            folder = bench.settings().data_dir / "jobs" / job.id / "attempts"
            folder.mkdir(parents=True)
            (folder / "log").write_bytes(b"x" * 600_000)
            bench.runtime.end(job.id)
            await bench.until(name, State.SUCCEEDED)
            bench.clock.pass_time(1)
        bench.free = 100_000
        deadline = asyncio.get_running_loop().time() + 10
        while True:
            await service._cleanup.sweep()
            try:
                await service.get(ANN, "first")
            except NotFound:
                break
            assert asyncio.get_running_loop().time() < deadline
        assert (await bench.info("second")).state is State.SUCCEEDED

    in_server(bench, run, **settings)


def test_the_size_of_a_job_counts_whose_server_was_killed_at_its_end(bench: Bench) -> None:
    async def end(_: Service) -> None:
        job = await bench.submit(name="one")
        folder = bench.settings().data_dir / "jobs" / job.id / "attempts"
        folder.mkdir(parents=True)
        (folder / "log").write_bytes(b"x" * 600_000)
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)

    async def sweep(service: Service) -> None:
        await service._cleanup.sweep()
        with pytest.raises(NotFound):
            await service.get(ANN, "one")

    in_server(bench, end)
    with sqlite3.connect(
        bench.settings().data_dir / "client_lib.db"
    ) as database:  # killed before it was noted
        database.execute("UPDATE jobs SET size_bytes = NULL")
    in_server(bench, sweep, retention_gb=0.0001)


def test_jobs_that_are_deleted_at_once_are_removed_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def run(service: Service) -> None:
        jobs = bench.settings().data_dir / "jobs"
        names = [f"job-{number}" for number in range(6)]
        for name in names:
            await bench.submit(name=name)
            await service.cancel(ANN, name)
            info = await bench.until(name, State.CANCELLED)
            for number in range(300):
                (jobs / info.id / str(number)).touch()
        await asyncio.gather(*(service.delete(ANN, name) for name in names))
        assert not list(jobs.iterdir())
        assert "can't be removed yet" not in caplog.text

    in_server(bench, run)


@pytest.mark.parametrize("step", ["events", "jobs", "removals"])
def test_a_delete_that_the_database_interrupts_is_finished_soon(
    bench: Bench, bounds: Bounds, step: str
) -> None:
    """The rows of each table in turn can't be deleted for a while; nobody asks again later."""
    bounds("server_stub.service.cleanup", AGAIN_S=0.05)

    async def run(service: Service) -> None:
        folder = bench.settings().data_dir
        job = await bench.submit(name="one")
        (folder / "jobs" / job.id).mkdir(exist_ok=True)
        bench.runtime.end(job.id)
        await bench.until("one", State.SUCCEEDED)
        refuse = (
            f"CREATE TRIGGER away BEFORE DELETE ON {step} BEGIN SELECT RAISE(FAIL, 'away'); END"
        )
        with closing(sqlite3.connect(folder / "client_lib.db")) as database:
            database.execute(refuse)
            with suppress(Exception):
                await service.delete(ANN, "one")
            database.execute("DROP TRIGGER away")
        store = service._store
        deadline = asyncio.get_running_loop().time() + 10
        while [*(folder / "jobs").iterdir(), *await store.read_all(rows.pending_removals)]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.02)
        with pytest.raises(NotFound):
            await service.get(ANN, "one")

    in_server(bench, run)


@pytest.mark.parametrize(
    ("runtime", "shown"), [("local", "20 GB of them"), ("kubernetes", "80% of the room")]
)
def test_the_volume_of_a_cluster_bounds_it_and_a_users_disk_keeps_20_gb(
    bench: Bench, runtime: str, shown: str
) -> None:
    async def run(service: Service) -> None:
        (check,) = [each for each in (await service.doctor()).checks if each.name == "retention"]
        assert f"at most {shown}" in check.message

    in_server(bench, run, runtime=runtime)
