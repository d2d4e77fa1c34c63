"""Every statement on the tables, as functions of a connection; `Store.read` and `Store.write` run
them.

Functions that change something run in the writer's transaction, possibly twice (see `writer`), so
they must have no effect outside of it. Lists of jobs seek by index; only filters by a field of the
spec read all jobs of the owners.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import TypeAdapter

from client_lib.spec.states import (
    FINAL,
    TRANSITIONS,
    IllegalTransition,
    Reason,
    State,
    as_sent,
    check_transition,
)
from client_lib.spec.wire import Attention, Event
from server_stub.files.request_log import UNWRITTEN, Place
from server_stub.store.tables import (
    events,
    groups,
    idempotency_keys,
    jobs,
    labels,
    removals,
    server,
)

_SUCCEEDED = 500  # jobs that are searched for the last success of a script
_attention = TypeAdapter(list[Attention])
_FINISHED = [str(state) for state in State if state in FINAL]


class JobRow(NamedTuple):
    """One stored job. `seq` is 0 before it is stored."""

    id: str
    owner: str
    name: str
    state: State
    version: int
    attempt: int
    created_at: datetime
    info: str
    place: Place = UNWRITTEN
    first_started_at: datetime | None = None
    resume_at: datetime | None = None
    finished_at: datetime | None = None
    stop: str | None = None
    remove_at_end: bool = False
    script_path: str | None = None
    snapshot: str | None = None
    function: str | None = None
    size_bytes: int | None = None
    unsent: str | None = None
    group_id: str | None = None
    attention: str | None = None
    seq: int = 0


def attention_column(found: list[Attention]) -> str | None:
    """The column `attention` of a job."""
    return _attention.dump_json(found).decode() if found else None


def kept_attention(column: str) -> list[Attention]:
    """Read the column; a damaged one holds nothing."""
    try:
        return _attention.validate_json(column)
    except ValueError:
        return []


class Key(NamedTuple):
    """An Idempotency-Key and what it was used for."""

    owner: str
    key: str
    fingerprint: str


@dataclass
class NewJob:
    """Everything that is stored of a job when it is accepted."""

    row: JobRow
    labels: Mapping[str, str]
    key: Key | None
    record: bytes = b""
    """The submit request; the store writes it once and then sets `row.place`."""


class Added(NamedTuple):
    """The result of storing a NewJob."""

    seq: int | None
    """None: nothing was stored."""
    same_key: tuple[str, str] | None = None
    """(fingerprint, job id) of the submit that used the key before."""
    same_name: str = ""
    """The name that another job or a group has."""


# made once, as SQLAlchemy keeps the compiled text of a statement object
_newest_seq = sa.select(sa.func.max(jobs.c.seq))
_generation = sa.select(server.c.generation)
_kept_generation = _generation.with_for_update(read=True)
_insert_jobs = sa.insert(jobs)
_insert_keys = sa.insert(idempotency_keys)
_insert_labels = sa.insert(labels)
_insert_events = sa.insert(events)
_owners: sa.BindParameter[Any] = sa.bindparam("owners", expanding=True)
_names: sa.BindParameter[Any] = sa.bindparam("names", expanding=True)
_used_keys = sa.select(idempotency_keys).where(
    idempotency_keys.c.owner.in_(_owners), idempotency_keys.c.key.in_(_names)
)
_taken_names = sa.union_all(
    *(
        sa.select(t.c.owner, t.c.name).where(t.c.owner.in_(_owners), t.c.name.in_(_names))
        for t in (jobs, groups)
    )
)
_found = sa.select(jobs)


def take_over(connection: sa.Connection) -> int:
    """The generation of a new server: a number that is higher than that
    of each server before it.
    """
    connection.execute(sa.update(server).values(generation=server.c.generation + 1))
    return generation(connection)


def generation(connection: sa.Connection, *, keep: bool = False) -> int:
    """The generation of the newest server. `keep`: no server takes over
    before this transaction ends.
    """
    return int(connection.execute(_kept_generation if keep else _generation).scalar_one())


def data_id(connection: sa.Connection) -> str | None:
    """The id of the data directory with the files of the jobs; None: no server has noted it yet."""
    found: str | None = connection.execute(sa.select(server.c.data_id)).scalar_one()
    return found


def set_data_id(connection: sa.Connection, new: str) -> None:
    connection.execute(sa.update(server).values(data_id=new))


def next_seq(connection: sa.Connection) -> int:
    return (connection.execute(_newest_seq).scalar() or 0) + 1


def add_jobs(
    connection: sa.Connection,
    new: Sequence[NewJob],
    begin: Callable[[Sequence[NewJob]], int] | None = None,
) -> list[Added]:
    """Store jobs, each with its key; of a job whose name or key is taken nothing is stored. The
    acceptance is their first event, which is not stored: `list_events` makes it from the row.
    `begin` gets the jobs that will be stored, sets their places, and returns the `seq` of the
    first."""
    used = keys_used(connection, [job.key for job in new if job.key])
    taken = names_taken(connection, {job.row.owner for job in new}, [job.row.name for job in new])
    refused: list[Added | None] = []
    for row, key in ((job.row, job.key) for job in new):
        if key and (before := used.get((key.owner, key.key))):
            refused.append(Added(None, same_key=before))
        elif (row.owner, row.name) in taken:
            refused.append(Added(None, same_name=row.name))
        else:
            refused.append(None)
            taken.add((row.owner, row.name))
            if key:
                used[key.owner, key.key] = (key.fingerprint, row.id)
    accepted = [job for job, why in zip(new, refused, strict=True) if why is None]
    first = begin(accepted) if begin and accepted else next_seq(connection)
    keys = []
    rows = []
    tags = []
    for seq, job in enumerate(accepted, first):
        if job.key:
            keys.append(
                {**job.key._asdict(), "job_id": job.row.id, "created_at": job.row.created_at}
            )
        rows.append({"seq": seq, **_job_values(job.row)})
        tags += [
            {"job_seq": seq, "key": name, "value": value} for name, value in job.labels.items()
        ]
    for statement, values in ((_insert_keys, keys), (_insert_jobs, rows), (_insert_labels, tags)):
        if values:
            connection.execute(statement, values)
    seqs = count(first)
    return [why or Added(next(seqs)) for why in refused]


def keys_used(
    connection: sa.Connection, keys: Collection[Key]
) -> dict[tuple[str, str], tuple[str, str]]:
    """Find the keys that earlier submits have used: (owner, key) -> (fingerprint, job id). In the
    writer's transaction all other keys stay free, because nothing else writes."""
    if not keys:
        return {}
    values = {"owners": [key.owner for key in keys], "names": [key.key for key in keys]}
    return {
        (row.owner, row.key): (row.fingerprint, row.job_id)
        for row in connection.execute(_used_keys, values)
    }


def names_taken(
    connection: sa.Connection, owners: Collection[str], names: Collection[str]
) -> set[tuple[str, str]]:
    """Find the names that jobs and groups have already, as (owner, name)."""
    found = connection.execute(_taken_names, {"owners": list(owners), "names": list(names)})
    return {(owner, name) for owner, name in found}


def save_job(connection: sa.Connection, row: JobRow, new_events: Sequence[Event]) -> None:
    """Store the next version of a job with the transitions that led there. Storing the same version
    again is harmless. Raises IllegalTransition: one of the steps is not in the table; nothing is
    stored."""
    stored = connection.execute(
        sa.select(jobs.c.state, jobs.c.version).where(jobs.c.seq == row.seq)
    ).one_or_none()
    if stored is None or stored.version >= row.version:
        return
    before = as_sent(State, stored.state)
    # the word of a later version: it is not final, and this version ends the job
    if before not in TRANSITIONS:
        before = State.RUNNING
    for step in new_events:
        check_transition(before, step.state)
        before = step.state
    if before is not row.state or (row.state.final and not new_events):
        raise IllegalTransition(f"{before} becomes {row.state} without an event")
    connection.execute(sa.update(jobs).where(jobs.c.seq == row.seq), _job_values(row))
    add_events(connection, row.seq, new_events)


def add_events(connection: sa.Connection, seq: int, new_events: Sequence[Event]) -> None:
    for event in new_events:
        told = {"state": str(event.state), "reason": str(event.reason), "message": event.message}
        values = {"job_seq": seq, "time": event.time, "attempt": event.attempt, **told}
        connection.execute(_insert_events, values)


def find(connection: sa.Connection, owner: str, name: str) -> JobRow | None:
    return next(
        iter(all_of(connection, _found.where(jobs.c.owner == owner, jobs.c.name == name))), None
    )


def find_by_id(connection: sa.Connection, job_id: str) -> JobRow | None:
    return next(iter(all_of(connection, _found.where(jobs.c.id == job_id))), None)


def unfinished(connection: sa.Connection) -> list[JobRow]:
    """Jobs that are not final, in the order of their acceptance."""
    return all_of(connection, _found.where(jobs.c.state.not_in(_FINISHED)).order_by(jobs.c.seq))


def unsent(connection: sa.Connection) -> list[JobRow]:
    """Final jobs whose notification is not sent yet."""
    return all_of(connection, _found.where(jobs.c.unsent.is_not(None), jobs.c.state.in_(_FINISHED)))


def set_sent(connection: sa.Connection, seq: int) -> None:
    connection.execute(sa.update(jobs).where(jobs.c.seq == seq), {"unsent": None})


def set_size(connection: sa.Connection, seq: int, size_bytes: int) -> bool:
    """Note what the directory of a final job takes. False: the job was deleted."""
    return (
        connection.execute(
            sa.update(jobs).where(jobs.c.seq == seq), {"size_bytes": size_bytes}
        ).rowcount
        > 0
    )


def unmeasured(connection: sa.Connection) -> list[tuple[int, str]]:
    """`seq` and `id` of the final jobs without a size: a server was killed at their end."""
    query = sa.select(jobs.c.seq, jobs.c.id).where(
        jobs.c.state.in_(_FINISHED), jobs.c.size_bytes.is_(None)
    )
    return [(seq, job_id) for seq, job_id in connection.execute(query)]


def final_ids(connection: sa.Connection, seqs: Sequence[int]) -> list[str]:
    """The ids of the final ones among these jobs."""
    query = sa.select(jobs.c.id).where(jobs.c.seq.in_(seqs), jobs.c.state.in_(_FINISHED))
    return list(connection.execute(query).scalars())


def doomed(connection: sa.Connection, job_ids: Sequence[str]) -> list[int]:
    """Final jobs whose deletion was ordered or had begun before a crash. `job_ids`: jobs whose
    removal had begun.
    """
    query = sa.select(jobs.c.seq).where(
        jobs.c.state.in_(_FINISHED), jobs.c.id.in_(job_ids) | jobs.c.remove_at_end
    )
    return list(connection.execute(query).scalars())


def list_events(connection: sa.Connection, seq: int) -> list[Event]:
    """The events of a job, oldest first. The first is the acceptance, which
    is made from the job's row.
    """
    columns = (events.c.time, events.c.attempt, events.c.state, events.c.reason, events.c.message)
    rows = connection.execute(
        sa.select(*columns).where(events.c.job_seq == seq).order_by(events.c.id)
    )
    later = [
        Event(time=t, attempt=a, state=as_sent(State, s), reason=as_sent(Reason, r), message=m)
        for t, a, s, r, m in rows
        if t is not None
    ]
    accepted = connection.execute(sa.select(jobs.c.created_at).where(jobs.c.seq == seq)).scalars()
    first = [
        Event(time=t, attempt=1, state=State.PENDING, reason=Reason.QUEUED, message="")
        for t in accepted
        if t
    ]
    return first + later


def counts(connection: sa.Connection) -> dict[State, int]:
    """Jobs in each state; states without a job are left out."""
    rows = connection.execute(sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state))
    return {as_sent(State, state): number for state, number in rows}


def succeeded_before(connection: sa.Connection, row: JobRow) -> list[JobRow]:
    """The newest jobs of the owner that succeeded and were accepted before this one."""
    wanted = (jobs.c.owner == row.owner, jobs.c.state == str(State.SUCCEEDED), jobs.c.seq < row.seq)
    return all_of(connection, _found.where(*wanted).order_by(jobs.c.seq.desc()).limit(_SUCCEEDED))


def knows_script(connection: sa.Connection, owner: str, script_path: str) -> bool:
    """The owner ran this script in place before."""
    query = (
        sa.select(jobs.c.seq)
        .where(jobs.c.owner == owner, jobs.c.script_path == script_path)
        .limit(1)
    )
    return connection.execute(query).scalar() is not None


def remove_events(connection: sa.Connection, seqs: Sequence[int], limit: int) -> bool:
    """Delete up to `limit` events of final jobs. True: there were so many that more may be left."""
    final = sa.select(jobs.c.seq).where(jobs.c.seq.in_(seqs), jobs.c.state.in_(_FINISHED))
    chosen = sa.select(events.c.id).where(events.c.job_seq.in_(final)).limit(limit)
    return connection.execute(sa.delete(events).where(events.c.id.in_(chosen))).rowcount == limit


def remove(connection: sa.Connection, seqs: Sequence[int]) -> None:
    """Delete final jobs with their events and labels, and note their files for removal. A group
    goes with its last member. Raises IllegalTransition: a job is not final."""
    columns = (
        jobs.c.id,
        jobs.c.state,
        jobs.c.group_id,
        jobs.c.segment,
        jobs.c.offset,
        jobs.c.length,
    )
    found = connection.execute(sa.select(*columns).where(jobs.c.seq.in_(seqs))).all()
    if not found:
        return
    for row in found:
        if not as_sent(State, row.state).final:
            raise IllegalTransition(f"job {row.id} is {row.state} and can't be deleted")
    places = [
        {"job_id": row.id, **{name: getattr(row, name) for name in Place._fields}} for row in found
    ]
    connection.execute(sa.insert(removals), places)
    connection.execute(sa.delete(jobs).where(jobs.c.seq.in_(seqs)))
    left = {row.group_id for row in found if row.group_id}
    if left:
        member = sa.select(jobs.c.seq).where(jobs.c.group_id == groups.c.id).exists()
        connection.execute(sa.delete(groups).where(groups.c.id.in_(left), ~member))


def discard(connection: sa.Connection, job_id: str) -> None:
    """Forget a job that was never accepted, and its key."""
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.job_id == job_id))
    connection.execute(sa.delete(jobs).where(jobs.c.id == job_id))


def pending_removals(connection: sa.Connection) -> dict[str, Place]:
    """The requests of deleted jobs, by the id of the job, whose files are not removed yet."""
    return {job_id: Place(*place) for job_id, *place in connection.execute(sa.select(removals))}


def forget_removals(connection: sa.Connection, job_ids: Sequence[str]) -> None:
    connection.execute(sa.delete(removals).where(removals.c.job_id.in_(job_ids)))


class FinishedJob(NamedTuple):
    """A final job, for retention."""

    seq: int
    at: datetime
    """Time of its end."""
    size: int
    """Bytes of its folder; 0: not measured yet."""


def finished(connection: sa.Connection) -> list[FinishedJob]:
    """The final jobs, oldest end first."""
    columns = (jobs.c.seq, jobs.c.finished_at, sa.func.coalesce(jobs.c.size_bytes, 0))
    query = sa.select(*columns).where(jobs.c.state.in_(_FINISHED)).order_by(jobs.c.finished_at)
    return [
        FinishedJob(seq, at, size) for seq, at, size in connection.execute(query) if at is not None
    ]


def segments_in_use(connection: sa.Connection) -> set[int]:
    return set(connection.execute(sa.select(jobs.c.segment).distinct()).scalars())


def snapshots_in_use(connection: sa.Connection) -> set[str]:
    """Digest of every snapshot and function that a job refers to."""
    query = sa.union(
        *(
            sa.select(column).where(column.is_not(None))
            for column in (jobs.c.snapshot, jobs.c.function)
        )
    )
    return set(connection.execute(query).scalars())


def drop_keys(connection: sa.Connection, before: datetime) -> None:
    """Forget idempotency keys that are older."""
    connection.execute(sa.delete(idempotency_keys).where(idempotency_keys.c.created_at < before))


def key_used(connection: sa.Connection, key: Key) -> tuple[str, str] | None:
    """(fingerprint, job id) of the submit that used the key; None: it is free."""
    return keys_used(connection, [key]).get((key.owner, key.key))


def all_of(connection: sa.Connection, query: sa.Select[Any]) -> list[JobRow]:
    """The jobs that a query of all columns finds."""
    return list(_each_of(connection.execute(query)))


def _each_of(result: sa.CursorResult[Any]) -> Iterator[JobRow]:
    for row in result:
        values: dict[str, Any] = {
            key: value.decode(errors="replace") if isinstance(value, bytes) else value
            # a damaged row of SQLite may hold bytes in place of a text
            for key, value in row._mapping.items()
        }
        place = Place(*(values.pop(name) for name in Place._fields))
        yield JobRow(**{**values, "state": as_sent(State, values["state"]), "place": place})


def _job_values(row: JobRow) -> dict[str, Any]:
    """The columns of the table, except `seq`."""
    values = {**row._asdict(), **row.place._asdict(), "state": str(row.state)}
    del values["seq"], values["place"]
    return values


# --- lists


@dataclass(frozen=True)
class JobFilters:
    """The filters of a list, which has the jobs that match all of them. None or {}: no filter."""

    owners: Sequence[str] | None = None
    states: Collection[State] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    name_prefix: str | None = None
    since: datetime | None = None
    """Accepted then or later."""
    until: datetime | None = None
    """Accepted then or before."""
    group: str | None = None
    """Members of the group of this id (for the lookup: name); "": jobs of no
    group, and groups beside them.
    """
    fields: Sequence[tuple[str, str, bool]] = ()
    """(field of the spec, its value, True if a job that does not set it matches too). These have no
    column of their own, so every job of the owners is read (5 us each in SQLite)."""


def page(
    connection: sa.Connection,
    wanted: JobFilters,
    limit: int,
    before: int | None = None,
    offset: int = 0,
    enough: float = math.inf,
) -> list[JobRow]:
    """At most `limit` jobs, newest first, older than seq `before`, without the first `offset` of
    them. The job whose `info` makes `enough` characters with those before is the last one.
    """
    query = sa.select(jobs).where(*_conditions(connection, wanted))
    if before is not None:
        query = query.where(jobs.c.seq < before)
    query = query.order_by(jobs.c.seq.desc()).limit(limit).offset(offset)
    found = []
    size = 0
    # psycopg reads the whole result into memory if it is not streamed
    with connection.execute(query.execution_options(stream_results=True)) as result:
        for row in _each_of(result):
            found.append(row)
            size += len(row.info)
            if size >= enough:
                break
    return found


def search(
    connection: sa.Connection,
    wanted: JobFilters,
    limit: int,
    offset: int,
    enough: float = math.inf,
) -> tuple[int, list[JobRow]]:
    """The number of matching jobs, and a page of them; `enough` as of `page`."""
    counting = sa.select(sa.func.count()).select_from(jobs).where(*_conditions(connection, wanted))
    count = connection.execute(counting).scalar_one()
    return count, page(connection, wanted, limit, offset=offset, enough=enough)


def _conditions(connection: sa.Connection, wanted: JobFilters) -> Iterator[sa.ColumnElement[bool]]:
    if wanted.owners is not None:
        yield jobs.c.owner.in_(wanted.owners)
    if wanted.group is not None:
        yield jobs.c.group_id == wanted.group if wanted.group else jobs.c.group_id.is_(None)
    if wanted.states is not None:
        yield jobs.c.state.in_([str(state) for state in wanted.states])
    if wanted.name_prefix:
        yield jobs.c.name.startswith(wanted.name_prefix, autoescape=True)
    if wanted.since is not None:
        yield jobs.c.created_at >= wanted.since
    if wanted.until is not None:
        yield jobs.c.created_at <= wanted.until
    for key, value in wanted.labels.items():
        yield jobs.c.seq.in_(
            sa.select(labels.c.job_seq).where(labels.c.key == key, labels.c.value == value)
        )
    for name, value, or_none in wanted.fields:
        # NULL if the job doesn't set it, or is damaged; SQLite would read a cast to JSON as one to
        # a number
        whole = sa.case((sa.func.json_valid(jobs.c.info) == 1, jobs.c.info))
        found: sa.ColumnElement[Any] = sa.func.json_extract(whole, f"$.spec.{name}")
        if connection.dialect.name != "sqlite":
            found = sa.cast(jobs.c.info, sa.JSON)["spec"][name].as_string()
        yield sa.or_(found == value, found.is_(None)) if or_none else found == value


def find_anywhere(connection: sa.Connection, name: str) -> list[str]:
    """At most two owners that have a job of this name."""
    # from owner to owner in an index that begins with the owner: it reads only what it finds,
    # without an index of names
    owners = sa.select(sa.func.min(jobs.c.owner).label("owner")).cte("owners", recursive=True)
    later = jobs.alias()
    after = (
        sa.select(sa.func.min(later.c.owner))
        .where(later.c.owner > owners.c.owner)
        .scalar_subquery()
    )
    owners = owners.union_all(sa.select(after).where(owners.c.owner.is_not(None)))
    named = (
        sa.select(jobs.c.owner)
        .join(owners, jobs.c.owner == owners.c.owner)
        .where(jobs.c.name == name)
    )
    return list(connection.execute(named.limit(2)).scalars())


def names(connection: sa.Connection, owner: str, limit: int) -> list[str]:
    """The newest names of an owner."""
    query = (
        sa.select(jobs.c.name).where(jobs.c.owner == owner).order_by(jobs.c.seq.desc()).limit(limit)
    )
    return list(connection.execute(query).scalars())
