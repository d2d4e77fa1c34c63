"""stop_timer and health_params: when a running job is looked at next, and what is then ordered.

One timer per rule and running job. Silence is counted in looks and not in times: a clock that is set, a machine that
slept or a file server whose clock is another's must neither end a job that talks nor spare one that hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import timedelta

from client_lib.spec.job import HealthAction, HealthParams
from client_lib.spec.states import Reason
from server_stub.lifecycle import Stop
from server_stub.service.active import Active
from server_stub.service.clock import Clock

LOOKS = 20
"""Looks at the logs in one `log_period`: silence is noticed at most a twentieth late, and never early."""

SignsOfLife = Callable[[str, int], Hashable]


class Watchdog:
    """Orders are carried out by the two functions that it is given."""

    def __init__(
        self,
        clock: Clock,
        signs_of_life: SignsOfLife,
        stop: Callable[[Active, Stop], None],
        tell: Callable[[Active, Reason, str], None],
    ) -> None:
        self._clock = clock
        self._signs_of_life = signs_of_life
        self._stop = stop
        self._tell = tell

    def watch(self, active: Active) -> None:
        """Set the timers of a job that runs or may run again; harmless to repeat. A server that finds a job again
        begins to count its silence anew."""
        if "stop_timer" not in active.timers:
            self._limit(active)
        health = active.info.spec.health_params
        if health and "health" not in active.timers:
            active.heard, active.quiet_looks = self._heard(active), 0
            self._look_again(active, health)

    def _limit(self, active: Active) -> None:
        first_start, minutes = active.row.first_started_at, active.info.spec.stop_timer
        if first_start and minutes:
            limit = timedelta(minutes=minutes)
            left = first_start + limit - self._clock.now()
            left = min(left, limit)  # a clock that was set back must not make it longer
            active.timers["stop_timer"] = self._clock.call_later(
                left.total_seconds(), lambda: self._out_of_time(active)
            )

    def _out_of_time(self, active: Active) -> None:
        minutes = active.info.spec.stop_timer
        self._stop(active, Stop(Reason.TIMEOUT, f"it ran for {minutes} min, the limit that stop_timer sets"))

    def _look_again(self, active: Active, health: HealthParams) -> None:
        active.timers["health"] = self._clock.call_later(
            health.log_period * 60 / LOOKS, lambda: self._look(active, health)
        )

    def _look(self, active: Active, health: HealthParams) -> None:
        heard = self._heard(active)
        if heard != active.heard:
            active.heard, active.quiet_looks, active.silence_told = heard, 0, False
        else:
            active.quiet_looks += 1
        if active.quiet_looks < LOOKS or not self._on_silence(active, health):
            self._look_again(active, health)

    def _on_silence(self, active: Active, health: HealthParams) -> bool:
        """True: the job was ordered to stop."""
        silence = f"no line was logged for {health.log_period} min"
        if "notify" in health.sub_actions and not active.silence_told:
            active.silence_told = True
            self._tell(active, Reason.HUNG_SILENT, silence)
        if health.action:
            restart = health.action is HealthAction.RESTART
            self._stop(active, Stop(Reason.HUNG_SILENT, f"{silence} (health_params)", retry=restart))
        return health.action is not None

    def _heard(self, active: Active) -> Hashable:
        return self._signs_of_life(active.row.id, active.job.attempt)
