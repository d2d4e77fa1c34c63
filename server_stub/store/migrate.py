"""Brings a database to the newest schema at start, by Alembic. Alembic is not even imported when it is there already.

Private to `server_stub.store`. To change the schema: change `tables`, add a file to `migrations/versions`, set HEAD.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from client_lib.errors import ServerError

HEAD = "0004"
MIGRATIONS = Path(__file__).parent / "migrations"


def migrate(connection: Connection) -> None:
    """Run the missing migrations inside the connection's transaction.

    Raises:
        ServerError: the database was written by a newer version.
    """
    current = _revision(connection)
    if current == HEAD:
        return
    if current is not None and current not in _revisions():
        raise ServerError(
            f"the database is at schema {current}, which is newer than this version knows ({HEAD})",
            hint="install the newer version of client-lib again, or use another data directory",
        )
    _upgrade(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _revisions() -> set[str]:
    names = (re.match(r"(\d{4})_", path.name) for path in (MIGRATIONS / "versions").glob("*.py"))
    return {name.group(1) for name in names if name}


def _upgrade(connection: Connection) -> None:
    from alembic import command  # here: 150 ms that only a new or an older database has to pay
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
