"""Stand-ins that keep the promises of the real thing, for tests that are about something else."""

import asyncio
import heapq
import itertools
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Literal

from client_lib.errors import Conflict, NeverFits
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, Failure, InstanceType, Manifest, WarmPoolInfo, WorkerInfo
from server_stub.runtimes import Attempt, CheckpointFiles, Observation, Sink
from server_stub.runtimes.tasks import Clock
from server_stub.worker_gateway.worker import Processes, Quiet, StackDump


@dataclass
class FakeRuntime:
    """A runtime whose jobs do what the test says. It outlives servers, as processes do."""

    name: str = "local"
    started: list[tuple[str, int]] = field(default_factory=list)
    """(job id, attempt) in the order of their starts; never the same one twice."""
    given: list[tuple[str, int]] = field(default_factory=list)
    """Every call of `submit`."""
    stopped: list[tuple[str, int, float]] = field(default_factory=list)
    interrupted: list[tuple[str, int]] = field(default_factory=list)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """The newest of each job."""
    life: dict[str, Hashable] = field(default_factory=dict)
    """Signs of life: set another one when the job is to have logged."""
    hidden: str | None = None
    """The reason why no worker can read anything of this machine."""
    checkpoints: CheckpointFiles | None = None
    """The files of the checkpoints of every job; None: this machine does not see them."""
    processes: Processes = field(default_factory=list)
    """Processes that `stacks` finds; []: one without a stack."""
    missing: list[str] = field(default_factory=list)
    """The reasons why the workers after the first have no stacks."""
    stops_at_once: bool = True
    """A stop ends the attempt; False: the test ends it."""
    sink: Sink | None = None
    ended: dict[tuple[str, int], Observation] = field(default_factory=dict)
    _known: set[tuple[str, int]] = field(default_factory=set)
    last: dict[tuple[str, int], Observation] = field(default_factory=dict)

    def check(
        self, spec: JobSpec, owner: str, submitter: Submitter, namespace: str | None = None
    ) -> list[str]:
        if spec.n_workers > 64:
            raise NeverFits(f"n_workers {spec.n_workers}: this place has room for 64")
        return ["base_image is not used here"] if spec.base_image else []

    async def why_hidden(self, spec: JobSpec, owner: str, path: str) -> str | None:
        return self.hidden

    def checkpoint_files(self, attempt: Attempt) -> CheckpointFiles | None:
        return self.checkpoints

    def render(self, attempt: Attempt) -> Manifest:
        environment = {**attempt.spec.environment(), **dict.fromkeys(attempt.secret_values, "***")}
        return Manifest(
            runtime=self.name, objects=[{"job": attempt.job_name, "environment": environment}]
        )

    async def start(self, sink: Sink) -> None:
        self.sink = sink

    def submit(self, attempt: Attempt) -> None:
        known = (attempt.job_id, attempt.number)
        self.given.append(known)
        self.attempts[attempt.job_id] = attempt
        if known not in self._known:
            self._known.add(known)
            self.started.append(known)
        elif known in self.last:
            self._send(self.last[known])

    def stop(self, job_id: str, attempt: int, grace_s: float, *, interrupt: bool = False) -> None:
        self.stopped.append((job_id, attempt, grace_s))
        if interrupt:
            self.interrupted.append((job_id, attempt))
        if self.stops_at_once:
            self.end(job_id, Reason.CANCELLED, "stopped")

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        return self.life.get(job_id)

    async def stacks(self, job_id: str, attempt: int) -> list[StackDump]:
        plain = {"rank": 0, "pid": 7, "state": "S", "name": f"{job_id}.{attempt}", "dump": None}
        missing = [StackDump(number, [], why) for number, why in enumerate(self.missing, 1)]
        return [StackDump(0, self.processes or [plain]), *missing]

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, Any]
    ) -> socket.socket:
        raise Conflict("nothing is real here")

    def instance_types(self) -> Sequence[InstanceType]:
        return [InstanceType(name="cpu.2C.8G", gpus=0, cpu=2, memory_gib=8)]

    def warm_pools(self) -> list[WarmPoolInfo]:
        return []

    def warning(self) -> str:
        return ""

    async def doctor(self) -> list[Check]:
        return [Check(name="fake", ok=True, message="nothing is real here")]

    async def close(self) -> None:
        self.sink = None

    # --- what the test says

    def waits(self, job_id: str, message: str, reason: Reason = Reason.QUEUED) -> None:
        self._see(job_id, "waiting", reason, message)

    def runs(self, job_id: str, quiet: Quiet = (), ended: tuple[int, ...] = ()) -> None:
        """`ended`: workers that have ended."""
        running = WorkerInfo(worker=0, state="running")
        workers = (
            running,
            *(WorkerInfo(worker=number, state="ended", exit_code=0) for number in ended),
        )
        self._see(job_id, "running", Reason.RUNNING, "", workers=workers, quiet=quiet)

    def end(
        self,
        job_id: str,
        reason: Reason = Reason.COMPLETED,
        message: str = "",
        failing: Failure | None = None,
    ) -> None:
        self._see(job_id, "ended", reason, message, first=failing)

    def _see(
        self,
        job_id: str,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        workers: tuple[WorkerInfo, ...] = (),
        first: Failure | None = None,
        quiet: Quiet = (),
    ) -> None:
        number = self.attempts[job_id].number
        self._send(
            Observation(
                job_id, number, phase, reason, message, workers, first_failing=first, quiet=quiet
            )
        )

    def _send(self, seen: Observation) -> None:
        before = self.last.get((seen.job_id, seen.attempt))
        if before is None or before.phase != "ended":  # an end is an end
            self.last[seen.job_id, seen.attempt] = seen
        if self.sink:
            asyncio.get_running_loop().call_soon(self.sink, self.last[seen.job_id, seen.attempt])


class FakeTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock(Clock):
    """A clock that stands still until the test moves it; its timers fire on the way."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self._timers: list[tuple[datetime, int, FakeTimer]] = []
        self._order = itertools.count()

    def now(self) -> datetime:
        return self._now

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(
            self._timers,
            (self._now + timedelta(seconds=max(0.0, delay_s)), next(self._order), timer),
        )
        return timer

    def pass_time(self, seconds: float) -> None:
        until = self._now + timedelta(seconds=seconds)
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback:
                timer.callback()
        self._now = until

    def next_in_s(self) -> float:
        """Seconds until a timer fires; infinite if there is none."""
        due = [at for at, _, timer in self._timers if timer.callback]
        return (min(due) - self._now).total_seconds() if due else float("inf")

    def jump(self, seconds: float) -> None:
        """The wall clock is set; timers don't notice."""
        self._now += timedelta(seconds=seconds)
        self._timers = [
            (at + timedelta(seconds=seconds), order, timer) for at, order, timer in self._timers
        ]
