"""Functions as jobs: the digest of what a job's function was pickled to."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("function", sa.String(64)))
