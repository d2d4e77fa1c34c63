"""The tables. Users see the JSON text `jobs.info`; the other columns are for queries and decisions.

A change here needs a migration; a test compares both.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    text,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class UtcTime(TypeDecorator[datetime]):
    """An aware datetime as whole microseconds since 1970, exact in every database; SQLite knows no time zones."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002  # the base's signature
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        try:
            return None if value is None else _EPOCH + value * _MICROSECOND
        except (OverflowError, TypeError):  # damaged: one row must not make the others unreadable
            return None


class Number(TypeDecorator[int]):
    """A whole number; 0 where a damaged row of SQLite holds anything else."""

    impl = Integer
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:  # noqa: ARG002
        return value if value is None or isinstance(value, int) else 0


class BigNumber(Number):
    """The same, of 64 bits."""

    impl = BigInteger
    cache_ok = True


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite gives numbers by itself only to a column that it calls INTEGER
_Number = BigInteger().with_variant(Integer, "sqlite")


def _partial(name: str, *columns: str, where: str) -> Index:
    """An index of the rows for which `where` is true."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


jobs = Table(
    "jobs",
    metadata,
    Column("seq", _Number, primary_key=True),  # the order of acceptance: lists are newest first by it
    Column("id", String(32), nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("name", String(50), nullable=False),
    Column("state", String(16), nullable=False),
    Column("version", Number, nullable=False),
    Column("attempt", Number, nullable=False),
    Column("created_at", UtcTime, nullable=False),
    Column("first_started_at", UtcTime),  # stop_timer counts from here
    Column("resume_at", UtcTime),  # the pause between two attempts ends
    Column("finished_at", UtcTime),
    Column("stop", Text),  # an order to stop that holds over a restart, as JSON
    Column("remove_at_end", Boolean, nullable=False),  # delete --force
    Column("script_path", Text),  # in place: the script's real path
    Column("snapshot", String(64)),  # digest of the archive
    Column("function", String(64)),  # digest of the pickled function
    Column("size_bytes", BigNumber),  # of its directory when it ended
    Column("unsent", Text),  # the notification of its end, until it is sent
    Column("segment", Number, nullable=False),  # place of its submit request: server_stub.files.request_log.Place
    Column("offset", BigNumber, nullable=False),
    Column("length", BigNumber, nullable=False),
    Column("info", Text, nullable=False),  # JobInfo
    Column("group_id", String(32)),  # no foreign key: the group of the last member goes with it
    UniqueConstraint("owner", "name"),
    Index("ix_jobs_owner_seq", "owner", "seq"),
    Index("ix_jobs_owner_state_seq", "owner", "state", "seq"),
    Index("ix_jobs_state_seq", "state", "seq"),
    _partial("ix_jobs_snapshot", "snapshot", where="snapshot IS NOT NULL"),
    _partial("ix_jobs_unsent", "seq", where="unsent IS NOT NULL"),
    Index("ix_jobs_segment", "segment"),
    Index("ix_jobs_owner_script_path", "owner", "script_path"),
    _partial("ix_jobs_group_id", "group_id", "state", where="group_id IS NOT NULL"),
    _partial("ix_jobs_alone", "owner", "seq", where="group_id IS NULL"),
)

groups = Table(
    "groups",
    metadata,
    Column("seq", _Number, primary_key=True),  # that of its first member: lists of jobs and groups have one order
    Column("id", String(32), nullable=False, unique=True),
    Column("owner", Text, nullable=False),
    Column("name", String(50), nullable=False),
    Column("info", Text, nullable=False),  # GroupInfo
    UniqueConstraint("owner", "name"),
)

labels = Table(
    "labels",
    metadata,
    Column("job_seq", ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Index("ix_labels_key_value_job_seq", "key", "value", "job_seq"),
)

events = Table(
    "events",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("job_seq", ForeignKey("jobs.seq", ondelete="CASCADE"), nullable=False),
    Column("time", UtcTime, nullable=False),
    Column("attempt", Number, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", String(32), nullable=False),
    Column("message", Text, nullable=False),
    Index("ix_events_job_seq_id", "job_seq", "id"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("owner", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("job_id", String(32), nullable=False),  # no foreign key: it outlives the job, so that a repeat is known
    Column("created_at", UtcTime, nullable=False),
)

removals = Table(  # files of deleted jobs that are not removed yet
    "removals",
    metadata,
    Column("job_id", String(32), primary_key=True),
    Column("segment", Number, nullable=False),
    Column("offset", BigNumber, nullable=False),
    Column("length", BigNumber, nullable=False),
)

server = Table(  # one row: the one server of this database
    "server",
    metadata,
    Column("generation", Integer, nullable=False),  # counts the servers that have opened it; only the newest may write
    Column("data_id", String(32)),  # of the data directory with the requests, logs and outputs of the jobs
)
