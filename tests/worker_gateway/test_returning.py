"""A worker of an elastic job that was lost goes on in another pod, or in another start of
its own: files beneath it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import Conflict
from client_lib.launcher_protocol.log_segments import SegmentWriter
from client_lib.launcher_protocol.record import parse
from client_lib.spec.job import JobSpec
from server_stub.files.room import Spare
from server_stub.runtimes.kube.observe.ending import may_return
from server_stub.worker_gateway.attempt import OpenAttempt, WorkerGroup, WorkerRegistry
from server_stub.worker_gateway.worker import WorkerView
from tests.kit.worker_reports import report
from tests.worker_gateway.test_log_file import records

pytestmark = pytest.mark.anyio
ELASTIC = {
    "script": "train.py",
    "type": "pytorch_elastic",
    "n_workers": 3,
    "elastic_min_workers": 1,
}


class OneAttempt:
    """A server's server with one elastic attempt of three workers, which train;
    `again` is the next server's.
    """

    def __init__(self, folder: Path, **fields: Any) -> None:
        self.folder, self.fields, self.changes = folder, fields, 0
        self.registry = WorkerRegistry(
            folder / "worker.key",
            lambda job_id, number: folder / job_id / str(number),
            Spare(folder / "spare"),
        )
        folders = tuple(folder / "workers" / str(number) for number in range(3))
        rule = may_return(JobSpec(**{**ELASTIC, **fields}))
        group = WorkerGroup(
            "id", "train", 1, folder, folders, 1, None, None, 2**30, may_return=rule
        )
        self.registry.open(group, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def again(self) -> OneAttempt:
        return OneAttempt(self.folder, **self.fields)

    @property
    def attempt(self) -> OpenAttempt:
        return self.registry.admit(self.registry.token("id", 1))

    def view(self, worker: int) -> WorkerView:
        return self.attempt.views()[worker]

    async def say(self, worker: int, state: Any, uid: str | None = None, start: str = "s") -> str:
        speaker = await self.attempt.worker(worker, uid or f"uid-{worker}", f"pod-{worker}", start)
        await self.attempt.report_state(speaker, state)
        return (await self.attempt.next_order(speaker, "", 0.0, asyncio.Event())).do

    async def all_train(self) -> OneAttempt:
        for worker in range(3):
            await self.say(worker, "ready")
        for worker in range(3):
            assert await self.say(worker, "started") == "go"
        return self

    async def end(self, worker: int, reason: str, uid: str | None = None) -> str:
        speaker = await self.attempt.worker(worker, uid or f"uid-{worker}", None, "s")
        await self.attempt.take_report(speaker, {**report(worker, reason=reason), "message": ""})
        return await self.say(worker, "ended", uid)


async def test_another_pod_goes_on_for_one_that_was_lost_and_with_its_log(tmp_path: Path) -> None:
    server = await OneAttempt(tmp_path).all_train()
    old = await server.attempt.worker(1, "uid-1", None, "s")
    lengths = await old.take_log(0, records(0, 5), gap=False)
    assert await server.say(1, "preparing", "new") == "wait"
    assert server.view(1).former == (("uid-1", "s"),)

    writer = SegmentWriter(str(tmp_path / "pod"), 2**20, 2**20, (lengths.length, lengths.next_seq))
    writer.add(records(writer.next_seq, 9))
    assert writer.flush()
    new = await server.attempt.worker(1, "new", None, "s")
    (segment,) = (tmp_path / "pod").iterdir()
    after = await new.take_log(int(segment.stem), segment.read_bytes(), gap=False)
    assert after.length == writer.offset
    (log,) = (tmp_path / "workers" / "1" / "log").iterdir()
    assert [parse(line).seq for line in log.read_bytes().splitlines()] == list(range(9))
    assert await server.say(1, "ready", "new") == "go"


async def test_one_that_was_replaced_never_speaks_again(tmp_path: Path) -> None:
    server = await OneAttempt(tmp_path).all_train()
    await server.say(1, "preparing", "new")
    for start in ("s", "another"):
        with pytest.raises(Conflict):
            await server.say(1, "started", "uid-1", start)
    with pytest.raises(Conflict):
        await server.again().say(1, "started", "uid-1")
    assert server.view(1).pod_uid == "new"
    assert not server.view(1).displaced
    assert await server.attempt.append(1, "uid-1", records(0, 3)) == 0


async def test_its_container_that_was_started_again_goes_on_too(tmp_path: Path) -> None:
    server = await OneAttempt(tmp_path).all_train()
    # the sooner it leaves, the sooner it is started again
    assert await server.end(1, "OutOfMemory") == "exit"
    assert await server.say(1, "preparing", start="t") == "wait"
    assert server.view(1).report is None
    assert await server.say(2, "started") == "go"
    again = server.again()
    assert await again.say(1, "ready", start="t") == "go"
    with pytest.raises(Conflict):
        await again.say(1, "started", start="s")


async def test_how_often_is_bounded_and_counted_over_a_restart_of_the_server(
    tmp_path: Path,
) -> None:
    server = await OneAttempt(tmp_path, elastic_max_restarts=2).all_train()
    await server.say(1, "preparing", "second")
    again = server.again()
    await again.say(1, "preparing", "third")
    before = again.changes
    with pytest.raises(Conflict):
        await again.say(1, "preparing", "fourth")
    assert again.view(1).displaced
    assert again.changes == before + 1
    assert again.again().view(1).displaced
    with pytest.raises(Conflict):
        await again.say(1, "preparing", "fourth")
    assert again.changes == before + 1


async def test_worker_0_and_one_that_has_failed_are_gone_for_good(tmp_path: Path) -> None:
    server = await OneAttempt(tmp_path).all_train()
    assert await server.end(2, "ExitCode") == "wait"
    for worker in (0, 2):
        with pytest.raises(Conflict):
            await server.say(worker, "preparing", "new")
        assert server.view(worker).displaced
    # the runtime, which sees the pods, decides the rest
    assert await server.say(1, "started") == "go"


async def test_nobody_returns_to_an_attempt_that_stops_or_is_done(tmp_path: Path) -> None:
    stopped = await OneAttempt(tmp_path / "stopped").all_train()
    stopped.attempt.stop(1.0)
    done = await OneAttempt(tmp_path / "done").all_train()
    await done.end(0, "Completed")
    for server in (stopped, done):
        with pytest.raises(Conflict):
            await server.say(1, "preparing", "new")


async def test_all_that_succeed_stay_for_the_last(tmp_path: Path) -> None:
    """The operator takes the first for the end of all."""
    server = await OneAttempt(tmp_path).all_train()
    assert await server.end(2, "Completed") == "wait"
    assert await server.end(0, "Completed") == "wait"
    assert await server.end(1, "Completed") == "exit"
    assert await server.say(2, "ended") == "exit"


async def test_a_rank_brings_its_result_from_whichever_worker(tmp_path: Path) -> None:
    async def chunks() -> Any:
        yield b"result"

    server = await OneAttempt(tmp_path).all_train()
    worker = await server.attempt.worker(1, "uid-1", None, "s")
    await server.attempt.take_result(worker, 2, chunks(), 100)
    assert (tmp_path / "workers" / "1" / "results" / "2").read_bytes() == b"result"
