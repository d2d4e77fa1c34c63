"""Old, new and foreign databases."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy as sa

from client_lib.errors import ServerError
from server_stub.store import Store
from server_stub.store.engines import migrate, writing_engine
from server_stub.store.tables import metadata
from tests.store.test_store import added, opened, row


def make_0_1_0(connection: sa.Connection) -> None:
    """Make the tables that version 0.1.0 has made."""
    metadata.create_all(
        connection, [table for table in metadata.sorted_tables if table.name not in ("groups", "server")]
    )
    for statement in (
        *(f"DROP INDEX ix_jobs_{index}" for index in ("unsent", "group_id", "alone")),
        *(f"ALTER TABLE jobs DROP COLUMN {column}" for column in ("unsent", "group_id")),
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('0004')",
    ):
        connection.exec_driver_sql(statement)


def schema(connection: sa.Connection) -> dict[str, object]:
    """The tables of the database with their columns and indexes."""
    found = sa.inspect(connection)
    return {
        table: (
            {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table)},
            {str(index["name"]): (index["column_names"], index["unique"]) for index in found.get_indexes(table)},
        )
        for table in found.get_table_names()
    }


def test_a_database_of_0_1_0_gets_the_tables_of_the_code(url: str) -> None:
    async def run() -> None:
        engine = writing_engine(url)
        with engine.begin() as connection:
            assert migrate(connection)
            new = schema(connection)
            metadata.drop_all(connection)
            connection.exec_driver_sql("DROP TABLE alembic_version")
            make_0_1_0(connection)
            assert not migrate(connection)
            assert schema(connection) == new
        engine.dispose()
        async with opened(url) as store:
            await store.write(added, row())

    asyncio.run(run())


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    async def run() -> None:
        store = Store(url)
        await store.open()
        await store.write(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")) and None)
        await store.close()
        with pytest.raises(ServerError, match="newer than this version"):
            await Store(url).open()

    asyncio.run(run())
