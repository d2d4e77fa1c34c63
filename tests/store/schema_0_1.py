"""The tables of version 0.1.0, as its migrations made them."""

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

VERSION = "0004"


def create(connection: sa.Connection) -> None:
    op, number = (
        Operations(MigrationContext.configure(connection)),
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
    )
    op.create_table(
        "jobs",
        sa.Column("seq", number, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.String(50), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("first_started_at", sa.BigInteger),
        sa.Column("resume_at", sa.BigInteger),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("stop", sa.Text),
        sa.Column("remove_at_end", sa.Boolean, nullable=False),
        sa.Column("script_path", sa.Text),
        sa.Column("snapshot", sa.String(64)),
        sa.Column("function", sa.String(64)),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.Column("info", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("owner", "name", name="uq_jobs_owner_name"),
    )
    op.create_index("ix_jobs_owner_seq", "jobs", ["owner", "seq"])
    op.create_index("ix_jobs_owner_state_seq", "jobs", ["owner", "state", "seq"])
    op.create_index("ix_jobs_state_seq", "jobs", ["state", "seq"])
    there = sa.text("snapshot IS NOT NULL")
    op.create_index(
        "ix_jobs_snapshot", "jobs", ["snapshot"], sqlite_where=there, postgresql_where=there
    )
    op.create_index("ix_jobs_segment", "jobs", ["segment"])
    op.create_index("ix_jobs_owner_script_path", "jobs", ["owner", "script_path"])
    op.create_table(
        "labels",
        sa.Column("job_seq", number, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job_seq", "key", name="pk_labels"),
        sa.ForeignKeyConstraint(
            ["job_seq"], ["jobs.seq"], name="fk_labels_job_seq", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_labels_key_value_job_seq", "labels", ["key", "value", "job_seq"])
    op.create_table(
        "events",
        sa.Column("id", number, nullable=False),
        sa.Column("job_seq", number, nullable=False),
        sa.Column("time", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(32), nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
        sa.ForeignKeyConstraint(
            ["job_seq"], ["jobs.seq"], name="fk_events_job_seq", ondelete="CASCADE"
        ),
    )
    op.create_index("ix_events_job_seq_id", "events", ["job_seq", "id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "removals",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("segment", sa.Integer, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("length", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_removals"),
    )
    op.create_table(
        "alembic_version",
        sa.Column("version_num", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
    )
    connection.execute(
        sa.text("INSERT INTO alembic_version VALUES (:version)"), {"version": VERSION}
    )
