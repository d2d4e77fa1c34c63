"""Looks at the metrics of running jobs that have rules about them (`alarm`), and for alerts of
their scripts (`client_lib.alert`).

What was found is kept with the job, so that a rule acts once in an attempt, also where a new server
reads the logs of the attempt again from their begin.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from client_lib.spec.alarm import Rule, parse
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from server_stub.curves.alarms import Alarms, Finding
from server_stub.curves.alerts import Alert
from server_stub.runtimes.tasks import Clock, Tasks
from server_stub.service.active import ActiveJob
from server_stub.service.job_metrics import END_S, MetricsReader

log = logging.getLogger(__name__)
PAUSE_S = 2.0
"""Shortest pause between two looks at a job with rules, ..."""
ALERTS_PAUSE_S = 10.0
"""... of a job whose alerts alone are wanted, because it has a webhook, ..."""
PAUSE_TIMES = 20
"""... and as a multiple of the time that the look before took, ..."""
PAUSE_MAX_S = 10.0
"""... up to this pause."""
_TIMER = "alarm"
_Read = Callable[[JobInfo, Alarms], Awaitable[list[Finding]]]


@dataclass
class _Watched:
    """The rules of a running attempt."""

    attempt: int
    alarms: Alarms
    looking: asyncio.Lock
    has_ended: bool = False


class AlarmWatch:
    """Event loop only."""

    def __init__(
        self,
        clock: Clock,
        metrics: MetricsReader,
        tell: Callable[[ActiveJob, Finding, bool], None],
        tell_alert: Callable[[ActiveJob, Alert], None],
    ) -> None:
        """`tell` gets each rule of a job that has become true, and whether the attempt has
        ended; `tell_alert` gets each alert, in each look again."""
        self._clock = clock
        self._metrics = metrics
        self._tell = tell
        self._tell_alert = tell_alert
        self._watched: dict[str, _Watched] = {}
        self._tasks = Tasks(log, "the alarms of a job can't be looked at")

    async def close(self) -> None:
        await self._tasks.close()

    def watch(self, active: ActiveJob) -> None:
        """Begin to look at a job that runs; repeatable. An attempt that has ended is not looked at
        again."""
        if not _is_watched(active) or _TIMER in active.timers:
            return
        if not self._of(active).has_ended:
            self._schedule(active, _pause(active))

    def leave(self, active: ActiveJob) -> None:
        """Forget the attempt."""
        active.cancel_timer(_TIMER)
        self._watched.pop(active.row.id, None)

    def note_end(self, active: ActiveJob) -> None:
        """Note that the attempt has ended: from now on no rule gives an order to stop it."""
        active.cancel_timer(_TIMER)
        self._of(active).has_ended = True

    async def last_look(self, active: ActiveJob) -> None:
        """Evaluate the rules over the whole logs of an attempt that has ended, if the logs can be
        read within `END_S`. An error is logged: the job must end."""
        if not (_is_watched(active) and active.info.state is State.RUNNING):
            return
        try:
            await asyncio.wait_for(self._look(active, self._metrics.alarms_at_end), END_S)
        except asyncio.TimeoutError:
            log.warning("the alarms of job %s can't be read in time at its end", active.row.id)
        except Exception:  # a job may write anything to its log
            log.exception("the alarms of job %s can't be read at its end", active.row.id)

    def _schedule(self, active: ActiveJob, pause_s: float) -> None:
        active.timers[_TIMER] = self._clock.call_later(
            pause_s, lambda: self._tasks.begin(self._look_again(active))
        )

    async def _look_again(self, active: ActiveJob) -> None:
        attempt = active.info.attempt
        began = time.monotonic()
        try:
            if active.info.spec.alarm:
                await self._look(active, self._metrics.alarms)
            alerts = await self._metrics.alerts(active.info)
            if active.info.attempt == attempt:
                for alert in alerts:
                    self._tell_alert(active, alert)
        finally:
            took_s = time.monotonic() - began
            runs = (active.info.attempt, active.info.state) == (attempt, State.RUNNING)
            if runs and not self._of(active).has_ended:
                longer_s = min(PAUSE_TIMES * took_s, PAUSE_MAX_S)
                self._schedule(active, max(_pause(active), longer_s))

    async def _look(self, active: ActiveJob, read: _Read) -> None:
        watched = self._of(active)
        if watched.alarms.is_done:
            return
        async with watched.looking:
            findings = await read(active.info, watched.alarms)
        if active.info.attempt == watched.attempt:
            for finding in findings:
                self._tell(active, finding, watched.has_ended)

    def _of(self, active: ActiveJob) -> _Watched:
        known = self._watched.get(active.row.id)
        if known is None or known.attempt != active.info.attempt:
            found = [each.rule for each in active.info.alarms]
            alarms = Alarms(_rules(active), found)
            known = _Watched(active.info.attempt, alarms, asyncio.Lock())
            self._watched[active.row.id] = known
        return known


def _is_watched(active: ActiveJob) -> bool:
    """True if the user wants to know what its metrics show while the job runs."""
    spec = active.info.spec
    return spec.observe and bool(spec.alarm or spec.notify)


def _pause(active: ActiveJob) -> float:
    return PAUSE_S if active.info.spec.alarm else ALERTS_PAUSE_S


def _rules(active: ActiveJob) -> list[Rule]:
    """The rules that this server knows: a newer one may have stored others."""
    rules = []
    for text in active.info.spec.alarm:
        with suppress(ValueError):
            rules.append(parse(text))
    return rules
