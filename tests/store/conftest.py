import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[postgresql.Server]:
    programs = postgresql.binaries()
    if programs is None:
        pytest.skip("PostgreSQL's initdb is not installed (apt-get install postgresql)")
    with postgresql.started(programs) as server:
        yield server


POSTGRESQL = [pytest.mark.process, pytest.mark.xdist_group("postgresql")]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=POSTGRESQL)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/test.db"
    server: postgresql.Server = request.getfixturevalue("postgresql_server")
    return server.new_database()


@pytest.fixture
def postgresql_may_stop(postgresql_server: postgresql.Server) -> Iterator[postgresql.Server]:
    """The server, which the test may stop."""
    yield postgresql_server
    with contextlib.suppress(RuntimeError):  # it runs
        postgresql_server.start()


@pytest.fixture
def proxy(postgresql_server: postgresql.Server) -> Iterator[postgresql.Proxy]:
    with tempfile.TemporaryDirectory(
        prefix="pg-", dir="/tmp"
    ) as folder:  # a socket's path may have 107 characters
        proxy = postgresql.Proxy(postgresql_server, Path(folder))
        yield proxy
        proxy.close()
