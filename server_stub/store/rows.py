"""Every statement on the tables, as functions of a connection. Only `server_stub.store` and the service import this.

Functions that change something run in the writer's transaction, possibly twice (see `writer`), so they have no effect
outside of it. No statement reads all jobs; lists seek by index.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

from sqlalchemy import Column, Connection, Select, bindparam, delete, func, insert, select, union, update

from client_lib.spec.states import FINAL, IllegalTransition, Reason, State, check_transition
from client_lib.spec.wire import Event
from server_stub.store.prepared import Insert, Prepared
from server_stub.store.tables import events, idempotency_keys, jobs, labels, microseconds, removals
from server_stub.submissions import Place

_UNFINISHED = [str(state) for state in State if state not in FINAL]
_FINISHED = [str(state) for state in State if state in FINAL]


class JobRow(NamedTuple):
    """One job as it is stored. `seq` is 0 until then."""

    id: str
    owner: str
    name: str
    state: State
    version: int
    attempt: int
    created_at: datetime
    info: str
    place: Place
    first_started_at: datetime | None = None
    resume_at: datetime | None = None
    finished_at: datetime | None = None
    stop: str | None = None
    remove_at_end: bool = False
    script_path: str | None = None
    snapshot: str | None = None
    function: str | None = None
    size_bytes: int | None = None
    seq: int = 0


class Key(NamedTuple):
    """An Idempotency-Key and what it was used for."""

    owner: str
    key: str
    fingerprint: str


class NewJob(NamedTuple):
    """All that is stored of a job when it is accepted."""

    row: JobRow
    labels: Mapping[str, str]
    key: Key | None


class Added(NamedTuple):
    """What became of a NewJob."""

    seq: int | None
    """None: nothing was stored."""
    same_key: tuple[str, str] | None = None
    """(fingerprint, job id) of the submit that used the key before."""
    same_name: bool = False


class Found(NamedTuple):
    """What most reads need of a job."""

    seq: int
    id: str
    version: int
    state: State
    info: str


_JOB_COLUMNS = tuple(jobs.columns.keys())  # in the order of _job_values

_insert_jobs = Insert(jobs, _JOB_COLUMNS, or_leave_out=True)
_insert_keys = Insert(idempotency_keys, (*Key._fields, "job_id", "created_at"), or_leave_out=True)
_insert_labels = Insert(labels, ("job_seq", "key", "value"))
_insert_events = Insert(events, ("job_seq", "time", "attempt", "state", "reason", "message"))
_newest_seq = Prepared(select(func.max(jobs.c.seq)))
_state_of_job = Prepared(select(jobs.c.state, jobs.c.version).where(jobs.c.seq == bindparam("b_seq")))
_update_job = Prepared(update(jobs).where(jobs.c.seq == bindparam("b_seq")), _JOB_COLUMNS[1:])
_found = select(jobs.c.seq, jobs.c.id, jobs.c.version, jobs.c.state, jobs.c.info)


def add_jobs(connection: Connection, new: Sequence[NewJob]) -> list[Added]:
    """Store jobs, each with its key, or nothing at all of one whose name or key is taken. That they were accepted is
    their first event, which the row itself tells (see list_events)."""
    keys = {row.id: (*key, row.id, microseconds(row.created_at)) for row, _, key in new if key}
    keyed = _insert_free(connection, _insert_keys, keys, idempotency_keys.c.job_id)
    first = (_newest_seq.run(connection, {}).fetchone()[0] or 0) + 1  # nobody else adds jobs
    seqs = {job.row.id: seq for job, seq in zip(new, count(first), strict=False) if not job.key or job.row.id in keyed}
    jobs_by_id = {job.row.id: (seqs[job.row.id], *_job_values(job.row)) for job in new if job.row.id in seqs}
    stored = _insert_free(connection, _insert_jobs, jobs_by_id, jobs.c.id)
    tags = [(seqs[job.row.id], *tag) for job in new if job.row.id in stored for tag in job.labels.items()]
    _insert_labels.run(connection, tags)
    return [Added(seqs[job.row.id]) if job.row.id in stored else _refused(connection, job, keyed) for job in new]


def _insert_free(
    connection: Connection, statement: Insert, rows: Mapping[str, Sequence[Any]], job_id: Column[Any]
) -> Collection[str]:
    """Insert what `rows` has by job id; the ids of those that were not left out. It is asked only where some were."""
    if statement.run(connection, list(rows.values())) == len(rows):
        return rows.keys()
    return set(connection.execute(select(job_id).where(job_id.in_(rows))).scalars())


def _refused(connection: Connection, job: NewJob, keyed: Collection[str]) -> Added:
    if job.key and job.row.id not in keyed:
        return Added(None, same_key=key_used(connection, job.key))
    if job.key:
        _drop_key(connection, job.key)
    return Added(None, same_name=True)


def save_job(connection: Connection, row: JobRow, new_events: Sequence[Event]) -> None:
    """Store the next version of a job with the transitions that led there. Storing the same version again is harmless.

    Raises:
        IllegalTransition: one of the steps is not in the table; nothing is stored.
    """
    stored = _state_of_job.run(connection, {"b_seq": row.seq}).fetchone()
    if stored is None or stored[1] >= row.version:
        return
    _check_steps(State(stored[0]), row.state, new_events)
    _update_job.run(connection, dict(zip(_JOB_COLUMNS[1:], _job_values(row), strict=True), b_seq=row.seq))
    add_events(connection, row.seq, new_events)


def _check_steps(before: State, after: State, steps: Sequence[Event]) -> None:
    for step in steps:
        check_transition(before, step.state)
        before = step.state
    if before is not after or (after.final and not steps):
        raise IllegalTransition(f"{before} becomes {after} without an event")


def add_events(connection: Connection, seq: int, new_events: Iterable[Event]) -> None:
    _insert_events.run(connection, [_event_values(seq, event) for event in new_events])


def _event_values(seq: int, event: Event) -> tuple[Any, ...]:
    return seq, microseconds(event.time), event.attempt, str(event.state), str(event.reason), event.message


def find(connection: Connection, owner: str, name: str) -> Found | None:
    return _one(connection, _found.where(jobs.c.owner == owner, jobs.c.name == name))


def find_by_id(connection: Connection, job_id: str) -> Found | None:
    return _one(connection, _found.where(jobs.c.id == job_id))


def row_by_seq(connection: Connection, seq: int) -> JobRow | None:
    """The whole row."""
    row = connection.execute(select(jobs).where(jobs.c.seq == seq)).one_or_none()
    return _job_row(row._asdict()) if row else None


def unfinished(connection: Connection) -> list[JobRow]:
    """Jobs that are not final, in the order of their acceptance."""
    rows = connection.execute(select(jobs).where(jobs.c.state.in_(_UNFINISHED)).order_by(jobs.c.seq))
    return [_job_row(row._asdict()) for row in rows]


def find_anywhere(connection: Connection, name: str) -> list[str]:
    """Owners that have a job of this name; at most two are told."""
    return list(connection.execute(_OWNERS_OF_NAME, {"name": name}).scalars())


def _owners_of_name() -> Select[Any]:
    """From one owner to the next by the index that begins with them: no job is looked at but those found, and no submit
    pays for an index of names."""
    owners = select(func.min(jobs.c.owner).label("owner")).cte("owners", recursive=True)
    later = jobs.alias()
    after = select(func.min(later.c.owner)).where(later.c.owner > owners.c.owner).scalar_subquery()
    owners = owners.union_all(select(after).where(owners.c.owner.is_not(None)))
    named = select(jobs.c.owner).join(owners, jobs.c.owner == owners.c.owner)
    return named.where(jobs.c.name == bindparam("name")).limit(2)


_OWNERS_OF_NAME = _owners_of_name()


def set_size(connection: Connection, seq: int, size_bytes: int) -> None:
    """Note what the directory of a final job takes."""
    connection.execute(update(jobs).where(jobs.c.seq == seq), {"size_bytes": size_bytes})


def doomed(connection: Connection) -> list[int]:
    """Final jobs that are to be deleted, where a crash came between."""
    query = select(jobs.c.seq).where(jobs.c.state.in_(_FINISHED), jobs.c.remove_at_end)
    return list(connection.execute(query).scalars())


def page(
    connection: Connection,
    owner: str | None,
    state: State | None,
    job_labels: dict[str, str],
    name_prefix: str | None,
    limit: int,
    before: int | None,
) -> list[tuple[int, str]]:
    """(seq, info) of at most `limit` jobs, newest first, older than seq `before`. `owner` None: of everybody."""
    query = select(jobs.c.seq, jobs.c.info).order_by(jobs.c.seq.desc()).limit(limit)
    if owner is not None:
        query = query.where(jobs.c.owner == owner)
    if state is not None:
        query = query.where(jobs.c.state == str(state))
    if name_prefix:
        query = query.where(jobs.c.name.startswith(name_prefix, autoescape=True))
    if before is not None:
        query = query.where(jobs.c.seq < before)
    for key, value in job_labels.items():
        tagged = select(labels.c.job_seq).where(labels.c.key == key, labels.c.value == value)
        query = query.where(jobs.c.seq.in_(tagged))
    return [(seq, info) for seq, info in connection.execute(query)]


def list_events(connection: Connection, seq: int) -> list[Event]:
    """Oldest first. The first is the acceptance, which is not stored apart from the job."""
    columns = (events.c.time, events.c.attempt, events.c.state, events.c.reason, events.c.message)
    rows = connection.execute(select(*columns).where(events.c.job_seq == seq).order_by(events.c.id))
    later = [Event(time=t, attempt=a, state=State(s), reason=Reason(r), message=m) for t, a, s, r, m in rows]
    accepted = connection.execute(select(jobs.c.created_at).where(jobs.c.seq == seq)).scalars()
    return [Event(time=t, attempt=1, state=State.PENDING, reason=Reason.QUEUED, message="") for t in accepted] + later


def counts(connection: Connection) -> dict[State, int]:
    """Jobs in each state; states without a job are left out."""
    rows = connection.execute(select(jobs.c.state, func.count()).group_by(jobs.c.state))
    return {State(state): number for state, number in rows}


def names(connection: Connection, owner: str, limit: int) -> list[str]:
    """The newest names of an owner."""
    query = select(jobs.c.name).where(jobs.c.owner == owner).order_by(jobs.c.seq.desc()).limit(limit)
    return list(connection.execute(query).scalars())


def knows_script(connection: Connection, owner: str, script_path: str) -> bool:
    """The owner ran this script in place before."""
    query = select(jobs.c.seq).where(jobs.c.owner == owner, jobs.c.script_path == script_path).limit(1)
    return connection.execute(query).scalar() is not None


def remove(connection: Connection, seq: int) -> None:
    """Delete a final job with its events and labels, and note its files for removal.

    Raises:
        IllegalTransition: it is not final.
    """
    columns = (jobs.c.id, jobs.c.state, jobs.c.segment, jobs.c.offset, jobs.c.length)
    row = connection.execute(select(*columns).where(jobs.c.seq == seq)).one_or_none()
    if row is None:
        return
    if not State(row.state).final:
        raise IllegalTransition(f"job {row.id} is {row.state} and can't be deleted")
    place = {"segment": row.segment, "offset": row.offset, "length": row.length}
    connection.execute(insert(removals), {"job_id": row.id, **place})
    connection.execute(delete(jobs).where(jobs.c.seq == seq))


def discard(connection: Connection, row: JobRow) -> None:
    """Forget a job that was never accepted, and its key."""
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.job_id == row.id))
    connection.execute(delete(jobs).where(jobs.c.seq == row.seq))


class Removal(NamedTuple):
    """What a deleted job leaves on the disk: its directory and its submission."""

    job_id: str
    place: Place


def pending_removals(connection: Connection) -> list[Removal]:
    """What is still to be removed."""
    columns = (removals.c.job_id, removals.c.segment, removals.c.offset, removals.c.length)
    return [Removal(job_id, Place(*place)) for job_id, *place in connection.execute(select(*columns))]


def forget_removals(connection: Connection, job_ids: Sequence[str]) -> None:
    connection.execute(delete(removals).where(removals.c.job_id.in_(job_ids)))


class Finished(NamedTuple):
    """What retention decides by."""

    seq: int
    finished_at: datetime
    size_bytes: int


def finished(connection: Connection) -> list[Finished]:
    """Final jobs, oldest end first."""
    columns = (jobs.c.seq, jobs.c.finished_at, func.coalesce(jobs.c.size_bytes, 0))
    query = select(*columns).where(jobs.c.state.in_(_FINISHED)).order_by(jobs.c.finished_at)
    return [Finished(seq, at, size) for seq, at, size in connection.execute(query)]


def segments_in_use(connection: Connection) -> set[int]:
    return set(connection.execute(select(jobs.c.segment).distinct()).scalars())


def snapshots_in_use(connection: Connection) -> set[str]:
    """Digest of every snapshot and function that a job refers to."""
    query = union(*(select(column).where(column.is_not(None)) for column in (jobs.c.snapshot, jobs.c.function)))
    return set(connection.execute(query).scalars())


def drop_keys(connection: Connection, before: datetime) -> None:
    """Forget idempotency keys that are older."""
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.created_at < before))


def key_used(connection: Connection, key: Key) -> tuple[str, str] | None:
    """(fingerprint, job id) of the submit that used the key; None: nobody did."""
    columns = (idempotency_keys.c.fingerprint, idempotency_keys.c.job_id)
    query = select(*columns).where(idempotency_keys.c.owner == key.owner, idempotency_keys.c.key == key.key)
    used = connection.execute(query).one_or_none()
    return (used.fingerprint, used.job_id) if used else None


def _drop_key(connection: Connection, key: Key) -> None:
    found = (idempotency_keys.c.owner == key.owner, idempotency_keys.c.key == key.key)
    connection.execute(delete(idempotency_keys).where(*found))


def _one(connection: Connection, query: Select[Any]) -> Found | None:
    row = connection.execute(query).one_or_none()
    return Found(row.seq, row.id, row.version, State(row.state), row.info) if row else None


def _job_values(row: JobRow) -> tuple[Any, ...]:
    """As the database stores them, in the order of the table's columns behind `seq`."""
    return (
        row.id,
        row.owner,
        row.name,
        str(row.state),
        row.version,
        row.attempt,
        microseconds(row.created_at),
        microseconds(row.first_started_at),
        microseconds(row.resume_at),
        microseconds(row.finished_at),
        row.stop,
        row.remove_at_end,
        row.script_path,
        row.snapshot,
        row.function,
        row.size_bytes,
        *row.place,
        row.info,
    )


def _job_row(values: dict[str, Any]) -> JobRow:
    place = Place(*(values.pop(field) for field in Place._fields))
    return JobRow(**{**values, "state": State(values["state"]), "place": place})
