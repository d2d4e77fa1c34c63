"""The open attempts whose workers run on other machines: the workers of each, its start barrier,
the requests that wait for an order, and the tokens by which a request finds its attempt. Event loop
only.

A token names its attempt and is signed with a key of this server. Nothing is stored per token, so a
token survives a restart.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from client_lib.durable import read_json, write_file, write_json
from client_lib.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
    Unavailable,
)
from client_lib.launcher_protocol.report import Report
from client_lib.spec.replace import replaced
from client_lib.spec.request import WorkerOrder
from server_stub.files.room import Spare, refusing_full_disk
from server_stub.worker_gateway.sessions import worker_of
from server_stub.worker_gateway.worker import PodStart, RemoteWorker, StackDump, State, WorkerView

PREFIX = "clw_"  # lets scanners recognise a leaked token
_TOKEN = re.compile(rf"{PREFIX}(.+)\.([0-9]{{1,9}})\.[0-9a-f]+")  # job id, attempt, proof
_EXPIRED = "this worker's token has ended with its attempt"
FILE = "gate.json"
"""In the folder of an attempt: {open: every worker was ready once, closed: it is over
and its token has expired}.
"""
SILENT_S = 600.0
"""The longest wait for a silent agent: of an ended peer, of a complete gang, and for
a log that does not grow.
"""


@dataclass(frozen=True)
class WorkerGroup:
    """One attempt whose workers connect to this server."""

    job_id: str
    job_name: str
    attempt: int
    folder: Path
    """`attempt_dir`; it holds the file of the start barrier."""
    workers: tuple[Path, ...]
    """`worker_dir` of each worker, for `log/`, `report.json` and `results/`."""
    processes_per_worker: int
    snapshot: Path | None
    """The archive that these workers may fetch."""
    function: Path | None
    log_limit_bytes: int
    """Bound for the log of one worker, whose head and tail are kept."""
    owner: str = ""
    """User who owns the job."""
    inputs: Callable[[], Awaitable[Iterator[bytes]]] | None = None
    """Packs what these workers get of other jobs as a tar.gz; None: nothing."""
    may_return: Callable[[WorkerView], bool] | None = None
    """True for a lost worker that another pod, or another start of its container, may replace
    (elastic jobs). None: the first pod owns a worker to the end, and the first failed worker stops
    the others; with a function the runtime alone stops an attempt, for it may survive a failure."""


def next_order(
    worker: WorkerView, others: Sequence[WorkerView], barrier_open: bool, stop: WorkerOrder | None
) -> WorkerOrder:
    """The next order for a worker. `others`: the workers that it waits for before it leaves."""
    if worker.state == "ended":
        leaves = worker.drained and all(other.drained for other in others)
        return WorkerOrder(do="exit" if leaves else "wait")
    if stop is not None:
        return stop
    return WorkerOrder(do="go" if barrier_open and worker.state in ("ready", "started") else "wait")


class OpenAttempt:
    def __init__(self, group: WorkerGroup, on_change: Callable[[], None], spare: Spare) -> None:
        """Call `open` first."""
        self.group = group
        self.on_change = on_change
        """Called on the event loop's thread when the `change_key` of a view has changed."""
        self._spare = spare
        self._workers = self._new_workers()
        self.begun = False
        """Every worker was ready once, and ranks have been started."""
        self._ordered: WorkerOrder | None = None
        self._failed = False
        """A worker has reported a failure that stops the others."""
        self._released = False
        self._closed = False

    def _new_workers(self) -> list[RemoteWorker]:
        limit = self.group.log_limit_bytes
        tell = self._notify
        return [
            RemoteWorker(at, folder, limit, self._spare, tell)
            for at, folder in enumerate(self.group.workers)
        ]

    def open(self) -> None:
        """Restore the stored state and accept the workers."""
        self.group.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for worker in self._workers:
            worker.open()
        # a loss of power may have taken the file, and leaves the states of the workers
        ran = any(
            view.state == "started" or (view.report and view.report["ranks"])
            for view in self.views()
        )
        gate = read_json(str(self.group.folder / FILE)) or {}
        self._write_gate(begun=bool(gate.get("open")) or ran or self._are_ready)
        self._failed = any(map(self._stops_the_others, self.views()))

    @property
    def _are_ready(self) -> bool:
        return all(view.state in ("ready", "started") for view in self.views())

    def _write_gate(self, *, begun: bool, closed: bool = False) -> None:
        state = {"open": begun, "closed": closed}
        self._spare.run(write_json, str(self.group.folder / FILE), state)
        self.begun = begun

    # --- for the runtime

    def views(self) -> tuple[WorkerView, ...]:
        """All workers, by number."""
        now = time.monotonic()
        return tuple(worker.view_at(now) for worker in self._workers)

    def stop(self, grace_s: float, *, interrupt: bool = False) -> None:
        """Order the workers to stop. This reaches them before the deletion of their pods,
        but is not guaranteed to. A worker takes one such order.
        """
        self._ordered = WorkerOrder(do="stop", grace_s=grace_s, interrupt=interrupt)
        self._wake_all()

    def release(self) -> None:
        """Let worker 0 leave at once. Otherwise it leaves when the reports and logs of
        all workers have arrived.
        """
        self._released = True
        self._wake_all()

    async def append(self, number: int, pod_uid: str, records: bytes) -> int:
        """Store the new records, by seq, of a pod's log that was read from the cluster, and return
        their number. Other lines are skipped. 0 for a worker that another pod owns. Raises
        StorageFull."""
        worker = self._workers[number]
        if worker.view.pod_uid not in (None, pod_uid):
            return 0
        return await worker.add_records(records)

    async def stacks(self, limit_s: float) -> list[StackDump]:
        """Take the stacks of the workers, by number; a problem if none came within
        `limit_s`. One call at a time.
        """
        return list(
            await asyncio.gather(*(worker.take_stacks(limit_s) for worker in self._workers))
        )

    async def begin_session(self, request: Mapping[str, object]) -> socket.socket:
        worker = self._workers[
            worker_of(request, len(self._workers), self.group.processes_per_worker)
        ]
        if not worker.view.runs_ranks:
            raise Conflict("it runs no ranks now")
        if not worker.sessions.supported:
            raise Conflict("its version does not support sessions")
        return await worker.sessions.begin(request)

    def forget(self) -> None:
        """Drop the state of all workers, so that new pods may take their places. Only after the
        pods are gone, and before any rank ran. The attempt stays open."""
        for worker in self._workers:
            worker.forget()
            worker.wake()
        self._workers = self._new_workers()
        self._failed = False
        self._ordered = None
        self._write_gate(begun=False)

    def close(self) -> None:
        self._closed = True
        if self.group.folder.exists():
            self._write_gate(begun=self.begun, closed=True)
        self._wake_all()

    # --- for the workers

    def check(self, job_name: str, attempt: int) -> None:
        """Raise Forbidden for the path of another job or attempt."""
        if (job_name, attempt) != (self.group.job_name, self.group.attempt):
            raise Forbidden("this token opens another attempt or another job")

    async def worker(
        self, number: int, pod_uid: str, pod: str | None, start: str = ""
    ) -> RemoteWorker:
        """The worker that this pod owns, or owns from now on. `start` names a start of its
        container. Raises NotFound if there is no such worker, and Conflict if another pod owns it.
        """
        if not 0 <= number < len(self._workers):
            raise NotFound(
                f"there is no worker {number} in this attempt; it has {len(self._workers)}"
            )
        worker = self._workers[number]
        await worker.claim(PodStart(pod_uid, start), pod, self._may_return)
        return worker

    @property
    def _may_return(self) -> Callable[[WorkerView], bool] | None:
        rule = self.group.may_return
        if rule is None or (self._ordered is None and self._workers[0].view.report is None):
            return rule
        return lambda _: False

    async def report_state(self, worker: RemoteWorker, state: State) -> None:
        """Store the state of a worker; with the last one that is ready the start barrier opens.
        Raises StorageFull; the worker repeats its report."""
        await worker.advance_to(state)
        if self._are_ready and not self.begun and not self._closed:
            with refusing_full_disk():
                self._write_gate(begun=True)
            self._wake_all()
            self._notify()

    async def next_order(
        self,
        worker: RemoteWorker,
        known: str,
        wait_s: float,
        stopping: asyncio.Event,
        known_stacks: str | None = None,
    ) -> WorkerOrder:
        """The worker's order, once it differs from `known`, or with an order for stacks that has
        another mark than `known_stacks`, or with a new session, or after `wait_s`, or when the
        server stops."""
        worker.stacks.supported = known_stacks is not None
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            changed = worker.changed
            wanted = self._order(worker)
            if worker.stacks.is_new(known_stacks):
                return replaced(wanted, stacks=worker.stacks.mark)
            if mark := worker.sessions.next():
                return replaced(wanted, session=mark)
            if wanted.do != known or stopping.is_set() or loop.time() >= until:
                return wanted
            waits = [asyncio.ensure_future(event.wait()) for event in (changed, stopping)]
            try:
                await asyncio.wait(
                    waits, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for wait in waits:
                    wait.cancel()

    def _order(self, worker: RemoteWorker) -> WorkerOrder:
        """Raises Unauthorized if the attempt is closed, Conflict if its pods were given up."""
        if self._closed:
            raise Unauthorized(_EXPIRED)
        if self._workers[worker.view.worker] is not worker:
            raise Conflict("the pods of this attempt were given up: nothing may start in them")
        view = worker.view
        waited_for = list[WorkerView]()
        if view.state == "ended" and not self._released:
            # Worker 0 and failed workers wait for the others: the operator takes the end of the
            # master, or the first failed pod, for the end of the whole job and deletes all running
            # pods. In an elastic job it takes the first success of any pod for that, and a lost
            # worker must leave soon, because only then it starts again.
            rule = self.group.may_return
            if (
                (view.worker == 0 or view.failed)
                if rule is None
                else not (view.failed and rule(view))
            ):
                since = time.monotonic() - SILENT_S
                waited_for = [
                    each.view
                    for each in self._workers
                    if each.view.pod_uid and each.last_contact > since
                ]
        stop = self._ordered or (WorkerOrder(do="stop") if self._failed else None)
        return next_order(view, waited_for, self.begun, stop)

    async def take_report(self, worker: RemoteWorker, report: Report) -> None:
        """Raises InvalidRequest for the report of another worker."""
        if (report["worker"], report["attempt"]) != (worker.view.worker, self.group.attempt):
            raise InvalidRequest(
                f"this is the report of worker {report['worker']} in attempt {report['attempt']}"
            )
        await worker.take_report(report)
        self._failed = self._failed or self._stops_the_others(worker.view)
        self._wake_all()

    async def take_result(
        self, worker: RemoteWorker, rank: int, chunks: AsyncIterator[bytes], max_bytes: int
    ) -> None:
        """Raises NotFound if this worker has no such rank, TooLarge, StorageFull."""
        number = worker.view.worker
        owner = rank // self.group.processes_per_worker
        # the agents of an elastic job number the ranks by themselves
        is_its_own = (
            owner == number if self.group.may_return is None else owner < len(self._workers)
        )
        if not is_its_own:
            raise NotFound(f"rank {rank} is none of worker {number}")
        await worker.take_result(rank, chunks, max_bytes)

    # --- within

    def _stops_the_others(self, view: WorkerView) -> bool:
        return view.failed and self.group.may_return is None

    def _wake_all(self) -> None:
        """Let all requests that wait for an order check it again."""
        for worker in self._workers:
            worker.wake()

    def _notify(self) -> None:
        if not self._closed:
            self.on_change()


class WorkerRegistry:
    """One per server. `folder_of` maps (job id, attempt) to the attempt's folder; `key_file` is
    created (0600) with the first token; `spare` gives up room for states and reports on a full
    disk."""

    def __init__(self, key_file: Path, folder_of: Callable[[str, int], Path], spare: Spare) -> None:
        self._key_file = key_file
        self._folder_of = folder_of
        self._spare = spare
        self._key: bytes | None = None
        self._open: dict[tuple[str, int], OpenAttempt] = {}  # by job id and number

    # --- for the runtime

    def token(self, job_id: str, attempt: int) -> str:
        """The token of the workers of an attempt; always the same. It is
        valid from `open` to `close`.
        """
        key = self._read_key()
        if key is None:
            key = self._key = secrets.token_bytes(32)
            write_file(str(self._key_file), key, durable=True)
        return _signed(key, job_id, attempt)

    def open(self, group: WorkerGroup, on_change: Callable[[], None]) -> OpenAttempt:
        """Accept the workers of an attempt, with the state that earlier server processes have
        stored. Idempotent. Reads small files. `on_change` replaces the function of an earlier call.
        """
        attempt = self.find(group.job_id, group.attempt)
        if attempt is None:
            attempt = OpenAttempt(group, on_change, self._spare)
            attempt.open()
            self._open[group.job_id, group.attempt] = attempt
        attempt.on_change = on_change
        return attempt

    def find(self, job_id: str, attempt: int) -> OpenAttempt | None:
        """None: it is not open."""
        return self._open.get((job_id, attempt))

    def close(self, job_id: str, attempt: int) -> None:
        """End an attempt: its token expires, its files stay."""
        if found := self._open.pop((job_id, attempt), None):
            found.close()

    # --- for the workers

    def admit(self, token: str) -> OpenAttempt:
        """The attempt of a token. Raises Unauthorized: this server has not issued the token, or its
        attempt is over; Unavailable: this server process has not opened the attempt yet."""
        job_id, attempt = self._checked(token)
        found = self.find(job_id, attempt)
        if found is None:
            folder = self._folder_of(job_id, attempt)
            gate = read_json(str(folder / FILE)) or {}  # a loss of power may have taken it
            if folder.exists() and not gate.get("closed"):
                raise Unavailable(
                    "the server has just been started and does not follow this attempt yet"
                )
            raise Unauthorized(_EXPIRED)
        return found

    def _checked(self, token: str) -> tuple[str, int]:
        """(job id, attempt) of a token. Raises Unauthorized for one that
        this server has not made.
        """
        key = self._read_key()
        parts = _TOKEN.fullmatch(token)
        if key is not None and parts is not None:
            job_id = parts[1]
            attempt = int(parts[2])
            if hmac.compare_digest(_signed(key, job_id, attempt).encode(), token.encode()):
                return job_id, attempt
        raise Unauthorized("the server does not know this worker's token")

    def _read_key(self) -> bytes | None:
        if self._key is None and self._key_file.exists():
            self._key = self._key_file.read_bytes()
        return self._key


def _signed(key: bytes, job_id: str, attempt: int) -> str:
    """The token of an attempt."""
    proof = hmac.new(key, f"{job_id}\n{attempt}".encode(), hashlib.sha256).hexdigest()
    return f"{PREFIX}{job_id}.{attempt}.{proof}"
