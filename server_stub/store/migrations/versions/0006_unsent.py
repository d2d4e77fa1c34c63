"""Keep the notification of the end of a job until it is sent."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("unsent", sa.Text))
    has = sa.text("unsent IS NOT NULL")
    op.create_index("ix_jobs_unsent", "jobs", ["seq"], sqlite_where=has, postgresql_where=has)
