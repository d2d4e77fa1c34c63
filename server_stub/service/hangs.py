"""Watches running jobs for hangs: looks at the stacks of a job as long as one of its ranks does nothing.

The launchers tell which ranks are quiet; `failures.hangs` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from client_lib.errors import ClientLibError
from client_lib.spec.stacks import JobStacks, RankStacks, named
from client_lib.spec.states import Reason
from client_lib.spec.wire import JobInfo
from server_stub.failures import hangs
from server_stub.runtimes.tasks import Tasks
from server_stub.service.active import ActiveJob
from server_stub.service.clock import Clock
from server_stub.service.lifecycle import Stop
from server_stub.worker_gateway import Quiet

log = logging.getLogger(__name__)
BETWEEN_S = 2.0
"""Seconds between the two snapshots of one look."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 40.0
"""Seconds between two looks while the same ranks are quiet: 10, 20, 40, 40 ..."""
ACTION_S = 60.0
"""A hang must have lasted for this time when `hang_action` stops the job."""
UNHEARD_S = 60.0
"""Launchers tell twice within this time which ranks are quiet."""

TakeStacks = Callable[[JobInfo], Awaitable[JobStacks]]


@dataclass
class _Case:
    """A running attempt with quiet ranks."""

    attempt: int
    quiet: dict[int, float]
    found: hangs.Hang | None = None
    pause_s: float = FIRST_PAUSE_S


class HangWatch:
    """Event loop only."""

    def __init__(
        self,
        clock: Clock,
        take_stacks: TakeStacks,
        tell: Callable[[ActiveJob, str, bool], None],
        stop: Callable[[ActiveJob, Stop], None],
    ) -> None:
        """`tell` gets a sentence when a job hangs (True), and when it goes on (False)."""
        self._clock, self._take, self._tell, self._stop = clock, take_stacks, tell, stop
        self._cases: dict[str, _Case] = {}
        self._tasks = Tasks(log, "a job can't be watched for hangs")

    async def close(self) -> None:
        await self._tasks.close()

    def note(self, active: ActiveJob, quiet: Quiet) -> None:
        """Note which ranks of a running job do nothing now."""
        job_id, now = active.row.id, dict(quiet)
        case = self._cases.get(job_id)
        if case and (case.attempt, case.quiet.keys()) == (active.status.attempt, now.keys()):
            return
        active.cancel_timer("hang")
        found = case.found if case and case.attempt == active.status.attempt else None
        if case and found and not now.keys() >= found.guilty:
            self._tell(active, _moves(case, now), False)
            found = None
        elif case is None and not now and active.status.hung:  # `forget` was called meanwhile, or this server started
            moves = partial(self._tell, active, "its ranks move again", False)
            active.timers["hang"] = self._clock.call_later(UNHEARD_S, moves)
        if now:
            self._cases[job_id] = _Case(active.status.attempt, now, found)
            self._tasks.begin(self._look(active, self._cases[job_id]))
        else:
            self._cases.pop(job_id, None)

    def forget(self, active: ActiveJob) -> None:
        """Note that the attempt has ended, or does not run yet."""
        active.cancel_timer("hang")
        self._cases.pop(active.row.id, None)

    async def _look(self, active: ActiveJob, case: _Case) -> None:
        """Look at the job; look again later while nothing has changed."""
        snapshots = await self._snapshots(active)
        if self._cases.get(active.row.id) is not case or active.status.stop:
            return
        if snapshots:
            since, known = self._since(case), case.found is not None
            self._conclude(active, case, hangs.find(*snapshots, since, known, _ended_workers(active)))
        left_s = ACTION_S - (time.monotonic() - max(case.quiet.values()))  # until `hang_action` may act
        pause_s = min(case.pause_s, left_s) if left_s > 0 else case.pause_s
        active.timers["hang"] = self._clock.call_later(pause_s, lambda: self._tasks.begin(self._look(active, case)))
        case.pause_s = min(2 * case.pause_s, LONGEST_PAUSE_S)

    async def _snapshots(self, active: ActiveJob) -> tuple[list[RankStacks], list[RankStacks]] | None:
        """The stacks of all ranks, twice; None: some are not known, and a rank that is not seen may be at work."""
        try:
            waited = asyncio.Event()
            self._clock.call_later(BETWEEN_S, waited.set)
            before = await self._take(active.info)
            await waited.wait()
            after = await self._take(active.info)
        except ClientLibError:  # it has just ended
            return None
        known = len(_ended_workers(active))  # each is one of the problems
        return None if max(len(before.problems), len(after.problems)) > known else (before.ranks, after.ranks)

    def _since(self, case: _Case) -> dict[int, datetime]:
        """The quiet ranks, and since when, by the clock."""
        now, clock = time.monotonic(), self._clock.now()
        return {rank: clock - timedelta(seconds=now - at) for rank, at in case.quiet.items()}

    def _conclude(self, active: ActiveJob, case: _Case, found: hangs.Hang | None) -> None:
        if found and not (case.found and case.found.guilty == found.guilty):
            self._tell(active, found.message, True)
        elif not found and (case.found or active.status.hung):
            self._tell(active, "no rank waits for another one any more", False)
        case.found = found
        if found:
            self._act(active, case, found)

    def _act(self, active: ActiveJob, case: _Case, found: hangs.Hang) -> None:
        action = active.info.spec.hang_action
        lasts_s = time.monotonic() - max(case.quiet[rank] for rank in found.guilty)
        retry_on = Reason.HUNG in (active.info.spec.retry_on or ())
        if (action != "report" or retry_on) and lasts_s >= ACTION_S:
            why = "hang_action" if action != "report" else "retry_on"
            self._stop(active, Stop(Reason.HUNG, f"{found.message} ({why})", retry=action == "retry"))


def _ended_workers(active: ActiveJob) -> list[int]:
    return [worker.worker for worker in active.info.workers if worker.state == "ended"]


def _moves(case: _Case, now: dict[int, float]) -> str:
    moving = sorted(case.quiet.keys() - now.keys())
    lasted_s = time.monotonic() - min(case.quiet[rank] for rank in moving)
    return f"{named(moving)} {'moves' if len(moving) == 1 else 'move'} again after {lasted_s:.0f} s"
