"""Old, new and foreign databases."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

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


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    async def run() -> None:
        store = Store(url)
        await store.open()
        await store.write(lambda c: c.execute(sa.text("UPDATE alembic_version SET version_num = '9999'")) and None)
        await store.close()
        with pytest.raises(ServerError, match="newer than this version"):
            await Store(url).open()

    asyncio.run(run())


def test_alembic_is_not_loaded_when_there_is_nothing_to_migrate(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys; from server_stub.store import Store\n"
        "async def main():\n"
        "    for _ in range(2):  # a new database, and one of this version\n"
        "        store = Store(sys.argv[1]); await store.open(); await store.close(); print('alembic' in sys.modules)\n"
        "asyncio.run(main())"
    )
    command = [sys.executable, "-c", program, f"sqlite:///{tmp_path}/test.db"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["False", "False"]
