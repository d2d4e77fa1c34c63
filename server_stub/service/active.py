"""Jobs as users see them, those that are not final with their newest decision, and the
calls that wait for a change.
"""

import asyncio
import json
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import Any, Literal

from pydantic import ValidationError

from client_lib.errors import ClientLibError
from client_lib.spec.job import JobSpec
from client_lib.spec.refusals import invalid_request
from client_lib.spec.request import CodeInPlace, CodeSnapshot, SubmitRequest
from client_lib.spec.states import TRANSITIONS, Reason, State
from client_lib.spec.wire import Event, GroupInfo, JobInfo, StateChange
from client_lib.spec.wording import summary
from server_stub.runtimes import Timer
from server_stub.service.lifecycle import JobStatus, Stop
from server_stub.store.rows import JobRow

VERSIONS_NOT_STORED = 100_000
"""A restart of the server adds this to the version, so that no version that was shown and
not stored is used twice.
"""
Told = Literal["ended", "hangs", "moves"]  # events that the webhook of a job (`notify`) gets
_ANY = ""  # stands for all jobs among the waiting calls
_CHANGES_KEPT = 10_000
_NAMED = 3  # dependencies in a message


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


@dataclass
class ActiveJob(StoredJob):
    """A job that is not final. Only the reconciler changes it, on the event loop's thread."""

    status: JobStatus
    """The newest decision, which may not be stored yet."""
    request: SubmitRequest | None = None
    """Kept from the submit to the first start; after that it is read from the disk."""
    events: list[Event] = field(default_factory=list)
    """Events that are not stored yet."""
    saving: bool = False
    """True while a task stores the job."""
    not_saved: ClientLibError | None = None
    """The reason why the newest decision can't be stored yet."""
    submitted_attempt: int = 0
    """The newest attempt that this server process submitted to the runtime."""
    stopped_attempt: int = 0
    """The newest attempt that this server process stopped."""
    reported: set[tuple[int, str]] = field(default_factory=set)
    """(attempt, note) of notes that are events already."""
    remove_at_end: bool = False
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
        self.status = status.shows(version=self.info.version + 1)

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
        self._sequence, self._count = secrets.token_hex(8), 0

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
        """Keep the change, and wake all calls that wait for one of any job."""
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


@dataclass
class _Group:
    info: GroupInfo
    admitted: set[str] = field(default_factory=set)
    held: dict[str, ActiveJob] = field(default_factory=dict)
    """Members by their ids, in the order in which they came."""


class Gate:
    """Decides which jobs may start: a job starts when its dependencies have ended, and of a group
    at most `max_parallel` members run at a time, in the order of their index. A job that is held
    back is not passed to the runtime and uses no resources of a machine. Pure: the reconciler
    carries the decisions out."""

    def __init__(self, active: Mapping[str, ActiveJob]) -> None:
        """`active`: the jobs that have not ended, by their ids."""
        self._active = active
        self._groups: dict[str, _Group] = {}
        self._waiting: defaultdict[str, dict[str, ActiveJob]] = defaultdict(dict)
        """Jobs by their ids, by the id of what they wait for."""

    def open(self, groups: Iterable[GroupInfo]) -> None:
        """Note groups, before the first of their members is asked for."""
        for info in groups:
            if info.max_parallel or info.stop_on_failure:
                self._groups.setdefault(info.id, _Group(info))

    def holds(self, active: ActiveJob) -> str:
        """Return the reason why the job must not start yet; "": the job may start, and counts as a
        running member of its group until it has ended.
        """
        job_id, group, turn = active.row.id, self._groups.get(active.row.group_id or ""), ""
        # A job with dependencies is noted here, too: a group is known as long as it has members.
        if group and job_id not in group.admitted:
            most = group.info.max_parallel
            never_starts = job_id in group.held and active.status.stop
            if never_starts or (most is not None and len(group.admitted) >= most):
                group.held[job_id] = active
                turn = (
                    f"waits for its turn: the group {group.info.name} runs {most} at a time "
                    "(max_parallel)"
                )
            else:
                group.held.pop(job_id, None)
                group.admitted.add(job_id)
        left = [dependency for dependency in active.info.dependencies if dependency.ended is None]
        if not left:
            return turn
        for dependency in left:
            self._waiting[dependency.id][job_id] = active
        known = [(dependency.name, self._active.get(dependency.id)) for dependency in left[:_NAMED]]
        names = [f"{name} ({job.info.state})" if job else name for name, job in known]
        return f"waits for {', '.join(names)}" + (
            f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        )

    def why_stop(self, group_id: str | None, failed: str | None) -> str:
        """The reason why the members of a group must stop after one, called `failed`,
        has failed; "": they go on.
        """
        group = self._groups.get(group_id or "")
        if failed is None or group is None or not group.info.stop_on_failure:
            return ""
        return (
            f"{failed} failed, and the group {group.info.name} stops on a failure (stop_on_failure)"
        )

    def waiting_for(self, job_or_group: str) -> list[ActiveJob]:
        """The jobs that wait for the end of this one."""
        jobs = self._waiting[job_or_group].values() if job_or_group in self._waiting else ()
        return [job for job in jobs if not (job.status.stop or job.info.state.final)]

    def release(self, job_or_group: str) -> list[ActiveJob]:
        """Return the jobs that wait for the end of this job or group, and forget that they wait."""
        found = self.waiting_for(job_or_group)
        self._waiting.pop(job_or_group, None)
        return found

    def leave(self, active: ActiveJob) -> ActiveJob | None:
        """Note that the job has ended; return the member of its group that may start now."""
        for dependency in active.info.dependencies:
            self._waiting[dependency.id].pop(active.row.id, None)
            if not self._waiting[dependency.id]:
                del self._waiting[dependency.id]
        group = self._groups.get(active.row.group_id or "")
        if group is None:
            return None
        group.held.pop(active.row.id, None)
        following = None
        if active.row.id in group.admitted:
            group.admitted.remove(active.row.id)
            following = next((job for job in group.held.values() if not job.status.stop), None)
        if following:
            group.admitted.add(group.held.pop(following.row.id).row.id)
        if not (group.held or group.admitted):
            del self._groups[group.info.id]
        return following


def message_of(info: JobInfo, event: Told) -> dict[str, Any]:
    """The notification of a job in its present state."""
    fields = {name: getattr(info, name) for name in ("owner", "state", "reason", "attempt")}
    return {
        "text": summary(info),
        "event": event,
        "id": f"{info.id}-{info.version}",
        "job": info.name,
        **fields,
    }


def row_of(info: JobInfo, **columns: Any) -> JobRow:
    """The row of a job that is not stored yet. `columns`: values that do not follow from `info`."""
    return JobRow(
        id=info.id,
        owner=info.owner,
        name=info.name,
        state=info.state,
        version=info.version,
        attempt=info.attempt,
        created_at=info.created_at,
        info=info.model_dump_json(),
        first_started_at=info.started_at,
        finished_at=info.finished_at,
        snapshot=info.code.sha256 if isinstance(info.code, CodeSnapshot) else None,
        function=info.function.sha256 if info.function else None,
        group_id=info.group.id if info.group else None,
        **columns,
    )


def found(row: JobRow) -> StoredJob:
    """Make the StoredJob of a row. In place of text that can't be read, users see why."""
    try:
        return StoredJob(row, JobInfo.model_validate_json(row.info))
    except ValueError as error:
        info = _stand_in(row, error)
        return StoredJob(row._replace(info=info.model_dump_json()), info)


def from_row(row: JobRow) -> ActiveJob:
    """Make the ActiveJob of a job of an earlier server process. One that can't be
    read is stopped and fails.
    """
    try:
        info = JobInfo.model_validate_json(row.info)
        if (info.id, info.state, info.attempt) != (
            row.id,
            State(row.state),
            row.attempt,
        ) or row.created_at is None:
            raise ValueError("its columns and its text differ")
        order = json.loads(row.stop) if row.stop else None
        stop = Stop(Reason(order["reason"]), order["message"], order["retry"]) if order else None
        hung = info.message if info.reason is Reason.HUNG and info.state is State.RUNNING else ""
    except (ValueError, KeyError, TypeError) as error:
        state = row.state if row.state in TRANSITIONS else State.RUNNING
        row = row._replace(state=state, attempt=max(row.attempt, 1), resume_at=None)
        shown = _stand_in(row, error)
        info = shown.model_copy(update={"state": state, "reason": Reason.QUEUED, "message": ""})
        row, stop, hung = (
            row._replace(created_at=info.created_at),
            Stop(Reason.SERVER_ERROR, shown.message),
            "",
        )
    info = info.model_copy(update={"version": row.version + VERSIONS_NOT_STORED})
    return ActiveJob(
        row, info, JobStatus(info, stop, hung, row.resume_at), remove_at_end=row.remove_at_end
    )


def stand_in(
    job_id: str, owner: str, name: str, created_at: datetime | None, **known: Any
) -> JobInfo:
    """A JobInfo in place of one that can't be read, by what is known of the
    job. `known`: more fields.
    """
    facts = {
        "version": 1,
        "runtime": "",
        "state": State.PENDING,
        "reason": Reason.QUEUED,
        "code": CodeInPlace(),
    }
    known = {**facts, "spec": JobSpec(script="unknown"), **known}
    created_at = created_at or datetime.fromtimestamp(0, timezone.utc)
    return JobInfo(id=job_id, owner=owner, name=name, created_at=created_at, **known)


def _stand_in(row: JobRow, error: Exception) -> JobInfo:
    """A JobInfo for users in place of a row that can't be read, and the reason."""
    what = (
        invalid_request(error, JobInfo).message
        if isinstance(error, ValidationError)
        else str(error)
    )
    return stand_in(
        *(row.id, row.owner, row.name, row.created_at),
        version=row.version,
        attempt=row.attempt,
        state=row.state if row.state.final else State.FAILED,
        reason=Reason.SERVER_ERROR,
        message=f"its record in the database can't be read: {what.splitlines()[0][:500]}",
        spec=JobSpec(script="unreadable"),
    )
