"""Groups of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("group_id", sa.String(32)))
    member, alone = sa.text("group_id IS NOT NULL"), sa.text("group_id IS NULL")
    op.create_index("ix_jobs_group_id", "jobs", ["group_id", "state"], sqlite_where=member, postgresql_where=member)
    op.create_index("ix_jobs_alone", "jobs", ["owner", "seq"], sqlite_where=alone, postgresql_where=alone)
    op.create_table(
        "groups",
        sa.Column("seq", _Number, nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.String(50), nullable=False),
        sa.Column("info", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_groups"),
        sa.UniqueConstraint("id", name="uq_groups_id"),
        sa.UniqueConstraint("owner", "name", name="uq_groups_owner_name"),
    )
