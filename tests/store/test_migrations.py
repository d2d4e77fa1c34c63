"""Old, new and foreign databases."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from client_lib.errors import ServerError
from server_stub.store import Store
from server_stub.store.engines import HEAD, MIGRATIONS, migrate, writing_engine
from server_stub.store.tables import alembic_version, metadata, server
from tests.store import schema_0_1


@pytest.mark.parametrize("old", [False, True], ids=["new", "0.1.0"])
def test_a_new_database_and_a_migrated_one_have_the_tables_of_the_code(url: str, old: bool) -> None:
    engine = writing_engine(url)
    with engine.begin() as connection:
        if old:
            schema_0_1.create(connection)
        assert migrate(connection) is not old
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.execute(sa.select(alembic_version)).all() == [(HEAD,)]
        assert connection.execute(sa.select(server.c.generation)).all() == [(0,)]
    engine.dispose()


def described(connection: sa.Connection) -> dict[str, Any]:
    """All tables, as the database describes them."""
    inspector = sa.inspect(connection)
    return {
        table: {
            "columns": sorted(str(column) for column in inspector.get_columns(table)),
            "key": inspector.get_pk_constraint(table),
            "foreign": inspector.get_foreign_keys(table),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": inspector.get_check_constraints(table),
            "indexes": sorted(
                str(
                    index
                    | {
                        "dialect_options": {
                            name: str(value) for name, value in index["dialect_options"].items()
                        }
                    }
                )
                for index in inspector.get_indexes(table)
            ),
        }
        for table in inspector.get_table_names()
    }


def test_a_new_database_and_a_migrated_one_differ_in_nothing(url: str) -> None:
    engine, found = writing_engine(url), []
    for old in (False, True):
        with engine.connect() as connection:  # rolled back at its end, with all tables
            if old:
                schema_0_1.create(connection)
            migrate(connection)
            found.append(described(connection))
    engine.dispose()
    assert found[0].keys() == metadata.tables.keys()
    assert found[0] == found[1]


def test_tables_of_another_program_are_not_taken_for_those_of_the_server(url: str) -> None:
    engine = writing_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE events (place TEXT)"))
    engine.dispose()
    with pytest.raises(ServerError, match=r"can't be opened.*events.* already exists"):
        asyncio.run(Store(url).open())
    engine = writing_engine(url)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["events"]
    engine.dispose()


def test_a_start_that_is_killed_among_its_tables_leaves_an_empty_database(url: str) -> None:
    program = (
        "import os, sys; import sqlalchemy as sa; from server_stub.store import engines\n"
        "engine = engines.writing_engine(sys.argv[1])\n"
        "def die(connection, cursor, statement, *_):\n"
        "    if 'INSERT INTO alembic_version' in statement: os._exit(9)\n"
        "sa.event.listen(engine, 'before_cursor_execute', die)\n"
        "with engine.begin() as connection: engines.migrate(connection)"
    )
    assert subprocess.run([sys.executable, "-c", program, url], check=False).returncode == 9

    async def run() -> None:
        store = Store(url)
        assert await store.open()
        await store.close()

    asyncio.run(run())


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    async def run() -> None:
        store = Store(url)
        await store.open()
        await store.write(
            lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")) and None
        )
        await store.close()
        with pytest.raises(ServerError, match="newer than this version"):
            await Store(url).open()

    asyncio.run(run())


def test_alembic_is_not_loaded_when_there_is_nothing_to_migrate(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from server_stub.store import Store\nasync def main():\n    for _ "
        "in range(2):  # a new database, and one of this version\n        store = "
        "Store(sys.argv[1]); await store.open(); await store.close(); print('alembic' in "
        "sys.modules)\nasyncio.run(main())"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path}/test.db"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["False", "False"]
