"""Drives every job that is not final: observation -> decision -> stored -> acted on, in this order, always.

A crash between two of these steps is healed at the next start: what was decided but not stored is observed again, what
was stored but not acted on is acted on again (`Runtime.submit` and `stop` may be repeated). Nothing is acted on that is
not stored, so nothing starts twice. Decisions are `server_stub.lifecycle`'s.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from sqlalchemy.exc import OperationalError

from client_lib.errors import ClientLibError, StorageFull
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, Failure
from server_stub import lifecycle
from server_stub.diagnose import sentence
from server_stub.lifecycle import Decision, Job, Pauses, Stop
from server_stub.runtimes import Attempt, Observation, Runtime
from server_stub.service.active import Active
from server_stub.service.changes import Changes
from server_stub.service.clock import Clock
from server_stub.service.evidence import explain, script_change
from server_stub.service.watchdog import Watchdog
from server_stub.store import Store
from server_stub.store.rows import JobRow, save_job
from server_stub.tasks import Tasks

log = logging.getLogger(__name__)
_LONGEST_SAVE_PAUSE_S = 30.0

MakeAttempt = Callable[[Active], Attempt]


class Conductor:
    """The active jobs of one server, and the only place where they change."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        clock: Clock,
        pauses: Pauses,
        changes: Changes,
        make_attempt: MakeAttempt,
        on_end: Callable[[Active], Coroutine[Any, Any, None]],
    ) -> None:
        """`on_end` is awaited once for each job after its final state is stored."""
        self._store, self._runtime, self._clock = store, runtime, clock
        self._pauses, self._changes = pauses, changes
        self._make_attempt, self._on_end = make_attempt, on_end
        self._by_id: dict[str, Active] = {}
        self._by_name: dict[tuple[str, str], Active] = {}
        self._by_seq: dict[int, Active] = {}
        self._tasks = Tasks(log, "a job can't be driven on", logging.CRITICAL)
        self._watchdog = Watchdog(clock, runtime.signs_of_life, self.stop, self.tell)

    def __len__(self) -> int:
        """How many jobs are not final."""
        return len(self._by_id)

    def by_name(self, owner: str, name: str) -> Active | None:
        return self._by_name.get((owner, name))

    def by_id(self, job_id: str) -> Active | None:
        return self._by_id.get(job_id)

    def by_seq(self, seq: int) -> Active | None:
        return self._by_seq.get(seq)

    def take(self, active: Active) -> None:
        """Begin to drive a job as it is stored."""
        self._by_id[active.row.id] = active
        self._by_name[active.row.owner, active.row.name] = active
        self._by_seq[active.row.seq] = active
        self._act(active, active.job)

    async def close(self) -> None:
        """Stop driving. What is decided and not stored yet is decided again at the next start."""
        for active in self._by_id.values():
            active.cancel_timers()
        await self._tasks.close()

    def observe(self, seen: Observation) -> None:
        """The runtime's sink."""
        active = self._by_id.get(seen.job_id)
        if active is None or seen.attempt != active.job.attempt:
            return
        if seen.phase == "ended":
            self._take_down(active, seen)  # first: a final job says nothing more
        if seen.phase == "ended" and seen.reason is not Reason.COMPLETED:
            self._tasks.begin(self._explain_end(active, seen))
        else:
            self._take_in(active, seen, None)
            self._take_down(active, seen)

    def stop(self, active: Active, stop: Stop) -> None:
        """Order the end of the running attempt, or of the pause between two."""
        decision = lifecycle.ask_to_stop(active.job, stop, self._clock.now())
        if decision:
            self._decide(active, decision)

    def remove_at_end(self, active: Active) -> None:
        """Delete the job as soon as it is final."""
        active.remove_at_end = True
        active.decide(active.job)
        self._save_soon(active)

    def tell(self, active: Active, reason: Reason, message: str, **shown: Any) -> None:
        """An event beside the transitions; the state of the job stays as it is."""
        job = active.job
        active.events.append(
            Event(time=self._clock.now(), attempt=job.attempt, state=job.state, reason=reason, message=message)
        )
        active.decide(job, **shown)
        self._save_soon(active)

    # --- observation -> decision

    async def _explain_end(self, active: Active, seen: Observation) -> None:
        failure = await asyncio.to_thread(explain, seen, active.info, lambda: self._python_of(active))
        if failure and not seen.message:
            seen = replace(seen, message=sentence(failure))
        self._take_in(active, seen, failure)

    def _take_in(self, active: Active, seen: Observation, failure: Failure | None) -> None:
        before = active.job.state
        decision = lifecycle.observe(active.job, seen, self._clock.now(), self._pauses)
        shown: dict[str, Any] = {"workers": list(seen.workers)} if seen.workers else {}
        if decision is None:
            if shown and shown["workers"] != active.info.workers and not active.job.resume_at:
                self._refresh(active, active.job, **shown)
            return
        if not decision.transitions:
            self._refresh(active, decision.job, **shown)
            return
        self._decide(active, decision, **shown, **_ending(decision, failure))
        if before is not State.RUNNING and decision.job.state is State.RUNNING:
            self._tasks.begin(self._say_if_script_changed(active))

    def _take_down(self, active: Active, seen: Observation) -> None:
        """Remarks, which become events."""
        for remark in seen.remarks:
            if (seen.attempt, remark) not in active.remarks:
                active.remarks.add((seen.attempt, remark))
                self.tell(active, active.job.reason, remark)

    def _decide(self, active: Active, decision: Decision, **shown: Any) -> None:
        if decision.job.state.final:
            shown["finished_at"] = decision.transitions[-1].at
        active.decide(decision.job, decision.transitions, **shown)
        self._save_soon(active)

    async def _say_if_script_changed(self, active: Active) -> None:
        notice = await asyncio.to_thread(script_change, active.info, active.row.script_path)
        if notice and notice not in active.info.notices and not active.job.state.final:
            self.tell(active, active.job.reason, notice, notices=[*active.info.notices, notice])

    # --- decision -> stored

    def _refresh(self, active: Active, job: Job, **shown: Any) -> None:
        """Another message, other workers, and no step of the state machine: shown now, stored with the next step. A
        crash between loses nothing, as the runtime says it again; and each end of a job moves the whole queue."""
        if active.refresh(job, **shown):
            self._changes.publish(active.row.id)

    def _save_soon(self, active: Active) -> None:
        if not active.saving:
            active.saving = True
            self._tasks.begin(self._save(active))

    async def _save(self, active: Active) -> None:
        try:
            while active.version > active.row.version:
                job, info, row, events = active.job, active.info, active.next_row(), active.events
                active.events = []
                await self._store_row(active, row, events)
                active.stored_as(row, info)
                self._changes.publish(row.id)
                self._act(active, job)
        finally:
            active.saving = False

    async def _store_row(self, active: Active, row: JobRow, events: list[Event]) -> None:
        """Store, however long it takes: a full disk or a database that is away must not end a running job."""
        pause_s = 0.5
        while True:
            try:
                await self._store.write(lambda connection: save_job(connection, row, events))
                return
            except (StorageFull, OperationalError) as error:
                log.error("job %s: version %d can't be stored yet: %s", row.id, row.version, error)
            if active.job.stop:  # to stop is safe before it is stored, and may be what frees the disk
                self._stop_attempt(active, active.job)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_SAVE_PAUSE_S)

    # --- stored -> acted on

    def _act(self, active: Active, job: Job) -> None:
        """Bring the world to what is stored. Level, not edge: harmless to repeat."""
        if job.state.final:
            self._retire(active)
        elif job.resume_at:
            self._wait_to_resume(active, job)
        else:
            self._give(active, job)
            if job.stop:
                self._stop_attempt(active, job)
            elif job.state is State.RUNNING:
                self._watchdog.watch(active)

    def _give(self, active: Active, job: Job) -> None:
        if active.given == job.attempt:
            return
        active.given, active.silence_told = job.attempt, False
        try:
            self._runtime.submit(self._make_attempt(active))
        except ClientLibError as error:
            self.observe(Observation(active.row.id, job.attempt, "ended", Reason.START_FAILED, error.message))
        active.request = None

    def _stop_attempt(self, active: Active, job: Job) -> None:
        if active.stopped != job.attempt and active.given == job.attempt:
            active.stopped = job.attempt
            self._runtime.stop(active.row.id, job.attempt, active.info.spec.grace_s)

    def _wait_to_resume(self, active: Active, job: Job) -> None:
        assert job.resume_at
        active.cancel_timer("health")  # stop_timer goes on: it counts from the first start
        delay_s = (job.resume_at - self._clock.now()).total_seconds()
        delay_s = min(delay_s, self._pauses.longest)  # a clock that was set back must not make it days
        active.timers["resume"] = self._clock.call_later(delay_s, lambda: self._resume(active))

    def _resume(self, active: Active) -> None:
        if active.job.resume_at:
            self._decide(active, Decision(lifecycle.resume(active.job)))

    def _python_of(self, active: Active) -> str | None:
        return self._make_attempt(active).submitter.python

    def _retire(self, active: Active) -> None:
        active.cancel_timers()
        self._by_id.pop(active.row.id, None)
        self._by_name.pop((active.row.owner, active.row.name), None)
        self._by_seq.pop(active.row.seq, None)
        self._tasks.begin(self._on_end(active))


def _ending(decision: Decision, failure: Failure | None) -> dict[str, Any]:
    """What of JobInfo the end of an attempt sets; nothing while it goes on."""
    state = decision.job.state
    if not (state.final or decision.job.resume_at):
        return {}
    return {"failure": failure if state in (State.FAILED, State.RESTARTING) else None}
