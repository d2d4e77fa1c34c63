"""Watches running jobs: enforces stop_timer, health_params and smoke, and looks for hangs.

Silence is measured in checks, not in clock time: a clock that is set, a machine that slept or a
file server with another clock must neither end a job that writes logs nor spare one that hangs.

The launchers tell which ranks are quiet. As long as one is, the stacks of the job are taken, and
`failures.hangs` decides.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import timedelta

from client_lib.errors import ClientLibError
from client_lib.spec.job import STOP_TIMER_MAX, HealthAction, HealthParams
from client_lib.spec.stacks import RankStacks, named
from client_lib.spec.states import Reason, State
from server_stub.failures import hangs
from server_stub.runtimes import Runtime
from server_stub.runtimes.tasks import Clock, Tasks
from server_stub.service.active import ActiveJob
from server_stub.service.job_metrics import MetricsReader
from server_stub.service.job_stacks import StackTaker
from server_stub.service.lifecycle import Stop
from server_stub.worker_gateway.worker import Quiet

log = logging.getLogger(__name__)
CHECKS = 20
"""Checks of the logs in one `log_period`: silence is noticed at most a twentieth late, and never
early.
"""
SMOKE_S = 60
"""Longest run of a smoke test, if nothing shows that its ranks have made their first steps."""
_LOOK_S = 1.0
"""Time between two looks for the first steps of a smoke test."""
BETWEEN_S = 2.0
"""Time between the two snapshots of one look for a hang."""
FIRST_PAUSE_S = 10.0
"""Pause after the first look for a hang; while the same ranks are quiet, each later pause is twice
as long.
"""
LONGEST_PAUSE_S = 40.0
ACTION_S = 60.0
"""Time that a hang must have lasted before `hang_action` stops the job."""
UNHEARD_S = 60.0
"""Time within which launchers report their quiet ranks twice."""


@dataclass
class _Case:
    """A running attempt with quiet ranks."""

    attempt: int
    quiet: dict[int, float]
    found: hangs.Hang | None = None
    pause_s: float = FIRST_PAUSE_S


class Watchdog:
    """Event loop only."""

    def __init__(
        self,
        clock: Clock,
        runtime: Runtime,
        metrics: MetricsReader,
        stacks: StackTaker,
        stop: Callable[[ActiveJob, Stop], None],
        add_event: Callable[[ActiveJob, Reason, str], None],
        tell_hang: Callable[[ActiveJob, str, bool], None],
    ) -> None:
        """`stop` stops a job, `add_event` reports its silence; `tell_hang` gets a sentence when a
        job hangs (True), and when it goes on (False)."""
        self._clock = clock
        self._runtime = runtime
        self._metrics = metrics
        self._stacks = stacks
        self._stop = stop
        self._add_event = add_event
        self._tell_hang = tell_hang
        self._cases: dict[str, _Case] = {}
        self._tasks = Tasks(log, "a job can't be watched")

    async def close(self) -> None:
        await self._tasks.close()

    def watch(self, active: ActiveJob) -> None:
        """Set the timers of a job that runs or may run again; repeatable. A restart of the server
        sets the count of silent checks to zero."""
        first_start = active.row.first_started_at
        minutes = active.info.spec.stop_timer
        if first_start and minutes and "stop_timer" not in active.timers:
            # an earlier version took any number
            limit = timedelta(minutes=min(minutes, STOP_TIMER_MAX))
            left = first_start + limit - self._clock.now()
            left = min(left, limit)  # a clock that was set back must not make it longer
            stop = Stop(Reason.TIMEOUT, f"it ran for {minutes} min, the limit that stop_timer sets")
            active.timers["stop_timer"] = self._clock.call_later(
                left.total_seconds(), lambda: self._stop(active, stop)
            )
        health = active.info.spec.health_params
        if health and "health" not in active.timers:
            self._schedule_check(active, health, self._activity(active))
        if active.info.spec.smoke and "smoke" not in active.timers:
            self._schedule_look(active, SMOKE_S)

    def leave(self, active: ActiveJob) -> None:
        """Remove the timers that belong to an attempt; stop_timer counts from
        the first start of the job.
        """
        active.cancel_timer("health")
        active.cancel_timer("smoke")

    # --- health_params

    def _schedule_check(
        self, active: ActiveJob, health: HealthParams, activity: Hashable, checks: int = 0
    ) -> None:
        """`activity`: the runtime's signs of life; `checks`: checks that have found the same."""
        active.timers["health"] = self._clock.call_later(
            health.log_period * 60 / CHECKS, lambda: self._check(active, health, activity, checks)
        )

    def _check(
        self, active: ActiveJob, health: HealthParams, before: Hashable, checks: int
    ) -> None:
        activity = self._activity(active)
        checks = checks + 1 if activity == before else 0
        if checks >= CHECKS:
            silence = f"no line was logged for {health.log_period} min"
            if "notify" in health.sub_actions and checks == CHECKS:  # once
                self._add_event(active, Reason.HUNG_SILENT, silence)
            if health.action:
                restart = health.action is HealthAction.RESTART
                self._stop(
                    active, Stop(Reason.HUNG_SILENT, f"{silence} (health_params)", retry=restart)
                )
                return
        self._schedule_check(active, health, activity, checks)

    def _activity(self, active: ActiveJob) -> Hashable:
        try:
            return self._runtime.signs_of_life(active.row.id, active.info.attempt)
        except OSError:  # of a file server: the job may write, so this is no silence
            return object()

    # --- smoke

    def _schedule_look(self, active: ActiveJob, left_s: float) -> None:
        active.timers["smoke"] = self._clock.call_later(
            _LOOK_S, lambda: self._tasks.begin(self._look_for_steps(active, left_s - _LOOK_S))
        )

    async def _look_for_steps(self, active: ActiveJob, left_s: float) -> None:
        attempt = active.info.attempt
        seen = ""
        try:
            seen = await self._metrics.first_steps(active.info)
        finally:
            if active.info.attempt == attempt and active.info.state is State.RUNNING:
                if seen or left_s <= 0:
                    message = f"smoke test passed: {seen or f'no failure in {SMOKE_S} s'}"
                    self._stop(active, Stop(Reason.COMPLETED, message))
                else:
                    self._schedule_look(active, left_s)

    # --- hangs

    def note_quiet(self, active: ActiveJob, quiet: Quiet) -> None:
        """Note which ranks of a running job do nothing now."""
        job_id = active.row.id
        now = dict(quiet)
        case = self._cases.get(job_id)
        if case and (case.attempt, case.quiet.keys()) == (active.info.attempt, now.keys()):
            return
        active.cancel_timer("hang")
        found = case.found if case and case.attempt == active.info.attempt else None
        if case and found and not now.keys() >= found.guilty:
            moving = sorted(case.quiet.keys() - now.keys())
            lasted_s = time.monotonic() - min(case.quiet[rank] for rank in moving)
            verb = "moves" if len(moving) == 1 else "move"
            self._tell_hang(active, f"{named(moving)} {verb} again after {lasted_s:.0f} s", False)
            found = None
        elif case is None and not now and active.status.hung:
            # this server has restarted, or the ranks did not run
            active.timers["hang"] = self._clock.call_later(
                UNHEARD_S, lambda: self._tell_hang(active, "its ranks move again", False)
            )
        if now:
            self._cases[job_id] = _Case(active.info.attempt, now, found)
            self._tasks.begin(self._look_for_hang(active, self._cases[job_id]))
        else:
            self._cases.pop(job_id, None)

    def forget_quiet(self, active: ActiveJob) -> None:
        """Note that the attempt has ended, or does not run yet."""
        active.cancel_timer("hang")
        self._cases.pop(active.row.id, None)

    async def _look_for_hang(self, active: ActiveJob, case: _Case) -> None:
        """Look at the job, tell what is found, act if it lasts; look again later
        while nothing has changed.
        """
        snapshots = await self._snapshots(active)
        if self._cases.get(active.row.id) is not case or active.status.stop:
            return
        if snapshots:
            now = time.monotonic()
            clock = self._clock.now()
            since = {rank: clock - timedelta(seconds=now - at) for rank, at in case.quiet.items()}
            found = hangs.find(*snapshots, since, case.found is not None, _ended_workers(active))
            if found and not (case.found and case.found.guilty == found.guilty):
                self._tell_hang(active, found.message, True)
            elif not found and (case.found or active.status.hung):
                self._tell_hang(active, "no rank waits for another one any more", False)
            case.found = found
            action = active.info.spec.hang_action
            retry_on = Reason.HUNG in (active.info.spec.retry_on or ())
            lasts_s = now - max(case.quiet[rank] for rank in found.guilty) if found else 0.0
            if found and (action != "report" or retry_on) and lasts_s >= ACTION_S:
                why = "hang_action" if action != "report" else "retry_on"
                self._stop(
                    active, Stop(Reason.HUNG, f"{found.message} ({why})", retry=action == "retry")
                )
        # until `hang_action` may act
        left_s = ACTION_S - (time.monotonic() - max(case.quiet.values()))
        pause_s = min(case.pause_s, left_s) if left_s > 0 else case.pause_s
        active.timers["hang"] = self._clock.call_later(
            pause_s, lambda: self._tasks.begin(self._look_for_hang(active, case))
        )
        case.pause_s = min(2 * case.pause_s, LONGEST_PAUSE_S)

    async def _snapshots(
        self, active: ActiveJob
    ) -> tuple[list[RankStacks], list[RankStacks]] | None:
        """The stacks of all ranks, twice; None: some are not known, and a rank that
        is not seen may be at work.
        """
        try:
            waited = asyncio.Event()
            self._clock.call_later(BETWEEN_S, waited.set)
            before = await self._stacks.take(active.info)
            await waited.wait()
            after = await self._stacks.take(active.info)
        except ClientLibError:  # it has just ended
            return None
        known = len(_ended_workers(active))  # each is one of the problems
        return (
            None
            if max(len(before.problems), len(after.problems)) > known
            else (before.ranks, after.ranks)
        )


def _ended_workers(active: ActiveJob) -> list[int]:
    return [worker.worker for worker in active.info.workers if worker.state == "ended"]
