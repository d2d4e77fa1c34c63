"""Number the servers of the database, name the data directory that its rows refer to, keep the
notification of the end of a job until it is sent, and add groups of jobs.

No released version has written what lies between 0004 and this.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0004"

_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    server = op.create_table(
        "server",
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("data_id", sa.String(32)),
    )
    op.bulk_insert(server, [{"generation": 0, "data_id": None}])
    op.add_column("jobs", sa.Column("unsent", sa.Text))
    has = sa.text("unsent IS NOT NULL")
    op.create_index("ix_jobs_unsent", "jobs", ["seq"], sqlite_where=has, postgresql_where=has)
    op.add_column("jobs", sa.Column("group_id", sa.String(32)))
    member = sa.text("group_id IS NOT NULL")
    alone = sa.text("group_id IS NULL")
    op.create_index(
        "ix_jobs_group_id",
        "jobs",
        ["group_id", "state"],
        sqlite_where=member,
        postgresql_where=member,
    )
    op.create_index(
        "ix_jobs_alone", "jobs", ["owner", "seq"], sqlite_where=alone, postgresql_where=alone
    )
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
