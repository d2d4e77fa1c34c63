"""The jobs that are not final, with their newest decisions, and the calls that wait for a change
of one. `stored` makes jobs of rows of the database.
"""

import asyncio
import json
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import NamedTuple

from client_lib.errors import ClientLibError
from client_lib.spec.request import SubmitRequest
from client_lib.spec.wire import Event, JobInfo, StateChange
from server_stub.runtimes.tasks import Timer
from server_stub.service.attention import attention
from server_stub.service.lifecycle import JobStatus
from server_stub.service.webhook import Told, message_of
from server_stub.store.rows import JobRow, attention_column

_ANY = ""
"""Stands for all jobs among the waiting calls."""
_CHANGES_KEPT = 10_000
"""Largest number of changes of states that are kept for calls that follow them."""


@dataclass
class StoredJob:
    """One job as it was found in the database."""

    row: JobRow
    """The newest stored version."""
    public: JobInfo
    """The version that users see: the stored one with newer messages, which a
    runtime repeats after a crash.
    """

    @property
    def text(self) -> bytes:
        """`public` as JSON."""
        info = self.public
        return (
            self.row.info if info.version == self.row.version else info.model_dump_json()
        ).encode()


class StoppedAttempt(NamedTuple):
    """An order to stop that was given to the runtime."""

    number: int
    interrupt: bool


@dataclass
class ActiveJob(StoredJob):
    """A job that is not final. Only the reconciler changes it, on the event loop's thread."""

    status: JobStatus
    """The newest decision, which may not be stored yet."""
    request: SubmitRequest | None = None
    """Kept from the submit to the first start; after that it is read from the disk."""
    events: list[Event] = field(default_factory=list)
    """Events that are not stored yet."""
    untold: list[Told] = field(default_factory=list)
    """Events for the webhook of the job, which is told them when they are stored."""
    saving: bool = False
    """True while a task stores the job."""
    not_saved: ClientLibError | None = None
    """The reason why the newest decision can't be stored yet."""
    submitted_attempt: int = 0
    """The newest attempt that this server process submitted to the runtime."""
    stopped: StoppedAttempt | None = None
    """The newest attempt that this server process stopped."""
    reported: set[tuple[int, str]] = field(default_factory=set)
    """(attempt, note) of notes that are events already."""
    remove_at_end: bool = False
    stuck: bool = False
    """True while it waits for the end of a job that hangs."""
    timers: dict[str, Timer] = field(default_factory=dict)

    @property
    def info(self) -> JobInfo:
        return self.status.info

    def decide(self, status: JobStatus, transitions: Sequence[Event] = ()) -> None:
        """Update the job by a decision, which users see when it is stored. A
        final job stays as it is.
        """
        if self.info.state.final:
            return
        self.events += transitions
        info = status.info
        told = info.attention if info.state.final else attention(info, stuck=self.stuck)
        self.status = status.shows(version=self.info.version + 1, attention=told)

    def next_row(self) -> JobRow:
        info = self.info
        tells_end = info.state.final and info.spec.notify is not None and not self.remove_at_end
        return self.row._replace(
            state=info.state,
            version=info.version,
            attempt=info.attempt,
            info=info.model_dump_json(),
            first_started_at=self.row.first_started_at or info.started_at,
            resume_at=self.status.resume_at,
            finished_at=info.finished_at,
            stop=json.dumps(asdict(self.status.stop)) if self.status.stop else None,
            remove_at_end=self.remove_at_end,
            unsent=json.dumps(message_of(info, "ended")) if tells_end else None,
            attention=attention_column(info.attention),
        )

    def cancel_timer(self, name: str) -> None:
        if timer := self.timers.pop(name, None):
            timer.cancel()

    def cancel_timers(self) -> None:
        for name in list(self.timers):
            self.cancel_timer(name)


class ActiveJobs:
    """The active jobs of one server, a future for each that calls wait for, and the
    newest changes of states.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, ActiveJob] = {}
        self.by_name: dict[tuple[str, str], ActiveJob] = {}
        """Jobs by owner and name."""
        self.members: Counter[str] = Counter()
        """Number of jobs in each group."""
        self._changes: dict[str, asyncio.Future[None]] = {}
        self._states: deque[tuple[str, StateChange]] = deque(maxlen=_CHANGES_KEPT)
        self._sequence = secrets.token_hex(8)
        self._count = 0

    def add(self, active: ActiveJob) -> None:
        self.by_id[active.row.id] = active
        self.by_name[active.row.owner, active.row.name] = active
        self.members[active.row.group_id or ""] += 1

    def remove(self, active: ActiveJob) -> None:
        self.by_id.pop(active.row.id, None)
        self.by_name.pop((active.row.owner, active.row.name), None)
        group_id = active.row.group_id or ""
        self.members[group_id] -= 1
        if not self.members[group_id]:
            del self.members[group_id]

    # --- changes

    def publish(self, job_id: str) -> None:
        """Wake all calls that wait for this job."""
        if change := self._changes.pop(job_id, None):
            change.set_result(None)

    def publish_state(self, owner: str, change: StateChange) -> None:
        """Keep the change, and wake all calls that wait for a change of any job."""
        self._states.append((owner, change))
        self._count += 1
        self.publish(_ANY)

    def next_change(self, job_id: str = _ANY) -> asyncio.Future[None]:
        """Return a future that is done at the next `publish` of this job, or at the next
        `publish_state` of any job. Read the job and call this method without an await in between,
        and no change is missed. All who wait share the future: wait by `asyncio.wait`, which does
        not cancel it."""
        if job_id not in self._changes:
            self._changes[job_id] = asyncio.get_running_loop().create_future()
        return self._changes[job_id]

    @property
    def cursor(self) -> str:
        """The place behind the newest change of a state."""
        return f"{self._sequence}-{self._count}"

    def changes_since(self, cursor: str) -> list[tuple[str, StateChange]] | None:
        """The changes of states behind `cursor`, each with the owner of its
        job; None: not all are known.
        """
        sequence, _, count = cursor.rpartition("-")
        missed = (
            self._count - int(count) if sequence == self._sequence and count.isdecimal() else -1
        )
        if not 0 <= missed <= len(self._states):
            return None
        return list(islice(reversed(self._states), missed))[::-1]
