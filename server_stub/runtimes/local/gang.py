"""One attempt that runs: all of its launchers, started all or none, followed to the end of the last.

`runtime` makes one per admitted attempt. Decisions are in `runtimes.verdict`; one launcher is in `launcher`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Literal

from client_lib.spec.states import Reason
from client_lib.spec.wire import RankReport
from client_lib.worker import control
from client_lib.worker.directory import Directory, renew
from client_lib.worker.plan import WorkerPlan
from server_stub.runtimes import Attempt, Observation, attempt_dir, elastic, outputs, verdict, worker_dir
from server_stub.runtimes.checkpoints import hand_on
from server_stub.runtimes.local import plan, record
from server_stub.runtimes.local.launcher import Launcher
from server_stub.runtimes.local.record import Record
from server_stub.runtimes.local.warm_pool import WarmPool
from server_stub.runtimes.verdict import Stage, Step, Worker

SLOW_START_S = 0.5  # an attempt that takes longer to start says so
UNPACKING_S = 0.5  # a launcher that can't hear an order to stop by then is killed, if it runs nothing yet
TOO_LATE_S = 15.0  # a lost worker that finds the others at their end has so long to end by itself
NO_ANSWER_S = 10.0  # beyond the grace period; then the launcher itself is killed


class Gang:
    """The workers of one attempt. `tell` gets what is seen of it; the last thing is that it has ended."""

    def __init__(
        self,
        attempt: Attempt,
        started: Record,
        host: str,
        python: str,
        tell: Callable[[Observation], None],
        pool: WarmPool | None = None,
        never_warm: str | None = None,
    ):
        """`pool`: where its launchers come from, if they can. `never_warm`: why they could come from none."""
        self.record = started
        self._pool = pool
        self._never_warm = never_warm
        self._pool_failed: str | None = None
        self.job_dir = attempt.job_dir
        self._attempt = attempt
        self._python = python
        self._tell = tell
        self._directory = attempt_dir(attempt.job_dir, attempt.number)
        self._launchers = [
            Launcher(worker_dir(attempt.job_dir, attempt.number, number), number, host, self._changed)
            for number in range(started.workers)
        ]
        self._host = host
        self._elastic = elastic.bounds(attempt.spec)
        self._returned: dict[int, int] = {}
        """Worker that was lost -> how often it was started again."""
        self._began = False
        """Ranks of this attempt have run: until then no loss is survived."""
        self._may_go = False
        self._stopped = False
        """Ordered by the service before any worker failed."""
        self._lost_first = False
        """The first worker that failed lost its launcher: the failures of the others came of it."""
        self._graces: set[float] = set()
        """Grace periods that a stop was ordered with; empty: none was."""
        self._timers: list[asyncio.TimerHandle] = []
        self._told: Observation | None = None
        self._conflicts: tuple[str, ...] = ()

    # --- its life

    async def start(self, plans: Sequence[WorkerPlan]) -> None:
        """Write everything down, start all launchers, follow them to the end."""
        try:
            await asyncio.to_thread(self._prepare, plans)
        except OSError as error:
            self._end(Reason.START_FAILED, f"the attempt could not be prepared: {error}")
            return
        await self._run(self._launchers)

    async def adopt(self, boot_id: str) -> None:
        """Find what was started before, go on with it, follow it to the end."""
        if self.record.boot_id != boot_id:
            for launcher in self._launchers:
                launcher.lose_with_machine()
            self._end(*verdict.verdict(self._workers, self._stopped, self._lost_first))
            return
        self._began = self._launchers[0].has_begun()
        self._returned = record.returned(self._directory)
        await self._run([launcher for launcher in self._launchers if not launcher.was_launched()])

    async def _run(self, unlaunched: Sequence[Launcher]) -> None:
        self._later(SLOW_START_S, self._say_starting)
        try:
            await asyncio.to_thread(self._spawn, await self._fork(unlaunched))
            followed = asyncio.gather(*(self._follow(number) for number in range(len(self._launchers))))
            await asyncio.to_thread(record.make_durable, self._directory)
            self._may_go = True
            self._changed()
            await followed
        finally:
            for timer in self._timers:
                timer.cancel()
        self._conflicts = await asyncio.to_thread(outputs.conflicts, self.job_dir, [w.report for w in self._workers])
        self._end(*verdict.verdict(self._counted, self._stopped, self._lost_first))
        await asyncio.gather(*(launcher.reap() for launcher in self._launchers))

    async def _follow(self, number: int) -> None:
        """To the worker's end; one that is lost is started again where the others can go on without it."""
        await self._launchers[number].follow()
        while self._may_return(number):
            await self._launchers[number].reap()
            folder = worker_dir(self._attempt.job_dir, self._attempt.number, number)
            try:
                await asyncio.to_thread(renew, Directory(str(folder)))
                if not self._may_return(number):
                    return
                self._returned[number] = self._returned.get(number, 0) + 1
                await asyncio.to_thread(record.write_returned, self._directory, dict(self._returned))
            except OSError:  # a broken disk: it stays lost
                return
            self._launchers[number] = Launcher(folder, number, self._host, self._changed)
            self._changed()
            await asyncio.to_thread(self._launchers[number].spawn, self._python)
            await self._launchers[number].follow()

    def _may_return(self, number: int) -> bool:
        if self._elastic is None or self._graces or self._launchers[0].worker.stage.over:
            return False
        return number in self._survived and self._returned.get(number, 0) < self._elastic.returns

    def _prepare(self, plans: Sequence[WorkerPlan]) -> None:
        checkpoints = plan.checkpoint_dir(self._attempt)
        hand_on(self._attempt, checkpoints)
        checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
        for order in plans:
            folder = worker_dir(self._attempt.job_dir, order.attempt, order.worker)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write_private(Directory(str(folder)).plan, order.to_json())
        record.write(self._directory, self.record)

    async def _fork(self, launchers: Sequence[Launcher]) -> list[Launcher]:
        """Those that could not come out of the warm pool, and must be started."""
        if self._pool is None or self._stopped:
            return list(launchers)
        pool = self._pool
        failures = await asyncio.gather(*(launcher.fork(pool) for launcher in launchers))
        self._pool_failed = next(filter(None, failures), None)
        return [launcher for launcher, failed in zip(launchers, failures, strict=True) if failed]

    @property
    def fresh_because(self) -> str | None:
        """Why its ranks did not come out of the warm pool that it was given."""
        if self._pool_failed:
            return f"the warm pool could not be used: {self._pool_failed}"
        return next((worker.fresh_because for worker in self._workers if worker.fresh_because), None)

    def _spawn(self, launchers: Sequence[Launcher]) -> None:
        for launcher in launchers:
            if self._stopped:  # ordered meanwhile: what isn't started needs no stop
                return
            launcher.spawn(self._python)

    def named_to(self, owner: str) -> str:
        """The job, as this user may know it."""
        return f"job {self._attempt.job_name}" if self._attempt.owner == owner else "another user's job"

    @property
    def over(self) -> bool:
        """Its end was told."""
        return self._told is not None and self._told.phase == "ended"

    def stop(self, grace_s: float) -> None:
        """End every process of the attempt; the end is told when nothing lives any more."""
        self._stopped = self._stopped or not any(worker.failed for worker in self._counted)
        self._order_stop(grace_s)

    # --- what its launchers say

    @property
    def _workers(self) -> list[Worker]:
        return [launcher.worker for launcher in self._launchers]

    @property
    def _survived(self) -> frozenset[int]:
        """Lost workers that the attempt goes on without."""
        if self._elastic is None or not self._began:
            return frozenset()
        return elastic.survived(self._workers, self._elastic, self._returned)

    @property
    def _counted(self) -> list[Worker]:
        survived = self._survived
        return [worker for worker in self._workers if worker.number not in survived]

    def _changed(self) -> None:
        counted = self._counted
        failed = [worker for worker in counted if worker.failed]
        if len(failed) == 1:
            self._lost_first = failed[0].stage is Stage.LOST
        step = verdict.next_step(counted, self._stopped)
        if step is Step.STOP and not self._graces:
            self._order_stop(self._attempt.spec.grace_s)
        if step is Step.GO and self._may_go:
            self._order_go()
        if self._returned and counted[0].stage is Stage.ENDED:
            self._end_late()
        self._say_running(counted)

    def _end_late(self) -> None:
        """Worker 0 is done: who was on the way back to it is not needed any more."""
        for number in self._returned:
            if not self._launchers[number].worker.stage.over:
                stop = control.stop(self._attempt.spec.grace_s)
                self._later(TOO_LATE_S, partial(self._launchers[number].order, stop))

    def _order_go(self) -> None:
        self._began = True
        for launcher in self._launchers:
            if launcher.worker.stage is Stage.READY:
                launcher.order(control.go())

    def _order_stop(self, grace_s: float) -> None:
        if grace_s in self._graces:
            return
        self._graces.add(grace_s)
        for launcher in self._launchers:
            launcher.order(control.stop(grace_s))
            if launcher.worker.stage is Stage.STARTING:  # it may be deep in an archive; no rank needs a grace
                self._later(UNPACKING_S, launcher.kill)
            self._later(grace_s + NO_ANSWER_S, launcher.kill)

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, act))

    # --- what it tells

    def _say_starting(self) -> None:
        ready = sum(worker.stage is not Stage.STARTING for worker in self._workers)
        if ready < len(self._workers) and not self._graces:
            self._say("waiting", Reason.STARTING, f"{ready} of {len(self._workers)} workers are prepared")

    def _say_running(self, counted: Sequence[Worker]) -> None:
        starting = [worker for worker in counted if worker.stage in (Stage.STARTING, Stage.READY)]
        missing = {*self._survived, *(worker.number for worker in starting if worker.number in self._returned)}
        runs = any(worker.stage is Stage.STARTED for worker in counted)
        if runs and not self._stopped and len(starting) == len(missing - self._survived):
            self._say("running", Reason.RUNNING, elastic.who_is_missing(missing, len(self._launchers)))

    def _end(self, reason: Reason, message: str) -> None:
        ranks = tuple(rank for worker in self._counted for rank in worker.ranks())
        when = verdict.ended_at(self._workers) or datetime.now(timezone.utc)
        self._say("ended", reason, message, ranks, when)

    def _say(
        self,
        phase: Literal["waiting", "running", "ended"],
        reason: Reason,
        message: str,
        ranks: tuple[RankReport, ...] = (),
        ended_at: datetime | None = None,
    ) -> None:
        infos = tuple(worker.info() for worker in self._workers)
        seen = Observation(
            self._attempt.job_id,
            self._attempt.number,
            phase,
            reason,
            message,
            infos,
            ranks,
            ended_at,
            self._remarks(phase),
        )
        if seen != self._told:
            self._told = seen
            self._tell(seen)

    def _remarks(self, phase: str) -> tuple[str, ...]:
        if phase == "ended":
            return (*outputs.remarks(worker.report for worker in self._workers), *self._conflicts)
        return self._how_it_started() if phase == "running" else ()

    def _how_it_started(self) -> tuple[str, ...]:
        why = self.fresh_because if self._pool is not None else self._never_warm
        return () if why is None else (f"its processes were started anew, not forked: {why}",)


def _write_private(path: str, text: str) -> None:
    """It holds the environment and the values of secrets: for this user's eyes."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
