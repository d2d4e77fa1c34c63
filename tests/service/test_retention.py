"""What has to go, and that it is gone."""

from __future__ import annotations

import asyncio
import hashlib
import os
from datetime import datetime, timedelta, timezone

import pytest

from client_lib.errors import NotFound
from client_lib.spec.states import State
from client_lib.spec.wire import CodeSnapshot
from server_stub.files.snapshots import StoredSnapshot
from server_stub.service import Service
from server_stub.service.retention import Retention, jobs_to_remove, snapshots_to_remove
from server_stub.store.rows import Finished
from tests.service.bench import ANN, Bench
from tests.service.test_jobs import in_server, upload

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
GB = 10**9


def ended(seq: int, days_ago: float, gb: float) -> Finished:
    return Finished(seq, NOW - timedelta(days=days_ago), int(gb * GB))


def idle(name: str, days_ago: float, gb: float) -> StoredSnapshot:
    return StoredSnapshot(name, int(gb * GB), (NOW - timedelta(days=days_ago)).timestamp())


def test_jobs_go_by_age_and_then_the_oldest_by_size() -> None:
    finished = [ended(1, 31, 1), ended(2, 20, 8), ended(3, 10, 8), ended(4, 1, 8)]
    assert jobs_to_remove(finished, Retention(30, 20), NOW, 0) == [1, 2]
    assert jobs_to_remove(finished, Retention(30, None), NOW, 0) == [1]
    assert jobs_to_remove(finished, Retention(None, 100), NOW, 0) == []
    assert jobs_to_remove(finished, Retention(None, 20), NOW, 10 * GB) == [1, 2, 3]
    assert jobs_to_remove([], Retention(), NOW, 100 * GB) == []


def test_idle_snapshots_go_and_those_of_jobs_and_fresh_ones_stay() -> None:
    stored = [idle("old", 40, 1), idle("used", 40, 1), idle("mid", 2, 30), idle("fresh", 0.01, 30)]
    assert [s.sha256 for s in snapshots_to_remove(stored, {"used"}, Retention(30, 20), NOW)] == ["old", "mid"]
    assert [s.sha256 for s in snapshots_to_remove(stored, {"used"}, Retention(30, None), NOW)] == ["old"]
    assert snapshots_to_remove(stored, {"used"}, Retention(None, None), NOW) == []


def test_after_30_days_nothing_of_a_job_is_left(bench: Bench) -> None:
    async def run(service: Service) -> None:
        digest = await upload(bench, b"archive")
        request = bench.request(name="old").model_copy(update={"code": CodeSnapshot(sha256=digest, root="/r")})
        await service.submit(ANN, request, "k")
        running = await bench.submit(name="running")
        bench.runtime.runs(running.id)
        jobs = bench.settings().data_dir / "jobs"
        for job_id in bench.runtime.attempts:
            (jobs / job_id).mkdir()
        await service.cancel(ANN, "old")
        await bench.until("old", State.CANCELLED)
        long_ago = bench.clock.now().timestamp()
        os.utime(bench.snapshots.path(digest), (long_ago, long_ago))
        bench.clock.pass_time(31 * 24 * 3600)
        await bench.submit(name="fresh")
        await service._cleanup.sweep()
        with pytest.raises(NotFound):
            await service.get(ANN, "old")
        assert (await bench.info("running")).state is State.RUNNING
        assert [path.name for path in jobs.iterdir()] == [running.id]
        assert not bench.snapshots.exists(hashlib.sha256(b"archive").hexdigest())
        _, created = await service.submit(ANN, bench.request(name="again"), "k")
        assert created, "the key is forgotten too"

    in_server(bench, run)


def test_the_size_of_a_finished_job_counts(bench: Bench) -> None:
    async def run(service: Service) -> None:
        for name in ("first", "second"):
            job = await bench.submit(name=name)
            folder = bench.settings().data_dir / "jobs" / job.id / "attempts"
            folder.mkdir(parents=True)
            (folder / "log").write_bytes(b"x" * 600_000)
            bench.runtime.end(job.id)
            await bench.until(name, State.SUCCEEDED)
            bench.clock.pass_time(1)
        deadline = asyncio.get_running_loop().time() + 10
        while True:
            await service._cleanup.sweep()
            try:
                await service.get(ANN, "first")
            except NotFound:
                break
            assert asyncio.get_running_loop().time() < deadline
        assert (await bench.info("second")).state is State.SUCCEEDED

    in_server(bench, run, retention_gb=0.001)
