"""One open attempt: its workers, its gate, and who waits for an order.

`desk` holds one per open attempt. What a worker is to do next is decided in `views`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from client_lib.errors import Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized
from server_stub.workers.gate import Gate
from server_stub.workers.log_file import Lengths, LogFile
from server_stub.workers.views import Gang, Order, Speaker, State, WorkerView, order, stays
from server_stub.workers.worker import Worker, on_disk

SILENT_S = 600.0
"""Who stays for another worker waits no longer for one that was not heard of for so long."""


class OpenAttempt:
    """Event loop only."""

    def __init__(self, gang: Gang, on_change: Callable[[], None]) -> None:
        """`open` it before anything else."""
        self.gang = gang
        self._on_change = on_change
        self._workers = self._new_workers()
        self._gate = Gate(gang.folder)
        self._ordered: Order | None = None
        self._failed = False
        """Some worker has reported a failure: the others are to stop."""
        self._released = False
        self._closed = False

    def _new_workers(self) -> list[Worker]:
        limits = self.gang.log_limit_bytes, self.gang.segment_bytes
        return [
            Worker(number, folder, LogFile(folder / "log", *limits)) for number, folder in enumerate(self.gang.workers)
        ]

    def open(self) -> None:
        """Find what was said before, and let the workers in."""
        self.gang.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._gate.write()
        for worker in self._workers:
            worker.open()
        self._failed = any(map(self._stops_the_others, self.views()))

    # --- for the runtime

    def views(self) -> tuple[WorkerView, ...]:
        return tuple(worker.view for worker in self._workers)

    def stop(self, grace_s: float) -> None:
        self._ordered = Order("stop", grace_s)
        self._wake_all()

    def release(self) -> None:
        self._released = True
        self._wake_all()

    @property
    def begun(self) -> bool:
        return self._gate.is_open

    async def append(self, number: int, pod_uid: str, records: bytes) -> int:
        worker = self._workers[number]
        if worker.view.pod_uid not in (None, pod_uid):
            return 0
        before = worker.view.news
        new = await worker.add_records(records)
        self._tell_if(worker.view.news != before)
        return new

    def forget(self) -> None:
        for worker in self._workers:
            worker.forget()
            worker.wake()
        self._workers = self._new_workers()
        self._failed, self._ordered = False, None
        self._gate.shut()

    def close(self) -> None:
        self._closed = True
        if self.gang.folder.exists():
            self._gate.close()
        self._wake_all()

    # --- for the workers

    def check(self, job_name: str, attempt: int) -> None:
        """Raises Forbidden: the path is another job's, or another attempt's."""
        if (job_name, attempt) != (self.gang.job_name, self.gang.attempt):
            raise Forbidden("this token opens another attempt or another job")

    async def worker(self, number: int, pod_uid: str, pod: str | None, start: str = "") -> Worker:
        """The worker that this pod speaks for; `start`: which of its container's.

        Raises NotFound: there is no such worker; Conflict: it belongs to another pod.
        """
        if not 0 <= number < len(self._workers):
            raise NotFound(f"there is no worker {number} in this attempt; it has {len(self._workers)}")
        worker = self._workers[number]
        before = worker.view.news
        try:
            await worker.claim(Speaker(pod_uid, start), pod, self._may_return)
        finally:
            self._tell_if(worker.view.news != before)
        return worker

    @property
    def _may_return(self) -> Callable[[WorkerView], bool] | None:
        rule = self.gang.may_return
        if rule is None or (self._ordered is None and self._workers[0].view.report is None):
            return rule
        return lambda _: False

    async def say(self, worker: Worker, state: State) -> None:
        """How far it is; the gate opens when the last of all is ready, and is open when that is on disk.

        Raises StorageFull: say it again.
        """
        news = await worker.become(state)
        if not self._gate.is_open and self._all_are_ready():
            await on_disk(self._gate.open_if, self._all_are_ready)
            self._wake_all()
        if news:
            worker.wake()
        self._tell_if(news)

    async def order(self, worker: Worker, known: str, wait_s: float, stopping: asyncio.Event) -> Order:
        """What it is to do, as soon as that is not what it knows already, or `wait_s` is over, or the server stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            changed = worker.changed
            wanted = self._order(worker)
            if wanted.do != known or stopping.is_set() or loop.time() >= until:
                return wanted
            await _first_of(changed, stopping, until - loop.time())

    def _order(self, worker: Worker) -> Order:
        """Raises Unauthorized: the attempt was closed meanwhile; Conflict: its gang was taken back."""
        if self._closed:
            raise token_is_dead()
        if self._workers[worker.view.worker] is not worker:
            raise Conflict("the gang of this pod was taken back: nothing may start in it")
        others = self._waited_for() if worker.view.state == "ended" else []
        stop = self._ordered or (Order("stop") if self._failed else None)
        return order(worker.view, others, self._gate.is_open, stop, stays=stays(worker.view, self.gang))

    def _waited_for(self) -> list[WorkerView]:
        if self._released:
            return []
        heard = time.monotonic() - SILENT_S
        return [worker.view for worker in self._workers if worker.view.pod_uid and worker.heard_at > heard]

    async def take_log(self, worker: Worker, offset: int, data: bytes, *, gap: bool) -> Lengths:
        before = worker.view.news
        lengths = await worker.take_log(offset, data, gap=gap)
        self._tell_if(worker.view.news != before)
        return lengths

    async def take_report(self, worker: Worker, report: dict[str, Any]) -> None:
        """Raises InvalidRequest: it is another worker's."""
        if (report["worker"], report["attempt"]) != (worker.view.worker, self.gang.attempt):
            raise InvalidRequest(f"this is the report of worker {report['worker']} in attempt {report['attempt']}")
        await worker.take_report(report)
        self._failed = self._failed or self._stops_the_others(worker.view)
        self._wake_all()
        self._tell_if(True)

    async def take_result(self, worker: Worker, rank: int, chunks: AsyncIterator[bytes], max_bytes: int) -> None:
        """Raises NotFound: no rank of this worker has this number; TooLarge, StorageFull."""
        if not self._is_rank_of(rank, worker.view.worker):
            raise NotFound(f"rank {rank} is none of worker {worker.view.worker}")
        await worker.take_result(rank, chunks, max_bytes)

    # --- within

    def _all_are_ready(self) -> bool:
        """Not after `close`; after `forget` it begins anew."""
        return not self._closed and all(view.state in ("ready", "started") for view in self.views())

    def _stops_the_others(self, view: WorkerView) -> bool:
        return view.failed and self.gang.may_return is None

    def _is_rank_of(self, rank: int, worker: int) -> bool:
        """The agents of an elastic job number the ranks by themselves."""
        where = rank // self.gang.processes_per_worker
        return where == worker if self.gang.may_return is None else where < len(self._workers)

    def _wake_all(self) -> None:
        """All that wait for an order look again."""
        for worker in self._workers:
            worker.wake()

    def _tell_if(self, news: bool) -> None:
        if news and not self._closed:
            self._on_change()


def token_is_dead() -> Unauthorized:
    return Unauthorized("this worker's token has ended with its attempt")


async def _first_of(changed: asyncio.Event, stopping: asyncio.Event, timeout_s: float) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in (changed, stopping)]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
