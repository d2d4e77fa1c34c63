"""stop_timer and health_params: when a running job is looked at next, and what is then ordered.

One timer per rule and running job, set to the moment at which the rule could first be broken.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from client_lib.spec.job import HealthAction, HealthParams
from client_lib.spec.states import Reason
from server_stub.lifecycle import Stop
from server_stub.service.active import Active
from server_stub.service.clock import Clock

SignsOfLife = Callable[[str, int], datetime | None]


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
        """Set the timers of a job that runs or may run again; harmless to repeat."""
        first_start, minutes = active.row.first_started_at, active.info.spec.stop_timer
        if first_start and minutes and "stop_timer" not in active.timers:
            self._at(active, "stop_timer", first_start + timedelta(minutes=minutes), self._out_of_time)
        health = active.info.spec.health_params
        if health and "health" not in active.timers:
            self._at(active, "health", self._last_life(active) + _period(health), self._look)

    def _at(self, active: Active, name: str, when: datetime, act: Callable[[Active], None]) -> None:
        delay_s = (when - self._clock.now()).total_seconds()
        active.timers[name] = self._clock.call_later(delay_s, lambda: act(active))

    def _out_of_time(self, active: Active) -> None:
        minutes = active.info.spec.stop_timer
        self._stop(active, Stop(Reason.TIMEOUT, f"it ran for {minutes} min, the limit that stop_timer sets"))

    def _look(self, active: Active) -> None:
        health = active.info.spec.health_params
        assert health
        life = self._last_life(active)
        if life + _period(health) > self._clock.now():
            active.silence_told = False
            self._at(active, "health", life + _period(health), self._look)
            return
        self._on_silence(active, health)

    def _on_silence(self, active: Active, health: HealthParams) -> None:
        silence = f"no line was logged for {health.log_period} min"
        if "notify" in health.sub_actions and not active.silence_told:
            active.silence_told = True
            self._tell(active, Reason.HUNG_SILENT, silence)
        if health.action:
            restart = health.action is HealthAction.RESTART
            self._stop(active, Stop(Reason.HUNG_SILENT, f"{silence} (health_params)", retry=restart))
        else:
            self._at(active, "health", self._clock.now() + _period(health), self._look)

    def _last_life(self, active: Active) -> datetime:
        started_at = active.info.started_at or self._clock.now()
        return max(started_at, self._signs_of_life(active.row.id, active.job.attempt) or started_at)


def _period(health: HealthParams) -> timedelta:
    return timedelta(minutes=health.log_period)
