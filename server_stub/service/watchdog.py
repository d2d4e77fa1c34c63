"""Enforces stop_timer, health_params and smoke with one timer per rule and running job.

Silence is measured in checks, not in clock time: a clock that is set, a machine that slept or a file server with
another clock must neither end a job that writes logs nor spare one that hangs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Hashable
from datetime import timedelta

from client_lib.spec.job import STOP_TIMER_MAX, HealthAction, HealthParams
from client_lib.spec.states import Reason, State
from server_stub.runtimes.tasks import Tasks
from server_stub.service.active import ActiveJob
from server_stub.service.clock import Clock
from server_stub.service.lifecycle import Stop

log = logging.getLogger(__name__)

CHECKS = 20
"""Checks of the logs in one `log_period`: silence is noticed at most a twentieth late, and never early."""

SMOKE_S = 60
"""Seconds that the ranks of a smoke test run, if nothing shows that they have made their first steps."""
_LOOK_S = 1.0

SignsOfLife = Callable[[str, int], Hashable]
FirstSteps = Callable[[ActiveJob], Awaitable[str]]


class Watchdog:
    """Calls `stop` to stop a job and `add_event` to report its silence."""

    def __init__(
        self,
        clock: Clock,
        signs_of_life: SignsOfLife,
        first_steps: FirstSteps,
        stop: Callable[[ActiveJob, Stop], None],
        add_event: Callable[[ActiveJob, Reason, str], None],
    ) -> None:
        """`first_steps`: what shows that a job has made some; "": nothing yet."""
        self._clock = clock
        self._signs_of_life, self._first_steps = signs_of_life, first_steps
        self._stop = stop
        self._add_event = add_event
        self._tasks = Tasks(log, "the first steps of a job can't be read")

    async def close(self) -> None:
        await self._tasks.close()

    def watch(self, active: ActiveJob) -> None:
        """Set the timers of a job that runs or may run again; repeatable. A restart of the server sets the count of
        silent checks to zero."""
        if "stop_timer" not in active.timers:
            self._limit(active)
        health = active.info.spec.health_params
        if health and "health" not in active.timers:
            active.last_activity, active.quiet_checks = self._activity(active), 0
            self._schedule_check(active, health)
        if active.info.spec.smoke and "smoke" not in active.timers:
            self._schedule_look(active, SMOKE_S)

    def leave(self, active: ActiveJob) -> None:
        """Remove the timers that belong to an attempt; stop_timer counts from the first start of the job."""
        active.cancel_timer("health")
        active.cancel_timer("smoke")

    def _limit(self, active: ActiveJob) -> None:
        first_start, minutes = active.row.first_started_at, active.info.spec.stop_timer
        if first_start and minutes:
            limit = timedelta(minutes=min(minutes, STOP_TIMER_MAX))  # an earlier version took any number
            left = first_start + limit - self._clock.now()
            left = min(left, limit)  # a clock that was set back must not make it longer
            active.timers["stop_timer"] = self._clock.call_later(
                left.total_seconds(), lambda: self._out_of_time(active)
            )

    def _out_of_time(self, active: ActiveJob) -> None:
        minutes = active.info.spec.stop_timer
        self._stop(active, Stop(Reason.TIMEOUT, f"it ran for {minutes} min, the limit that stop_timer sets"))

    def _schedule_check(self, active: ActiveJob, health: HealthParams) -> None:
        active.timers["health"] = self._clock.call_later(
            health.log_period * 60 / CHECKS, lambda: self._check(active, health)
        )

    def _check(self, active: ActiveJob, health: HealthParams) -> None:
        activity = self._activity(active)
        if activity != active.last_activity:
            active.last_activity, active.quiet_checks, active.silence_reported = activity, 0, False
        else:
            active.quiet_checks += 1
        if active.quiet_checks < CHECKS or not self._on_silence(active, health):
            self._schedule_check(active, health)

    def _on_silence(self, active: ActiveJob, health: HealthParams) -> bool:
        """Handle a silent job. Returns True if it was stopped."""
        silence = f"no line was logged for {health.log_period} min"
        if "notify" in health.sub_actions and not active.silence_reported:
            active.silence_reported = True
            self._add_event(active, Reason.HUNG_SILENT, silence)
        if health.action:
            restart = health.action is HealthAction.RESTART
            self._stop(active, Stop(Reason.HUNG_SILENT, f"{silence} (health_params)", retry=restart))
        return health.action is not None

    def _activity(self, active: ActiveJob) -> Hashable:
        return self._signs_of_life(active.row.id, active.status.attempt)

    def _schedule_look(self, active: ActiveJob, left_s: float) -> None:
        active.timers["smoke"] = self._clock.call_later(_LOOK_S, lambda: self._tasks.begin(self._look(active, left_s)))

    async def _look(self, active: ActiveJob, left_s: float) -> None:
        attempt, seen = active.status.attempt, ""
        try:
            seen = await self._first_steps(active)
        finally:
            if active.status.attempt == attempt and active.status.state is State.RUNNING:
                self._end_smoke(active, left_s - _LOOK_S, seen)

    def _end_smoke(self, active: ActiveJob, left_s: float, seen: str) -> None:
        if seen or left_s <= 0:
            self._stop(active, Stop(Reason.COMPLETED, f"smoke test passed: {seen or f'no failure in {SMOKE_S} s'}"))
        else:
            self._schedule_look(active, left_s)
