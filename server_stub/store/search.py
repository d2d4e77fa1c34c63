"""Finds jobs by filters, and names and owners, as functions of a connection.

They seek by index; only filters by a field of the spec read all jobs of the owners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, Select, bindparam, cast, func, or_, select

from client_lib.spec.states import State
from server_stub.store.rows import JobRow, all_of
from server_stub.store.tables import jobs, labels


@dataclass(frozen=True)
class JobFilters:
    """The jobs of a list: those that match every filter. None or {}: no filter."""

    owners: Sequence[str] | None = None
    states: Collection[State] | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    name_prefix: str | None = None
    since: datetime | None = None
    """Accepted then or later."""
    until: datetime | None = None
    """Accepted then or before."""
    group: str | None = None
    """Members of the group of this id (for the lookup: name); "": jobs of no group, and groups beside them."""
    fields: Sequence[tuple[str, str, bool]] = ()
    """(field of the spec, its value, True if a job that does not set it matches too). These have no column of their
    own, so every job of the owners is read (5 us each in SQLite)."""


def page(
    connection: Connection, wanted: JobFilters, limit: int, before: int | None = None, offset: int = 0
) -> list[JobRow]:
    """At most `limit` jobs, newest first, older than seq `before`, without the first `offset` of them."""
    query = select(jobs).where(*_conditions(connection, wanted))
    if before is not None:
        query = query.where(jobs.c.seq < before)
    return all_of(connection, query.order_by(jobs.c.seq.desc()).limit(limit).offset(offset))


def search(connection: Connection, wanted: JobFilters, limit: int, offset: int) -> tuple[int, list[JobRow]]:
    """The number of matching jobs, and a page of them."""
    count = select(func.count()).select_from(jobs).where(*_conditions(connection, wanted))
    return connection.execute(count).scalar_one(), page(connection, wanted, limit, offset=offset)


def _conditions(connection: Connection, wanted: JobFilters) -> Iterator[ColumnElement[bool]]:
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
        yield jobs.c.seq.in_(select(labels.c.job_seq).where(labels.c.key == key, labels.c.value == value))
    for name, value, or_none in wanted.fields:
        found = _field_of_spec(connection, name)
        yield or_(found == value, found.is_(None)) if or_none else found == value


def _field_of_spec(connection: Connection, name: str) -> ColumnElement[Any]:
    """The field as text; NULL if the job doesn't set it. SQLite would read a cast to JSON as one to a number."""
    in_sqlite: ColumnElement[Any] = func.json_extract(jobs.c.info, f"$.spec.{name}")
    return in_sqlite if connection.dialect.name == "sqlite" else cast(jobs.c.info, JSON)["spec"][name].as_string()


def find_anywhere(connection: Connection, name: str) -> list[str]:
    """Owners that have a job of this name, at most two of them."""
    return list(connection.execute(_OWNERS_OF_NAME, {"name": name}).scalars())


def _owners_of_name() -> Select[Any]:
    """A query that steps from owner to owner in an index that begins with the owner, so that it reads only the jobs it
    finds and needs no index of names."""
    owners = select(func.min(jobs.c.owner).label("owner")).cte("owners", recursive=True)
    later = jobs.alias()
    after = select(func.min(later.c.owner)).where(later.c.owner > owners.c.owner).scalar_subquery()
    owners = owners.union_all(select(after).where(owners.c.owner.is_not(None)))
    named = select(jobs.c.owner).join(owners, jobs.c.owner == owners.c.owner)
    return named.where(jobs.c.name == bindparam("name")).limit(2)


_OWNERS_OF_NAME = _owners_of_name()


def names(connection: Connection, owner: str, limit: int) -> list[str]:
    """The newest names of an owner."""
    query = select(jobs.c.name).where(jobs.c.owner == owner).order_by(jobs.c.seq.desc()).limit(limit)
    return list(connection.execute(query).scalars())
