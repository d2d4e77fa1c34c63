"""An elastic attempt on this machine: what its group survives, with torchrun's real agents."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import read_json, write_json
from client_lib.launcher_protocol.directory import Directory
from client_lib.spec.request import Submitter
from client_lib.spec.states import Reason
from server_stub.files.job_dirs import attempt_dir, log_dir
from server_stub.runtimes import verdict
from server_stub.runtimes.local import plan
from server_stub.runtimes.verdict import ElasticBounds, Stage, WorkerStatus
from tests.kit.elastic_training import TRAINS
from tests.kit.waiting import eventually
from tests.runtimes.conftest import Site, running

PATIENCE_S = 150.0  # agents and ranks import torch, one after the other
SLEEPS = """
import os, time
print("begin", os.environ["RANK"], flush=True)
time.sleep(600)
"""
QUICKLY = "last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=8"


class Group:
    """An elastic job of two workers that trains until it is told to stop."""

    def __init__(self, site: Site, script: str = TRAINS, **fields: Any) -> None:
        (site.folder / "train.py").write_text(script)
        variables = {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CLIENT_LIB_RDZV_CONF": QUICKLY,
        }
        given = {
            "type": "pytorch_elastic",
            "n_workers": 2,
            "processes_per_worker": 1,
            "env_variables": variables,
        }
        self.site = site
        self.attempt = site.submit("train", "train.py", **{**given, **fields})

    def begun(self) -> list[list[str]]:
        """The words of the lines of ranks that began: 0 of 2 at 17 pid 4711. Each line
        has to carry its own rank.
        """
        found = []
        for worker in range(2):
            for path in sorted(log_dir(self.attempt.job_dir, 1, worker).glob("*.log")):
                for line in path.read_text().splitlines():
                    _, _, rank, stream, text = line.split(" ", 4)
                    words = text.split()
                    if words[:1] == ["begin"]:
                        assert (rank, stream) == (words[1], "stdout"), line
                        found.append(words[1:])
        return found

    def resumed(self, size: str, step: int) -> list[list[str]]:
        """Of these the ranks of a group of that size that went on from a later step."""
        return [words for words in self.begun() if words[2] == size and int(words[4]) > step]

    async def until(self, true: Callable[[], Any]) -> None:
        await eventually(true, PATIENCE_S)

    async def until_both_train(self) -> None:
        await self.until(lambda: len(self.begun()) == 2 and self.step() > 3)

    def step(self) -> int:
        path = plan.checkpoint_dir(self.attempt) / "step"
        return int(path.read_text()) if path.exists() else 0

    def launcher(self, worker: int) -> int | None:
        """Its pid, as soon as it holds the lock."""
        held = read_json(Directory(str(self.site.directory(self.attempt, worker))).lock)
        return held["pid"] if held else None

    async def lose(self, worker: int) -> int:
        """Kill its launcher, and with it all that is below; its pid."""
        await self.until(lambda: self.launcher(worker) is not None)
        pid = self.launcher(worker)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        return pid

    async def stop_and_end(self) -> Reason:
        (plan.checkpoint_dir(self.attempt) / "stop").touch()
        return await self.end()

    async def end(self) -> Reason:
        await self.until(lambda: any(seen.phase == "ended" for seen in self.site.of(self.attempt)))
        return self.site.of(self.attempt)[-1].reason

    def sequences_are_whole(self) -> bool:
        """No record of the log is lost or repeated, whoever wrote it."""
        for worker in range(2):
            files = sorted(log_dir(self.attempt.job_dir, 1, worker).glob("*.log"))
            numbers = [
                int(line.split(b" ", 1)[0])
                for path in files
                for line in path.read_bytes().splitlines()
            ]
            if numbers != list(range(len(numbers))):
                return False
        return True


@pytest.mark.process
@pytest.mark.anyio
@pytest.mark.timeout(500)
async def test_a_killed_rank_is_started_again_and_a_lost_worker_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as site:
        group = Group(site, elastic_min_workers=1)
        await group.until_both_train()
        (victim,) = [words for words in group.begun() if words[0] == "1"]
        os.kill(int(victim[-1]), signal.SIGKILL)
        await group.until(lambda: len(group.resumed("2", 3)) == 2)

        begun_at = int(group.resumed("2", 3)[0][4])
        await group.until(lambda: group.step() > begun_at)
        lost = await group.lose(1)
        await group.until(
            lambda: {words[0] for words in group.resumed("2", begun_at)} == {"0", "1"}
        )
        assert group.launcher(1) != lost
        await group.until(lambda: site.of(group.attempt)[-1].message == "")
        told = [seen.message for seen in site.of(group.attempt) if seen.phase == "running"]
        assert "worker 1 was lost; 1 of 2 go on" in told
        assert await group.stop_and_end() is Reason.COMPLETED
        assert group.sequences_are_whole()


@pytest.mark.process
@pytest.mark.anyio
@pytest.mark.timeout(400)
async def test_a_worker_that_stays_lost_leaves_a_smaller_group(tmp_path: Path) -> None:
    """How often it came back counts over a restart of the server."""
    async with running(tmp_path) as before:
        group = Group(before, elastic_min_workers=1, elastic_max_restarts=1)
        await group.until_both_train()
        first = await group.lose(1)
        await group.until(lambda: group.launcher(1) not in (None, first))
    async with running(tmp_path) as site:
        site.runtime.submit(group.attempt)
        group.site = site
        await group.until(lambda: site.of(group.attempt))
        await group.lose(1)
        await group.until(lambda: group.resumed("1", 3))
        assert site.of(group.attempt)[-1].message == "worker 1 was lost; 1 of 2 go on"
        assert await group.stop_and_end() is Reason.COMPLETED
        assert [worker.state for worker in site.of(group.attempt)[-1].workers] == ["ended", "ended"]


@pytest.mark.process
@pytest.mark.anyio
@pytest.mark.timeout(400)
async def test_the_loss_of_the_worker_that_holds_the_rendezvous_ends_the_attempt(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as site:
        group = Group(site, SLEEPS, elastic_min_workers=1)
        await group.until(lambda: len(group.begun()) == 2)
        await group.lose(0)
        assert await group.end() is Reason.LAUNCHER_LOST


def without_torch(folder: Path) -> Submitter:
    """A submitter whose interpreter sleeps in place of an agent."""
    python = folder / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    return Submitter(
        python=str(python), environment={"PATH": os.environ["PATH"]}, working_dir=str(folder)
    )


@pytest.mark.process
@pytest.mark.anyio
async def test_workers_that_are_lost_at_once_all_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a slow disk
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.2))
    async with running(tmp_path) as site:
        group = Group(site, n_workers=3, elastic_min_workers=1, _submitter=without_torch(tmp_path))
        await site.phase(group.attempt, "running")
        lost = [await group.lose(worker) for worker in (1, 2)]
        await group.until(
            lambda: all(group.launcher(worker) not in (None, *lost) for worker in (1, 2))
        )
        site.runtime.stop("train", 1, 0.1)
        assert await group.end() is Reason.CANCELLED
    assert read_json(str(attempt_dir(group.attempt.job_dir, 1) / "returned.json")) == {
        "1": 1,
        "2": 1,
    }


@pytest.mark.process
@pytest.mark.anyio
async def test_a_lost_worker_of_an_attempt_that_is_stopped_meanwhile_stays_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as site:
        group = Group(site, elastic_min_workers=1, _submitter=without_torch(tmp_path))
        await site.phase(group.attempt, "running")
        loop = asyncio.get_running_loop()

        def write_and_stop(path: str, data: dict[str, Any], durable: bool = False) -> None:
            write_json(path, data, durable)
            loop.call_soon_threadsafe(site.runtime.stop, "train", 1, 0.1)

        # the moment behind the write can't be hit from outside
        monkeypatch.setattr("server_stub.runtimes.local.gang.write_json", write_and_stop)
        await group.lose(1)
        assert await group.end() is Reason.CANCELLED
        assert group.launcher(1) is None


def worker(
    number: int, stage: Stage = Stage.STARTED, reason: Reason | None = None, message: str = ""
) -> WorkerStatus:
    report: Any = {"reason": str(reason), "message": message, "exit_code": 1} if reason else None
    return WorkerStatus(number, stage, "here", report)


ENDED, LOST = Stage.ENDED, Stage.LOST


@pytest.mark.parametrize(
    ("workers", "returned", "survived"),
    [
        ([worker(0), worker(1)], (), set()),
        ([worker(0), worker(1, LOST)], (), {1}),
        ([worker(0), worker(1, ENDED, Reason.SIGNAL)], (), {1}),
        ([worker(0), worker(1, ENDED, Reason.OUT_OF_MEMORY)], (), {1}),
        ([worker(0), worker(1, ENDED, Reason.EXIT_CODE)], (), set()),
        ([worker(0), worker(1, ENDED, Reason.EXIT_CODE, "RendezvousClosedError")], (), set()),
        ([worker(0), worker(1, ENDED, Reason.EXIT_CODE, "RendezvousClosedError")], (1,), {1}),
        ([worker(0, LOST), worker(1)], (), set()),
        ([worker(0, LOST), worker(1, LOST)], (), set()),
        ([worker(0, ENDED, Reason.EXIT_CODE), worker(1, LOST)], (), set()),
        ([worker(0, ENDED, Reason.COMPLETED), worker(1, LOST)], (), {1}),
        ([worker(0, ENDED, Reason.COMPLETED), worker(1, ENDED, Reason.CANCELLED)], (1,), {1}),
        ([worker(0, ENDED, Reason.COMPLETED), worker(1, ENDED, Reason.EXIT_CODE)], (), set()),
        ([worker(0), worker(1, LOST), worker(2, LOST)], (), {1, 2}),
    ],
)
def test_which_losses_are_survived(
    workers: list[WorkerStatus], returned: tuple[int, ...], survived: set[int]
) -> None:
    assert verdict.survived(workers, ElasticBounds(1, 5), returned) == survived


def test_fewer_than_are_enough_do_not_go_on() -> None:
    assert verdict.survived([worker(0), worker(1), worker(2, LOST)], ElasticBounds(2, 5)) == {2}
    assert verdict.survived([worker(0), worker(1, LOST)], ElasticBounds(2, 5)) == frozenset()
    assert (
        verdict.survived([worker(0), worker(1, LOST), worker(2, LOST)], ElasticBounds(2, 5))
        == frozenset()
    )
