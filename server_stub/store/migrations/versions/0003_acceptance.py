"""Delete the events of acceptance, which repeat the row of the job."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    first = "SELECT min(id) FROM events GROUP BY job_seq"
    op.execute(sa.text(f"DELETE FROM events WHERE state = 'PENDING' AND reason = 'Queued' AND id IN ({first})"))
