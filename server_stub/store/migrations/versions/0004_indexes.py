"""Fewer pages to write for a submit: no index for what is looked at once an hour, none of what most jobs don't have."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.drop_index("ix_idempotency_keys_created_at", "idempotency_keys")
    op.drop_index("ix_jobs_snapshot", "jobs")
    there = sa.text("snapshot IS NOT NULL")
    op.create_index("ix_jobs_snapshot", "jobs", ["snapshot"], sqlite_where=there, postgresql_where=there)
