"""Number the servers of the database, and name the data directory that its rows refer to."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    server = op.create_table(
        "server", sa.Column("generation", sa.Integer, nullable=False), sa.Column("data_id", sa.String(32))
    )
    op.bulk_insert(server, [{"generation": 0, "data_id": None}])
