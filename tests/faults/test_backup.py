"""A backup of a running server, as docs/kubernetes.md describes it, is restored
elsewhere: its jobs are found.
"""

import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.faults.conftest import Start
from tests.kit.processes import kill_processes_of
from tests.store.postgresql import Server as Postgresql

pytestmark = pytest.mark.process

WAITS = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n"


class OnSqlite:
    def __init__(self, data: Path) -> None:
        self._data, self.url = data, f"sqlite:///{data}/client_lib.db"

    def back_up(self, file: Path) -> None:
        with (
            closing(sqlite3.connect(self._data / "client_lib.db")) as live,
            closing(sqlite3.connect(file)) as copy,
        ):
            live.backup(copy)  # as `sqlite3 client_lib.db '.backup FILE'`

    def restore(self, file: Path) -> str:
        # copied with the volume, while they were written
        for torn in self._data.glob("client_lib.db*"):
            torn.unlink()
        shutil.copy(file, self._data / "client_lib.db")
        return self.url


class OnPostgresql:
    def __init__(self, server: Postgresql) -> None:
        self._server, self.url = server, server.new_database()

    def back_up(self, file: Path) -> None:
        self._run("pg_dump", self.url, "-f", str(file))

    def restore(self, file: Path) -> str:
        url = self._server.new_database()
        self._run("psql", url, "-q", "-f", str(file))
        return url

    def _run(self, program: str, url: str, *words: str) -> None:
        name = sa.make_url(url).database
        subprocess.run(
            [program, "-h", self._server.folder, "-U", "test", "-d", str(name), *words], check=True
        )


@pytest.mark.parametrize(
    "kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]
)
def test_a_server_elsewhere_has_the_jobs_of_a_backup(
    kind: str, start: Start, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data, volume, dump = tmp_path / "state" / "data", tmp_path / "volume", tmp_path / "dump"
    database = (
        OnSqlite(data)
        if kind == "sqlite"
        else OnPostgresql(request.getfixturevalue("postgresql_server"))
    )
    variables = {"CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1"}
    server = start(**variables, CLIENT_LIB_SERVER_DATABASE_URL=database.url)
    server.accepted("ends", "print('done')\n")
    ended = server.ended("ends")
    server.accepted("runs", WAITS)
    server.running("runs")
    server.accepted("waits", "print('later')\n")
    database.back_up(dump)
    server.accepted("late", "print('too late for the backup')\n")
    subprocess.run(["cp", "-a", data, volume], check=True)
    server.kill()  # the machine is lost
    kill_processes_of(tmp_path)
    shutil.rmtree(tmp_path / "state")

    data.parent.mkdir()
    volume.rename(data)
    (tmp_path / "go").touch()
    again = start(**variables, CLIENT_LIB_SERVER_DATABASE_URL=database.restore(dump))
    assert again.job("ends") == ended
    assert again.lines("ends") == ["done"]
    # on this machine; pods of a cluster go on
    assert again.ended("runs")["reason"] == "LauncherLost"
    assert again.ended("waits")["state"] == "SUCCEEDED"
    assert "no job named late" in again.job("late")["message"]
    again.accepted("late", "print('again')\n")
    assert again.ended("late")["state"] == "SUCCEEDED"
    assert again.lines("late") == ["again"]
