"""A job that is not final, in memory: what was decided, what of it is on disk, what of it is shown."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, JobInfo, SubmitRequest
from server_stub.lifecycle import Job, Stop, Transition
from server_stub.service.clock import Timer
from server_stub.service.values import JobText
from server_stub.store.rows import JobRow

VERSIONS_NOT_STORED = 100_000
"""Versions go up by this at a restart of the server: those that were shown and not stored must not come again."""


@dataclass
class Active:
    """Changed on the event loop's thread only, by the conductor."""

    row: JobRow
    """As it was stored last."""
    version: int
    """Of `info`."""
    job: Job
    """What the state machine sees of `info`."""
    request: SubmitRequest | None = None
    """Kept from the submit to the first start; later read again from the disk."""
    events: list[Event] = field(default_factory=list)
    """Not stored yet."""
    saving: bool = False
    given: int = 0
    """The newest attempt that the runtime was given by this server process."""
    stopped: int = 0
    """The newest attempt that it was told to stop."""
    heard: Hashable = None
    """The runtime's signs of life at the last look of the watchdog."""
    quiet_looks: int = 0
    """Looks since then that found the same."""
    silence_told: bool = False
    remarks: set[tuple[int, str]] = field(default_factory=set)
    """Told already: attempt and sentence."""
    remove_at_end: bool = False
    timers: dict[str, Timer] = field(default_factory=dict)
    _info: JobInfo | None = None
    """`info`, but for what was decided since; None: as the row has it."""
    _undone: dict[str, Any] = field(default_factory=dict)
    """Fields of `info` that were decided since, besides those of `job`."""
    _public: JobInfo | None = None
    """None: it is `info`."""
    _text: JobText | None = None

    @property
    def info(self) -> JobInfo:
        """As it was decided last: newer than the row while a write is on its way. Made when somebody looks: thousands
        wait, and hear of nothing but their place in the queue."""
        info = self._info or JobInfo.model_validate_json(self.row.info)
        if info.version != self.version:
            job = self.job
            decided = {"state": job.state, "reason": job.reason, "message": job.message, "attempt": job.attempt}
            info = info.model_copy(update={**decided, **self._undone, "version": self.version})
        self._info, self._undone = info, {}
        return info

    @property
    def public(self) -> JobInfo:
        """As it is shown: what is stored, and newer messages, which a runtime says again after a crash."""
        return self._public or self.info

    @property
    def public_version(self) -> int:
        return self._public.version if self._public else self.version

    @property
    def text(self) -> JobText:
        """`public`, ready to send."""
        if self._text is None or self._text.version != self.public_version:
            public = self.public
            self._text = JobText(public.model_dump_json().encode(), public.version, public.state)
        return self._text

    def decide(self, job: Job, transitions: Sequence[Transition] = (), **shown: Any) -> None:
        """Take over a decision, which is shown when it is stored. `shown` are further fields of JobInfo."""
        self._public = self.public
        for step in transitions:
            self.events.append(Event(time=step.at, **{k: v for k, v in step._asdict().items() if k != "at"}))
            if step.state is State.RUNNING and self.job.state is not State.RUNNING:
                shown["started_at"] = step.at
        self._become(job, shown)

    def refresh(self, job: Job, **shown: Any) -> bool:
        """Take over what needs no storing. True: it is shown from now on; False: as soon as what is being stored is."""
        if self.saving:
            self.decide(job, **shown)
            return False
        self._become(job, shown)
        self._public = None
        return True

    def _become(self, job: Job, shown: dict[str, Any]) -> None:
        self.job = job
        self.version += 1
        self._undone.update(shown)

    def next_row(self) -> JobRow:
        """The row of `info` as it is now."""
        return self.row._replace(
            state=self.info.state,
            version=self.info.version,
            attempt=self.info.attempt,
            info=self.info.model_dump_json(),
            first_started_at=self.row.first_started_at or self.info.started_at,
            resume_at=self.job.resume_at,
            finished_at=self.info.finished_at,
            stop=_stop_text(self.job.stop),
            remove_at_end=self.remove_at_end,
        )

    def stored_as(self, row: JobRow, shown: JobInfo) -> None:
        """A version is on disk, and may be shown."""
        if row.version > self.row.version:
            self.row = row
        if shown.version > self.public_version:
            self._public = shown
            self._text = _text_of(row)

    def cancel_timer(self, name: str) -> None:
        if timer := self.timers.pop(name, None):
            timer.cancel()

    def cancel_timers(self) -> None:
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()


def accepted(row: JobRow, request: SubmitRequest) -> Active:
    """A job that was stored just now."""
    return Active(row, row.version, Job(max_retry=request.spec.max_retry or 0), request, _text=_text_of(row))


def from_row(row: JobRow) -> Active:
    """A job as a server process before this one left it."""
    info = JobInfo.model_validate_json(row.info)
    job = Job(
        state=info.state,
        reason=info.reason,
        message=info.message,
        attempt=info.attempt,
        max_retry=info.spec.max_retry or 0,
        stop=_stop_of(row.stop),
        resume_at=row.resume_at,
    )
    return Active(row, info.version + VERSIONS_NOT_STORED, job, remove_at_end=row.remove_at_end)


def _text_of(row: JobRow) -> JobText:
    return JobText(row.info.encode(), row.version, row.state)


def _stop_text(stop: Stop | None) -> str | None:
    if stop is None:
        return None
    return json.dumps({"reason": str(stop.reason), "message": stop.message, "retry": stop.retry})


def _stop_of(text: str | None) -> Stop | None:
    if text is None:
        return None
    fields = json.loads(text)
    return Stop(Reason(fields["reason"]), fields["message"], fields["retry"])
