"""The one search that looks into the stored texts of jobs: by fields of the spec that have no column of their own.

It reads every job of its owners (5 us each in SQLite), which lists of `/api/v1` never do: they seek by index.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, cast, func, or_, select

from client_lib.spec.states import State
from server_stub.store.tables import jobs


def search(
    connection: Connection,
    owners: Collection[str],
    states: Collection[State] | None,
    since: datetime | None,
    until: datetime | None,
    fields: Sequence[tuple[str, str, bool]],
    limit: int,
    offset: int,
) -> tuple[int, list[tuple[int, str]]]:
    """How many jobs match, and (seq, info) of at most `limit` of them, newest first, behind the first `offset`.

    `states` None: all. `fields`: (field of the spec, its value, whether a job that sets none matches too).
    """
    conditions: list[ColumnElement[bool]] = [jobs.c.owner.in_(owners)]
    if states is not None:
        conditions.append(jobs.c.state.in_([str(state) for state in states]))
    if since is not None:
        conditions.append(jobs.c.created_at >= since)
    if until is not None:
        conditions.append(jobs.c.created_at <= until)
    for name, value, or_none in fields:
        field = _field_of_spec(connection, name)
        conditions.append(or_(field == value, field.is_(None)) if or_none else field == value)
    count = connection.execute(select(func.count()).select_from(jobs).where(*conditions)).scalar_one()
    page = select(jobs.c.seq, jobs.c.info).where(*conditions).order_by(jobs.c.seq.desc()).limit(limit).offset(offset)
    return count, [(seq, info) for seq, info in connection.execute(page)]


def _field_of_spec(connection: Connection, name: str) -> ColumnElement[Any]:
    """As text; NULL where the job doesn't set it. SQLite would read a cast to JSON as one to a number."""
    in_sqlite: ColumnElement[Any] = func.json_extract(jobs.c.info, f"$.spec.{name}")
    return in_sqlite if connection.dialect.name == "sqlite" else cast(jobs.c.info, JSON)["spec"][name].as_string()
