"""The state of an open attempt over restarts of the server, with files only."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import Conflict, StorageFull, Unauthorized, Unavailable
from client_lib.spec.request import WorkerOrder
from server_stub.files.room import Room, Spare
from server_stub.worker_gateway import attempt
from server_stub.worker_gateway.attempt import OpenAttempt, WorkerGroup, WorkerRegistry, next_order
from server_stub.worker_gateway.worker import NOTICED_S, PodStart, RemoteWorker, WorkerView
from tests.kit.bounds import Bounds
from tests.kit.small_disk import fill, small_disk
from tests.kit.worker_reports import report
from tests.worker_gateway.test_log_file import records

pytestmark = pytest.mark.anyio


class OneAttempt:
    """A registry with one attempt of two workers; `again` returns that
    of the next server process.
    """

    def __init__(self, folder: Path, opens: bool = True) -> None:
        self.folder, self.changes = folder, 0
        self.registry = WorkerRegistry(
            folder / "worker.key",
            lambda job_id, number: folder / job_id / str(number),
            Spare(folder / "spare"),
        )
        self.token = self.registry.token("id", 1)
        self.stopping = asyncio.Event()
        if opens:
            self.open()

    def open(self) -> None:
        folders = tuple(self.folder / "id" / "1" / "workers" / str(number) for number in (0, 1))
        group = WorkerGroup(
            "id", "train", 1, self.folder / "id" / "1", folders, 2, None, None, 2**30
        )
        self.registry.open(group, self._changed)

    def again(self, opens: bool = True) -> OneAttempt:
        return OneAttempt(self.folder, opens)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def attempt(self) -> OpenAttempt:
        return self.registry.admit(self.token)

    @property
    def views(self) -> tuple[WorkerView, ...]:
        return self.attempt.views()

    async def say(self, worker: int, state: Any, uid: str | None = None) -> str:
        speaker = await self.attempt.worker(worker, uid or f"uid-{worker}", f"pod-{worker}")
        await self.attempt.report_state(speaker, state)
        return (await self.attempt.next_order(speaker, "", 0.0, self.stopping)).do

    async def end(self, worker: int, reason: str = "Completed") -> str:
        speaker = await self.attempt.worker(worker, f"uid-{worker}", None)
        await self.attempt.take_report(speaker, report(worker, reason=reason))
        return await self.say(worker, "ended")


async def test_the_barrier_opens_for_all_when_the_last_is_ready_and_stays_open(
    tmp_path: Path,
) -> None:
    server = OneAttempt(tmp_path)
    assert await server.say(0, "ready") == "wait"
    assert await server.say(1, "ready") == "go"
    assert await server.say(0, "ready") == "go"
    again = server.again()
    assert [view.state for view in again.views] == ["ready", "ready"]
    assert await again.say(0, "ready") == "go"


@pytest.mark.parametrize("last", ["ready", "started"])
async def test_the_barrier_stays_open_though_a_loss_of_power_has_taken_its_file(
    tmp_path: Path, last: str
) -> None:
    server = OneAttempt(tmp_path)
    assert await server.say(0, "ready") == "wait"
    assert await server.say(1, "ready") == "go"
    await server.say(0, last)
    for content in ("", None):
        gate = tmp_path / "id" / "1" / attempt.FILE
        gate.unlink() if content is None else gate.write_text(content)
        again = server.again()
        assert again.attempt.begun
        assert await again.say(1, "ready") == "go"


async def test_the_barrier_opens_though_all_say_at_once_that_they_are_ready(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        server = OneAttempt(folder)
        for worker in (0, 1):
            await server.say(worker, "preparing")
        await asyncio.gather(*(server.say(worker, "ready") for worker in (0, 1) * 4))
        assert await server.say(0, "ready") == "go"
        assert await server.again().say(1, "ready") == "go"


async def test_the_time_before_its_first_request_is_no_silence_of_an_agent(tmp_path: Path) -> None:
    seen: list[float] = []
    worker = RemoteWorker(
        0, tmp_path, 2**30, Spare(tmp_path / "spare"), lambda: seen.append(silence())
    )

    def silence() -> float:
        return worker.view_at(time.monotonic()).silent_s

    worker.open()
    worker.last_contact -= NOTICED_S + 1
    await worker.claim(PodStart("uid-0", ""), "pod-0", None)
    assert [*seen, silence()] == [0.0, 0.0]


async def test_who_opens_an_open_attempt_again_hears_of_its_changes(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    await server.say(0, "preparing")
    heard = server.changes
    later = OneAttempt(tmp_path, opens=False)
    later.registry = server.registry
    later.open()
    await server.say(0, "ready")
    assert (server.changes, later.changes > 0) == (heard, True)
    assert [view.state for view in later.views] == ["ready", None]


async def test_who_waits_for_an_order_gets_it_at_once(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    await server.say(0, "ready")
    first = await server.attempt.worker(0, "uid-0", None)
    waiting = asyncio.create_task(server.attempt.next_order(first, "wait", 60.0, server.stopping))
    await asyncio.sleep(0)
    await server.say(1, "ready")
    assert (await asyncio.wait_for(waiting, 30.0)).do == "go"


async def test_a_server_that_stops_answers_those_that_wait(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    first = await server.attempt.worker(0, "uid-0", None)
    waiting = asyncio.create_task(server.attempt.next_order(first, "wait", 60.0, server.stopping))
    await asyncio.sleep(0)
    server.stopping.set()
    assert (await asyncio.wait_for(waiting, 30.0)).do == "wait"


async def test_a_failure_stops_the_others_also_after_a_restart(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    for worker in (0, 1):
        await server.say(worker, "ready")
    await server.end(1, "ExitCode")
    assert await server.say(0, "started") == "stop"
    assert await server.again().say(0, "started") == "stop"


async def test_worker_0_and_a_failed_one_stay_until_the_others_are_drained(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    for worker in (0, 1):
        await server.say(worker, "started")
    assert await server.end(0) == "wait"
    assert await server.end(1) == "exit"
    assert await server.say(0, "ended") == "exit"


async def test_a_released_worker_may_leave_without_the_others(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    for worker in (0, 1):
        await server.say(worker, "started")
    assert await server.end(0) == "wait"
    server.attempt.release()
    assert await server.say(0, "ended") == "exit"


async def test_a_worker_that_nothing_is_heard_of_is_not_waited_for(
    tmp_path: Path, bounds: Bounds
) -> None:
    server = OneAttempt(tmp_path)
    for worker in (0, 1):
        await server.say(worker, "started")
    assert await server.end(0) == "wait"
    # passed for both; worker 0 does not wait for itself
    bounds(attempt, SILENT_S=-1.0)
    assert await server.say(0, "ended") == "exit"


async def test_what_was_said_is_known_to_the_next_server(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    speaker = await server.attempt.worker(0, "uid-0", "pod-0")
    await speaker.take_log(0, records(0, 5), gap=False)
    await speaker.take_log(len(records(0, 9)), records(9, 12), gap=True)
    await server.attempt.take_report(speaker, report(0, log_end_seq=12))
    view = server.again().views[0]
    assert (view.pod_uid, view.pod, view.missing, view.next_seq) == ("uid-0", "pod-0", 4, 12)
    assert view.drained
    with pytest.raises(Conflict):
        await server.again().attempt.worker(0, "another", None)


async def test_what_is_left_of_a_log_after_the_report_is_stored_on_a_full_disk(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        Room(disk, 0).restore_spare()
        server = OneAttempt(disk)
        speaker = await server.attempt.worker(0, "uid-0", "pod-0")
        fill(disk)
        with pytest.raises(StorageFull):
            await speaker.take_log(0, records(0, 500), gap=False)
        await server.attempt.take_report(speaker, report(0, log_end_seq=50_000))
        fill(disk)
        await speaker.take_log(0, records(0, 50_000), gap=False)
        assert server.again().views[0].drained


async def test_the_log_that_was_read_elsewhere_completes_a_worker_that_died(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    speaker = await server.attempt.worker(0, "uid-0", None)
    await speaker.take_log(0, records(0, 5), gap=False)
    assert await server.attempt.append(0, "uid-0", b"client-lib: a word\n" + records(3, 8)) == 3
    assert await server.attempt.append(0, "uid-0", records(0, 8)) == 0
    assert server.views[0].next_seq == 8
    assert server.registry.find("id", 7) is None


async def test_a_gang_that_was_taken_back_is_forgotten(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    for worker in (0, 1):
        await server.say(worker, "ready")
    speaker = await server.attempt.worker(0, "uid-0", None)
    await speaker.take_log(0, records(0, 5), gap=False)
    server.attempt.forget()
    assert server.views == (WorkerView(0), WorkerView(1))
    assert await server.say(0, "ready", uid="another") == "wait"
    assert await server.again().say(1, "preparing", uid="another") == "wait"


async def test_a_pod_of_a_gang_that_was_taken_back_is_not_told_to_go_with_the_next(
    tmp_path: Path,
) -> None:
    server = OneAttempt(tmp_path)
    await server.say(0, "ready")
    old = await server.attempt.worker(0, "uid-0", None)
    waiting = asyncio.create_task(server.attempt.next_order(old, "wait", 60.0, server.stopping))
    await asyncio.sleep(0)
    server.attempt.forget()
    with pytest.raises(Conflict):
        await asyncio.wait_for(waiting, 30.0)


async def test_the_token_opens_an_attempt_from_open_to_close(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path, opens=False)
    with pytest.raises(Unauthorized):
        server.registry.admit(server.token)
    server.open()
    assert server.attempt.group.job_name == "train"
    restarted = server.again(opens=False)
    with pytest.raises(Unavailable):  # it may be found again any moment
        restarted.registry.admit(server.token)
    server.registry.close("id", 1)
    for closed in (server, restarted):
        with pytest.raises(Unauthorized):
            closed.registry.admit(server.token)
    elsewhere = tmp_path / "another server"
    elsewhere.mkdir()
    with pytest.raises(Unauthorized):
        OneAttempt(elsewhere).registry.admit(server.token)


@pytest.mark.parametrize("left", [None, ""])
async def test_a_worker_comes_again_though_a_loss_of_power_has_taken_the_file(
    tmp_path: Path, left: str | None
) -> None:
    server = OneAttempt(tmp_path)
    await server.say(0, "started")
    gate = tmp_path / "id" / "1" / attempt.FILE
    gate.unlink() if left is None else gate.write_text(left)
    with pytest.raises(Unavailable):
        server.again(opens=False).registry.admit(server.token)


async def test_changes_are_told_but_not_each_line(tmp_path: Path) -> None:
    server = OneAttempt(tmp_path)
    await server.say(0, "ready")
    before = server.changes
    assert before
    speaker = await server.attempt.worker(0, "uid-0", None)
    for first in range(0, 50, 5):
        await speaker.take_log(len(records(0, first)), records(first, first + 5), gap=False)
    speaker.note_activity(17, {})
    assert server.changes == before
    assert server.views[0].signs_of_life == 17
    await server.attempt.take_report(speaker, report(0, log_end_seq=50))
    assert server.changes == before + 1


@pytest.mark.parametrize("state", [None, "preparing", "ready", "started", "ended"])
def test_orders_of_a_worker_that_nothing_happened_to(state: Any) -> None:
    worker = WorkerView(0, state=state)
    decide = partial(next_order, worker, [worker])
    assert decide(False, None) == WorkerOrder(do="wait")
    assert decide(True, None).do == ("go" if state in ("ready", "started") else "wait")
    assert decide(True, WorkerOrder(do="stop", grace_s=3.0)).do == (
        "wait" if state == "ended" else "stop"
    )
