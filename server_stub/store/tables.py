"""The tables. Users see the JSON text `jobs.info`; the other columns are for queries and decisions.

A change here needs a migration; a test compares both.
"""

from datetime import datetime, timedelta, timezone
from typing import Any

import sqlalchemy as sa

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)


class UtcTime(sa.TypeDecorator[datetime]):
    """An aware datetime as whole microseconds since 1970, exact in every database;
    SQLite knows no time zones.
    """

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:  # noqa: ARG002  # the base's signature
        return None if value is None else (value - _EPOCH) // _MICROSECOND

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        try:
            return None if value is None else _EPOCH + value * _MICROSECOND
        except (OverflowError, TypeError):  # damaged: one row must not make the others unreadable
            return None


class Number(sa.TypeDecorator[int]):
    """A whole number; 0 where a damaged row of SQLite holds anything else."""

    impl = sa.Integer
    cache_ok = True

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> int | None:  # noqa: ARG002
        return value if value is None or isinstance(value, int) else 0


class BigNumber(Number):
    """A Number of 64 bits."""

    impl = sa.BigInteger
    cache_ok = True


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite gives numbers by itself only to a column that it calls INTEGER
_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _partial(name: str, *columns: str, where: str) -> sa.Index:
    return sa.Index(name, *columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


jobs = sa.Table(
    "jobs",
    metadata,
    # the order of acceptance: lists are newest first by it
    sa.Column("seq", _Number, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.String(50), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("version", Number, nullable=False),
    sa.Column("attempt", Number, nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
    sa.Column("first_started_at", UtcTime),  # stop_timer counts from here
    sa.Column("resume_at", UtcTime),  # the pause between two attempts ends
    sa.Column("finished_at", UtcTime),
    sa.Column("stop", sa.Text),  # an order to stop that holds over a restart, as JSON
    sa.Column("remove_at_end", sa.Boolean, nullable=False),  # delete --force
    sa.Column("script_path", sa.Text),  # in place: the script's real path
    sa.Column("snapshot", sa.String(64)),  # digest of the archive
    sa.Column("function", sa.String(64)),  # digest of the pickled function
    sa.Column("size_bytes", BigNumber),  # of its directory when it ended
    sa.Column("unsent", sa.Text),  # the notification of its end, until it is sent
    # place of its submit request: server_stub.files.request_log.Place
    sa.Column("segment", Number, nullable=False),
    sa.Column("offset", BigNumber, nullable=False),
    sa.Column("length", BigNumber, nullable=False),
    sa.Column("info", sa.Text, nullable=False),  # JobInfo
    # no foreign key: the group of the last member goes with it
    sa.Column("group_id", sa.String(32)),
    sa.Column("attention", sa.Text),  # the attention in `info`, for the rows of groups; NULL: none
    sa.UniqueConstraint("owner", "name"),
    sa.Index("ix_jobs_owner_seq", "owner", "seq"),
    sa.Index("ix_jobs_owner_state_seq", "owner", "state", "seq"),
    sa.Index("ix_jobs_state_seq", "state", "seq"),
    _partial("ix_jobs_snapshot", "snapshot", where="snapshot IS NOT NULL"),
    _partial("ix_jobs_unsent", "seq", where="unsent IS NOT NULL"),
    sa.Index("ix_jobs_segment", "segment"),
    sa.Index("ix_jobs_owner_script_path", "owner", "script_path"),
    _partial("ix_jobs_group_id", "group_id", "state", where="group_id IS NOT NULL"),
    _partial("ix_jobs_attention", "group_id", "seq", where="attention IS NOT NULL"),
    _partial("ix_jobs_alone", "owner", "seq", where="group_id IS NULL"),
)

groups = sa.Table(
    "groups",
    metadata,
    # the seq of its first member: lists of jobs and groups have one order
    sa.Column("seq", _Number, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.String(50), nullable=False),
    sa.Column("info", sa.Text, nullable=False),  # GroupInfo
    sa.UniqueConstraint("owner", "name"),
)

labels = sa.Table(
    "labels",
    metadata,
    sa.Column("job_seq", sa.ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Index("ix_labels_key_value_job_seq", "key", "value", "job_seq"),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("id", _Number, primary_key=True),
    sa.Column("job_seq", sa.ForeignKey("jobs.seq", ondelete="CASCADE"), nullable=False),
    sa.Column("time", UtcTime, nullable=False),
    sa.Column("attempt", Number, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", sa.String(32), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Index("ix_events_job_seq_id", "job_seq", "id"),
)

idempotency_keys = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    # no foreign key: it outlives the job, so that a repeat is known
    sa.Column("job_id", sa.String(32), nullable=False),
    sa.Column("created_at", UtcTime, nullable=False),
)

removals = sa.Table(  # files of deleted jobs that are not removed yet
    "removals",
    metadata,
    sa.Column("job_id", sa.String(32), primary_key=True),
    sa.Column("segment", Number, nullable=False),
    sa.Column("offset", BigNumber, nullable=False),
    sa.Column("length", BigNumber, nullable=False),
)

server = sa.Table(  # one row: the one server of this database
    "server",
    metadata,
    # counts the servers that have opened it; only the newest may write
    sa.Column("generation", sa.Integer, nullable=False),
    # of the data directory with the requests, logs and outputs of the jobs
    sa.Column("data_id", sa.String(32)),
)

alembic_version = sa.Table(  # one row: the schema revision of this database
    "alembic_version",
    metadata,
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
