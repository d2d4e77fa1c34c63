"""Drives every job that is not final: observation -> decision -> stored -> carried out, always in
this order.

A crash between two of these steps is repaired at the next start: a decision that was not stored is
made again from a new observation, and one that was stored but not carried out is carried out again
(`Runtime.submit` and `stop` may be repeated). A decision is stored before it is carried out, so no
attempt starts twice. `lifecycle` decides.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone

from client_lib.errors import ClientLibError, ServerError, StorageFull
from client_lib.spec.alarm import Idle
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, GroupInfo, LastGood, RaisedAlarm, StateChange
from server_stub.curves.alarms import Finding
from server_stub.curves.alerts import Alert
from server_stub.failures import explain, script_change
from server_stub.runtimes import Observation, Runtime
from server_stub.runtimes.tasks import Clock, Tasks
from server_stub.service import lifecycle
from server_stub.service.active import ActiveJob, ActiveJobs, StoppedAttempt
from server_stub.service.alarm_watch import AlarmWatch
from server_stub.service.attention import NOTHING, Seen, attention
from server_stub.service.cleanup import Cleanup
from server_stub.service.gate import Gate
from server_stub.service.job_files import JobFiles
from server_stub.service.job_metrics import MetricsReader
from server_stub.service.job_stacks import StackTaker
from server_stub.service.lifecycle import Decision, JobStatus, Stop
from server_stub.service.notifications import Notifier
from server_stub.service.watchdog import Watchdog
from server_stub.store import Store, StoreDamaged, StoreError, StoreUnavailable, group_rows
from server_stub.store.rows import JobRow, save_job

log = logging.getLogger(__name__)
_LONGEST_SAVE_PAUSE_S = 5.0
_JOBS_A_TURN = 50
_READ_AT_ONCE = 500  # jobs: a statement has a limited number of parameters


class Reconciler:
    """Drives the active jobs of one server; only this class changes them."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        clock: Clock,
        jobs: ActiveJobs,
        files: JobFiles,
        metrics: MetricsReader,
        stacks: StackTaker,
        notifier: Notifier,
        cleanup: Cleanup,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._clock = clock
        self._jobs = jobs
        self._files = files
        self._metrics = metrics
        self._notifier = notifier
        self._cleanup = cleanup
        self.gate = Gate(jobs.by_id)
        self._asked: set[str] = set()
        """Jobs and groups that others wait for, and that may have ended."""
        self._tasks = Tasks(log, "the state of a job can't be updated", logging.CRITICAL)
        self._watchdog = Watchdog(
            clock,
            runtime,
            metrics,
            stacks,
            self.stop,
            self.add_event,
            self._tell_hang,
        )
        self._alarms = AlarmWatch(clock, metrics, self._tell_alarm, self._tell_alert)

    def add(self, active: ActiveJob, failed: str | None = None) -> None:
        """Begin to drive a stored job. `failed`: a member of its group that has failed."""
        self._note_added(active)
        if why := self.gate.why_stop(active.row.group_id, failed):
            self.gate.holds(active)
            self.stop(active, Stop(Reason.CANCELLED, why))
        if not active.saving:  # else this follows
            self._carry_out(active, active.status)

    def add_group(self, group: GroupInfo, members: Sequence[ActiveJob]) -> None:
        """Begin to drive the stored members of a group, some in each turn of the event loop."""
        self.gate.open([group])
        for active in members:
            self._note_added(active)
            # The gate must know all members before the first one may end.
            self.gate.holds(active)
        self._tasks.begin(self._start_members(members))

    async def _start_members(self, members: Sequence[ActiveJob]) -> None:
        for number, active in enumerate(members):
            # a member that is missing has ended; one that is being saved is carried out after that
            if active.row.id in self._jobs.by_id and not active.saving:
                self._carry_out(active, active.status)
            if number % _JOBS_A_TURN == _JOBS_A_TURN - 1:
                await asyncio.sleep(0)

    def _note_added(self, active: ActiveJob) -> None:
        self._jobs.add(active)
        self._ask_end(each.id for each in active.info.dependencies if each.ended is None)

    async def close(self) -> None:
        """Stop driving. A decision that is not stored yet is made again at the next start."""
        for active in self._jobs.by_id.values():
            active.cancel_timers()
        await self._watchdog.close()
        await self._alarms.close()
        await self._tasks.close()

    def observe(self, seen: Observation) -> None:
        """Handle an observation of the runtime."""
        active = self._jobs.by_id.get(seen.job_id)
        if active is None or seen.attempt != active.info.attempt:
            return
        if seen.phase == "ended":
            self._add_notes(active, seen)  # first: a final job takes no more events
            self._alarms.note_end(active)
            self._tasks.begin(self._explain_end(active, seen))
        else:
            self._apply(active, seen)
            self._add_notes(active, seen)
        if seen.phase == "running":
            self._watchdog.note_quiet(active, seen.quiet)
        else:
            self._watchdog.forget_quiet(active)

    def stop(self, active: ActiveJob, stop: Stop) -> None:
        """Stop the running attempt, or end the pause between two attempts."""
        self._decide(active, lifecycle.ask_to_stop(active.status, stop, self._clock.now()))

    def stop_group(self, group_id: str, stop: Stop) -> list[ActiveJob]:
        """Stop the members of a group that have not ended, in one turn of the event
        loop: none starts in between.
        """
        members = [
            active for active in self._jobs.by_id.values() if active.row.group_id == group_id
        ]
        for active in members:
            self.stop(active, stop)
        return members

    def _tell_hang(self, active: ActiveJob, message: str, hangs: bool) -> None:
        decision = lifecycle.note_hang(active.status, message, self._clock.now(), hangs=hangs)
        self._decide(active, decision)
        if decision and decision.transitions:
            self._notifier.tell(active.row, active.info, "hangs" if hangs else "moves")

    def _tell_alarm(self, active: ActiveJob, found: Finding, has_ended: bool) -> None:
        """Carry out a rule. An attempt that has ended by itself is not stopped any more."""
        now = self._clock.now()
        action = found.rule.action
        raised = RaisedAlarm(
            rule=found.rule.text,
            sentence=found.sentence,
            time=now,
            last_good=_last_good(active, found) if action == "retry" else None,
        )
        stop = None
        if action != "notify" and not has_ended:
            stop = Stop(Reason.ALARM, found.sentence, retry=action == "retry")
        decision = lifecycle.note_alarm(active.status, raised, stop, now)
        if decision and action == "notify":
            active.untold.append("alarm")
        self._decide(active, decision)

    def _tell_alert(self, active: ActiveJob, alert: Alert) -> None:
        """Tell an alert that was not told in this attempt."""
        now = self._clock.now()
        raised = RaisedAlarm(rule=alert.source, sentence=alert.sentence, time=now)
        decision = lifecycle.note_alarm(active.status, raised, None, now)
        if decision:
            active.untold.append("alarm")
        self._decide(active, decision)

    def remove_at_end(self, active: ActiveJob) -> None:
        """Delete the job as soon as it is final."""
        active.remove_at_end = True
        self._decide(active, Decision(active.status))

    def add_event(self, active: ActiveJob, reason: Reason, message: str) -> None:
        """Record an event that is no transition; the state of the job does not change."""
        status = active.status
        now = self._clock.now()
        event = Event(
            time=now,
            attempt=status.info.attempt,
            state=status.info.state,
            reason=reason,
            message=message,
        )
        self._decide(active, Decision(status, (event,)))

    # --- observation -> decision

    async def _explain_end(self, active: ActiveJob, seen: Observation) -> None:
        try:
            if seen.first_failing is not None:
                failure = await asyncio.to_thread(
                    explain,
                    seen.first_failing,
                    active.info,
                    lambda: self._files.newest(active).submitter.python,
                )
                seen = replace(seen, first_failing=failure)
        except Exception as error:  # noqa: BLE001  # the job has ended, with or without an explanation
            _failed(active, error)
        step = None
        if active.info.spec.retry_reset_steps and seen.reason is not Reason.COMPLETED:
            step = await self._metrics.step(active.info)
        logs = await self._metrics.at_end(active.info)
        await self._alarms.last_look(active)
        for alert in logs.alerts:
            self._tell_alert(active, alert)
        self._apply(active, seen, step, logs)

    def _apply(
        self,
        active: ActiveJob,
        seen: Observation,
        step: float | None = None,
        logs: Seen = NOTHING,
    ) -> None:
        before = active.info.state
        decision = lifecycle.observe(active.status, seen, self._clock.now(), step)
        if decision and decision.status.info.state.final:
            status = decision.status
            ended = status.shows(attention=attention(status.info, logs))
            decision = decision._replace(status=ended)
        if decision and not decision.transitions:
            self._refresh(active, decision.status)
            return
        self._decide(active, decision)
        if before is not State.RUNNING and active.info.state is State.RUNNING:
            self._tasks.begin(self._report_changed_script(active))

    def _add_notes(self, active: ActiveJob, seen: Observation) -> None:
        for note in seen.notes:
            if (seen.attempt, note) not in active.reported:
                active.reported.add((seen.attempt, note))
                self.add_event(active, active.info.reason, note)

    def _decide(self, active: ActiveJob, decision: Decision | None) -> None:
        if decision is None:
            return
        active.decide(decision.status, decision.transitions)
        if not active.saving:
            active.saving = True
            self._tasks.begin(self._save(active))

    async def _report_changed_script(self, active: ActiveJob) -> None:
        info = active.info
        path = active.row.script_path
        # since the submit, the path may have become a link
        if path is None or await self._runtime.why_hidden(info.spec, info.owner, path):
            return
        notice = await asyncio.to_thread(script_change, info, path)
        if notice and notice not in active.info.notices and not active.info.state.final:
            active.status = active.status.shows(notices=[*active.info.notices, notice])
            self.add_event(active, active.info.reason, notice)

    # --- decision -> stored

    def _refresh(self, active: ActiveJob, status: JobStatus) -> None:
        """Update the message or the workers without a transition: users see it now, the next
        transition stores it. A crash before that loses nothing, because the runtime repeats it.
        Storing it would be costly: each job that ends changes the message of every job in the
        queue."""
        active.decide(status)
        if not active.saving:  # else users see it after the write in progress
            active.public = active.info
            self._jobs.publish(active.row.id)

    async def _save(self, active: ActiveJob) -> None:
        try:
            while active.info.version > active.row.version:
                status = active.status
                info = active.info
                row = active.next_row()
                events = active.events
                active.events = []
                untold = active.untold
                active.untold = []
                await self._store_row(active, row, events)
                before = active.row.state
                active.row = row
                active.public = info
                self._jobs.publish(row.id)
                if row.state != before:
                    self._jobs.publish_state(row.owner, StateChange(id=row.id, state=row.state))
                for event in dict.fromkeys(untold):  # one message names all alarms
                    self._notifier.tell(row, info, event)
                self._carry_out(active, status)
        finally:
            active.saving = False

    async def _store_row(self, active: ActiveJob, row: JobRow, events: list[Event]) -> None:
        """Store the row; repeat until it works, so that a full disk or an unreachable
        database ends no running job.
        """
        pause_s = 0.5
        while True:
            try:
                await self._files.note(row)
                await self._store.write(save_job, row, events)
                active.not_saved = None
                return
            except (StorageFull, StoreError) as error:
                log.error(
                    "job %s: version %d can't be stored yet: %s", row.id, row.version, error.message
                )
                active.not_saved = error
            except Exception as error:  # noqa: BLE001  # a task that ends here leaves the job as it is for ever
                active.not_saved = ServerError(_failed(active, error))
            self._jobs.publish(row.id)
            # a stop is safe before it is stored, and may free the disk; without a database another
            # server may decide, but none can take over a damaged one
            away = isinstance(active.not_saved, StoreUnavailable) and not isinstance(
                active.not_saved, StoreDamaged
            )
            if active.status.stop and not away:
                self._stop_attempt(active, active.status)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_SAVE_PAUSE_S)

    # --- stored -> carried out

    def _carry_out(self, active: ActiveJob, status: JobStatus) -> None:
        """Make the runtime match the stored status. It depends on the status
        alone, so it may be repeated.
        """
        for waiting in self.gate.waiting_for(active.row.id):
            self._hold(waiting, waiting.status, self.gate.holds(waiting))
        if status.info.state.final:
            self._retire(active)
        elif why := self.gate.holds(active):
            self._hold(active, status, why)
        elif status.resume_at:
            self._watchdog.leave(active)
            self._alarms.leave(active)
            delay_s = (status.resume_at - self._clock.now()).total_seconds()
            # a clock that was set back must not lengthen the pause
            delay_s = min(delay_s, lifecycle.LONGEST_PAUSE_S)
            active.timers["resume"] = self._clock.call_later(delay_s, lambda: self._resume(active))
        else:
            self._submit_attempt(active, status)
            if status.stop:
                self._stop_attempt(active, status)
            elif status.info.state is State.RUNNING:
                try:
                    self._watchdog.watch(active)
                    self._alarms.watch(active)
                except Exception as error:  # noqa: BLE001  # of this job: the others go on
                    self.stop(active, Stop(Reason.SERVER_ERROR, _failed(active, error)))

    def _ask_end(self, ids: Iterable[str]) -> None:
        """Let the jobs that wait for these jobs and groups go on, or end, if these have ended."""
        idle = not self._asked
        self._asked.update(ids)
        if idle and self._asked:
            self._tasks.begin(self._settle())

    async def _settle(self) -> None:
        while asked := [
            each
            for each in self._asked
            if each not in self._jobs.by_id and not self._jobs.members[each]
        ]:
            asked = asked[:_READ_AT_ONCE]
            try:
                states = await self._store.read(group_rows.states, asked)
            except StoreError as error:
                log.error("the ends that jobs wait for can't be read yet: %s", error.message)
                states = dict.fromkeys(asked, State.RUNNING)
            ended = {each: states.get(each, lifecycle.DELETED) for each in asked}
            ended = {
                each: state
                for each, state in ended.items()
                if state.final or state is lifecycle.DELETED
            }
            self._asked -= ended.keys()
            for job_or_group, state in ended.items():
                for number, active in enumerate(self.gate.release(job_or_group), 1):
                    now = self._clock.now()
                    active.stuck = False  # what is left of its wait is looked at again
                    self._decide(
                        active, lifecycle.note_dependency(active.status, job_or_group, state, now)
                    )
                    if number % _JOBS_A_TURN == 0:
                        await asyncio.sleep(0)
            if not ended:  # the database is away, or a group is being accepted
                await asyncio.sleep(_LONGEST_SAVE_PAUSE_S)
        self._asked.clear()

    def _hold(self, active: ActiveJob, status: JobStatus, why: str) -> None:
        if status.stop:
            self._end(active, Reason.CANCELLED, "")
        elif active.info.message != why:
            active.stuck = self.gate.is_stuck(active)
            self._refresh(active, active.status.shows(message=why))

    def _submit_attempt(self, active: ActiveJob, status: JobStatus) -> None:
        if active.submitted_attempt == status.info.attempt:
            return
        active.submitted_attempt = status.info.attempt
        try:
            attempt = self._files.newest(active)
            self._runtime.submit(attempt)
        except ClientLibError as error:
            self._end(active, Reason.START_FAILED, error.message)
        except Exception as error:  # noqa: BLE001  # of this job: the others go on
            self._end(active, Reason.SERVER_ERROR, _failed(active, error))
        else:
            if attempt.unreadable:
                self._stop_attempt(active, status)  # in this turn: it must not start
                self.stop(active, Stop(Reason.SERVER_ERROR, attempt.unreadable))
        active.request = None

    def _end(self, active: ActiveJob, reason: Reason, message: str) -> None:
        """End an attempt that the runtime does not have."""
        self.observe(Observation(active.row.id, active.info.attempt, "ended", reason, message))

    def _stop_attempt(self, active: ActiveJob, status: JobStatus) -> None:
        attempt = status.info.attempt
        interrupt = status.stop is not None and status.stop.interrupt
        stopped = StoppedAttempt(attempt, interrupt)
        if active.stopped != stopped and active.submitted_attempt == attempt:
            active.stopped = stopped
            grace_s = active.info.spec.grace_s
            self._runtime.stop(active.row.id, attempt, grace_s, interrupt=interrupt)

    def _resume(self, active: ActiveJob) -> None:
        if active.status.resume_at:
            self._decide(active, Decision(active.status._replace(resume_at=None)))

    def _retire(self, active: ActiveJob) -> None:
        active.cancel_timers()
        self._alarms.leave(active)
        self._jobs.remove(active)
        self._ask_end(
            each
            for each in (active.row.id, active.row.group_id or "")
            if self.gate.waiting_for(each)
        )
        self._notifier.ended(active.row)
        self._tasks.begin(self._cleanup.on_end(active))
        group_id = active.row.group_id
        failed = active.row.name if active.row.state is State.FAILED else None
        if group_id and (why := self.gate.why_stop(group_id, failed)):
            self.stop_group(group_id, Stop(Reason.CANCELLED, why))
        freed = self.gate.leave(active)
        if freed and not freed.saving:  # a member that is being saved is carried out after that
            self._carry_out(freed, freed.status)


def _last_good(active: ActiveJob, found: Finding) -> LastGood | None:
    """The point before which the next attempt starts; without a good point in this attempt its
    begin. None: the rule is about no curve."""
    if isinstance(found.rule.condition, Idle):
        return None
    if found.good is None:
        return LastGood(time=active.info.started_at or active.info.created_at)
    at = datetime.fromtimestamp(found.good.time, timezone.utc)
    return LastGood(step=found.good.step, time=at)


def _failed(active: ActiveJob, error: Exception) -> str:
    """Log an error of this server while it handled a job; return the message for the job."""
    log.critical("the server had an error in job %s", active.row.id, exc_info=error)
    return f"the server had an error in this job: {type(error).__name__}: {error}"
