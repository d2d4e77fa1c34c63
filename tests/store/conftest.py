from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.store import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    programs = postgresql.binaries()
    if programs is None:
        pytest.skip("PostgreSQL's initdb is not installed (apt-get install postgresql)")
    with postgresql.server(programs) as url:
        yield url


POSTGRESQL = [pytest.mark.process, pytest.mark.xdist_group("postgresql")]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=POSTGRESQL)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: str = request.getfixturevalue("postgresql_server")
    admin = sa.create_engine(server.format(database="postgres"), isolation_level="AUTOCOMMIT")
    name = f"t{uuid.uuid4().hex}"
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    return server.format(database=name)
