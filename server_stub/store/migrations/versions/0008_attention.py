"""Keep what of a job deserves attention in a column, for the rows of groups."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("attention", sa.Text))
    has = sa.text("attention IS NOT NULL")
    op.create_index(
        "ix_jobs_attention",
        "jobs",
        ["group_id", "seq"],
        sqlite_where=has,
        postgresql_where=has,
    )
