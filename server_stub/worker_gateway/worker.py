"""A remote worker: what is known about the worker, and what the worker has sent. A request is
answered when its content is on disk.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar

from typing_extensions import Unpack  # of the standard library from Python 3.11 on

from client_lib.durable import read_json, write_json
from client_lib.errors import Conflict, TooLarge
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.report import Report
from client_lib.spec.request import LogLengths
from client_lib.spec.states import Reason
from client_lib.worker.function_runner import RESULTS
from server_stub.files.room import Spare, refusing_full_disk
from server_stub.files.snapshots import batches
from server_stub.worker_gateway import report as reports
from server_stub.worker_gateway.log_file import CLOCK_FILE, LogFile
from server_stub.worker_gateway.sessions import SessionOrders

FACTS = "worker.json"
"""File in the worker's directory with the fields in _KEPT."""
_KEPT = ("pod_uid", "pod", "start", "former", "displaced", "state", "missing")
P = ParamSpec("P")
T = TypeVar("T")

State = Literal["preparing", "ready", "started", "ended"]
NOTICED_S = 120.0
"""A job mentions an agent that has been silent for this long; agents ask for orders every 30 s."""


Quiet = tuple[tuple[int, float], ...]
"""Ranks that do nothing (client_lib.worker.quiet_ranks), and since when (monotonic seconds)."""


def quiet_since(told: Mapping[int, float], before: Quiet, now: float) -> Quiet:
    """The quiet ranks, by a worker's message, which tells for how many seconds each has done
    nothing. A rank that was quiet `before` keeps its time, so that a repeated message changes
    nothing."""
    known = dict(before)
    # the job can send any number
    bounded = {rank: min(max(0.0, seconds), 1e9) for rank, seconds in told.items()}
    return tuple((rank, known.get(rank, now - bounded[rank])) for rank in sorted(told))


Processes = list[dict[str, Any]]
"""The processes of a worker as its launcher has written them
(client_lib.worker.stacks), not checked.
"""


class StackDump(NamedTuple):
    """The answer of one worker that was asked for the stacks of its ranks."""

    worker: int
    processes: Processes
    problem: str = ""
    """The reason why there are none, as a sentence."""


class PodStart(NamedTuple):
    """One start of the container of one pod."""

    pod_uid: str
    start: str
    """"" if it is not known or does not matter."""


class _Facts(TypedDict, total=False):
    """Fields of a WorkerView that change while the worker lives."""

    pod_uid: str
    pod: str | None
    start: str
    former: tuple[PodStart, ...]
    displaced: bool
    state: State
    next_seq: int
    signs_of_life: int
    quiet: Quiet
    missing: int
    report: Report | None


@dataclass(frozen=True)
class WorkerView:
    """The state of one worker, as it has reported it."""

    worker: int
    pod_uid: str | None = None
    """The pod that owns this worker: the first to connect, or its replacement.
    None: none has connected.
    """
    pod: str | None = None
    """The name of that pod."""
    start: str = ""
    """Id of the container start that owns this worker; a restarted container has another one."""
    former: tuple[PodStart, ...] = ()
    """Previous owners; they never become owners again."""
    displaced: bool = False
    """Its owner is lost: another pod has asked for its place and was refused."""
    state: State | None = None
    """The latest reported state; survives a restart of the server."""
    next_seq: int = 0
    """Number of the next expected record."""
    signs_of_life: int = 0
    """A counter that changes when a rank has written something, even if that is no record yet."""
    quiet: Quiet = ()
    """Its ranks that do nothing now."""
    missing: int = 0
    """Number of lost records, which did not fit into the worker's spool while this server was
    down."""
    report: Report | None = None
    """Its report.json."""
    silent_s: float = 0.0
    """Seconds since its agent was last heard of, if they are more than NOTICED_S; without the time
    before its first request and the time in which no server ran."""

    @property
    def drained(self) -> bool:
        """The report and the whole log have arrived."""
        return self.report is not None and self.next_seq >= self.report["log_end_seq"]

    @property
    def failed(self) -> bool:
        return self.report is not None and self.report["reason"] != Reason.COMPLETED

    @property
    def runs_ranks(self) -> bool:
        return self.state == "started" and self.report is None

    @property
    def change_key(self) -> Hashable:
        """A value that changes with every change, except changes of the log and of the signs of
        life."""
        return (
            *(self.pod_uid, self.start, self.displaced, self.state, self.missing),
            *(self.report is not None, self.drained, self.quiet),
        )


class StackOrders:
    """Orders for the stacks of one remote worker, each with a mark, which the worker sends with its
    answer. Event loop only. One order at a time, which `wake` sends; it is lost with this server
    process."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self.mark: str | None = None
        """Mark of the order that waits for an answer; None: no order does."""
        self.supported: bool | None = None
        """The worker's version can take stacks; None: it has not said so yet."""
        self._answer: asyncio.Future[Processes] | None = None

    async def take(self, limit_s: float) -> Processes | None:
        """Order the stacks and wait for them; None: the worker did not answer in time."""
        self.mark = secrets.token_hex(8)
        self._answer = asyncio.get_running_loop().create_future()
        self._wake()
        try:
            return await asyncio.wait_for(self._answer, limit_s)
        except asyncio.TimeoutError:
            return None
        finally:
            self.mark = None

    def is_new(self, known: str | None) -> bool:
        """True if there is an order that this worker must get; the worker knows the order with the
        mark `known`.
        """
        return self.mark is not None and known is not None and known != self.mark

    def answer(self, mark: str, processes: Processes) -> None:
        """Take an answer; one that came too late is dropped."""
        if self._answer is not None and mark == self.mark and not self._answer.done():
            self._answer.set_result(processes)


class RemoteWorker:
    """Changed on the event loop's thread only; a lock keeps the writes
    to its directory in order.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        log_limit_bytes: int,
        spare: Spare,
        on_change: Callable[[], None],
    ) -> None:
        """Call `open` first. `on_change` is called when the
        `change_key` of the view has changed.
        """
        self.view = WorkerView(number)
        self.last_contact = time.monotonic()
        self.changed = asyncio.Event()
        """Set when the worker's order may have changed, then replaced by a new Event, so
        that no waiter misses one.
        """
        self.stacks = StackOrders(self.wake)
        self.sessions = SessionOrders(self.wake)
        self._folder = folder
        self._report_path = Directory(str(folder)).report
        self._log = LogFile(folder / "log", log_limit_bytes)
        self._spare = spare
        self._on_change = on_change
        self._lock = asyncio.Lock()

    def open(self) -> None:
        """Restore the stored state from small files."""
        facts = read_json(str(self._folder / FACTS)) or {}
        facts["former"] = tuple(PodStart(*each) for each in facts.get("former", ()))
        self._log.resume()
        report = None
        with contextlib.suppress(ValueError):  # of a version that took it: its agent sends it again
            report = reports.read(self._report_path)
        self.view = replace(self.view, **facts, report=report, next_seq=self._log.next_seq)

    def view_at(self, now: float) -> WorkerView:
        """The view, with the silence of its agent at this monotonic time."""
        silent_s = now - self.last_contact
        if self.view.pod_uid is None or silent_s <= NOTICED_S:
            return self.view
        return replace(self.view, silent_s=silent_s)

    async def take_stacks(self, limit_s: float) -> StackDump:
        """Order the stacks of its ranks; a problem if they have not come within `limit_s`."""
        who = f"worker {self.view.worker}"
        taken = None
        if not self.view.runs_ranks:
            problem = f"{who} runs no ranks now"
        elif self.stacks.supported is False:
            problem = f"{who}: its version can't take stacks"
        else:
            problem = f"{who} did not answer within {limit_s:g} s"
            taken = await self.stacks.take(limit_s)
        return StackDump(self.view.worker, taken or [], problem if taken is None else "")

    async def claim(
        self, claimant: PodStart, pod: str | None, may_return: Callable[[WorkerView], bool] | None
    ) -> None:
        """Make a pod the owner: the first one, or one that replaces a lost owner. Raises
        Conflict for another one.
        """
        async with self._lock:
            view = self.view
            owner: _Facts = {
                "pod_uid": claimant.pod_uid,
                "start": claimant.start,
                "pod": pod,
                "state": "preparing",
            }
            if view.pod_uid == claimant.pod_uid and (
                may_return is None or claimant.start in ("", view.start)
            ):
                self.last_contact = time.monotonic()
                return
            if view.pod_uid is None:
                self.last_contact = time.monotonic()
                await self._store(**owner)
                return
            # a previous owner, or another start of a pod that has been replaced by another pod
            was_replaced = claimant.pod_uid != view.pod_uid and any(
                each.pod_uid == claimant.pod_uid for each in view.former
            )
            if may_return is not None and not was_replaced and claimant not in view.former:
                if may_return(view):  # the log is continued
                    await on_disk(Path(self._report_path).unlink, missing_ok=True)
                    former = (*view.former, PodStart(view.pod_uid, view.start))
                    returned: _Facts = {**owner, "former": former, "report": None}
                    await self._store(**returned)
                    self.last_contact = time.monotonic()
                    return
                await self._store(displaced=True)
            raise Conflict(
                f"worker {view.worker} of this attempt belongs to pod {view.pod} ({view.pod_uid})",
                hint="a replaced pod starts nothing within an attempt",
            )

    async def advance_to(self, state: State) -> None:
        """Move on to a state, unless the worker has reached it already: states never go back."""
        async with self._lock:
            states = ("preparing", "ready", "started", "ended")
            if self.view.state is None or states.index(state) > states.index(self.view.state):
                await self._store(state=state)
                self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def note_activity(self, signs_of_life: int, quiet: Mapping[int, float]) -> None:
        """Take the facts of a message about the ranks. `quiet`: ranks that do nothing, and for how
        many seconds.
        """
        since = quiet_since(quiet, self.view.quiet, time.monotonic())
        self._show(signs_of_life=signs_of_life, quiet=since)

    async def take_log(self, offset: int, data: bytes, *, gap: bool) -> LogLengths:
        """Raises InvalidRequest, StorageFull. The spare file frees room for the rest of
        the log after the report.
        """
        async with self._lock:
            put = partial(self._log.put, offset, data, gap=gap)
            missing = await (
                on_disk(put) if self.view.report is None else on_disk(self._spare.run, put)
            )
            await self._after_log(missing)
        return self._log.lengths()

    async def add_records(self, records: bytes) -> int:
        """See `OpenAttempt.append`."""
        async with self._lock:
            new, missing = await on_disk(self._log.add, records)
            await self._after_log(missing)
        return new

    async def _after_log(self, missing: int) -> None:
        self._show(next_seq=self._log.next_seq)
        if missing:
            await self._store(missing=self.view.missing + missing)

    async def take_report(self, report: Report) -> None:
        """Store the first report durably, and with it the log that has arrived;
        later reports are ignored.
        """
        async with self._lock:
            await on_disk(self._log.sync)
            if self.view.report is None:
                await on_disk(self._spare.run, write_json, self._report_path, report, durable=True)
                self._show(report=report, next_seq=self._log.next_seq)

    async def take_result(self, rank: int, chunks: AsyncIterator[bytes], max_bytes: int) -> None:
        """Store the result of a rank. Raises TooLarge and StorageFull; then nothing is stored."""

        def check_size(size: int) -> None:
            if size > max_bytes:
                raise TooLarge(
                    f"a result is larger than the {max_bytes / 1e6:.0f} MB that this server takes"
                )

        path = self._folder / RESULTS / str(rank)
        incoming = path.with_name(f"{rank}.{os.urandom(6).hex()}.new")
        try:
            # also for the bytes that are written when the file is closed
            with refusing_full_disk():
                await on_disk(path.parent.mkdir, mode=0o700, exist_ok=True, parents=True)
                with await on_disk(incoming.open, "xb") as file:
                    async for batch in batches(chunks, check_size):
                        await on_disk(file.write, batch)
                    await on_disk(file.flush)
                await on_disk(incoming.replace, path)
        finally:
            incoming.unlink(missing_ok=True)

    def forget(self) -> None:
        """Remove everything that has been stored for this worker."""
        for path in (self._folder / FACTS, self._folder / CLOCK_FILE, Path(self._report_path)):
            path.unlink(missing_ok=True)
        for folder in (self._folder / "log", self._folder / RESULTS):
            shutil.rmtree(folder, ignore_errors=True)

    def _show(self, **facts: Unpack[_Facts]) -> None:
        before = self.view.change_key
        self.view = replace(self.view, **facts)
        if self.view.change_key != before:
            self._on_change()

    async def _store(self, **facts: Unpack[_Facts]) -> None:
        """Store fields of the view before they become visible."""
        after = replace(self.view, **facts)
        kept = {name: getattr(after, name) for name in _KEPT}
        await on_disk(self._spare.run, self._write_facts, kept)
        self._show(**facts)

    def _write_facts(self, facts: Mapping[str, object]) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(str(self._folder / FACTS), facts, durable=True)


async def on_disk(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run a call in a thread. Raises StorageFull if the disk is full."""
    with refusing_full_disk():
        return await asyncio.to_thread(call, *args, **options)
