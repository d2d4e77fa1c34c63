"""The database of a server is lost or damaged under real jobs; the next server
says so and gets them back.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from client_lib.spec import paths
from tests.faults.conftest import Start
from tests.kit.processes import processes_of
from tests.kit.waiting import until

pytestmark = pytest.mark.process

WAITS = (
    "import pathlib, time\nprint('up', flush=True)\nwhile not pathlib.Path('go').exists(): "
    "time.sleep(0.05)\n"
)


@pytest.mark.parametrize("how", ["missing", pytest.param("damaged", marks=pytest.mark.smoke)])
def test_jobs_are_found_again_without_their_database(
    how: str, start: Start, tmp_path: Path
) -> None:
    server = start(CLIENT_LIB_SERVER_MAX_CPU_JOBS="1")
    server.accepted("ends", "print('done')\n")
    ended = server.ended("ends")
    server.accepted("runs", WAITS)
    server.accepted("waits", "print('later')\n")
    running = server.running("runs")
    server.kill()
    database = tmp_path / "state" / "data" / "client_lib.db"
    for part in database.parent.glob("client_lib.db-*"):
        part.unlink()
    if how == "missing":
        database.unlink()
    else:
        database.write_bytes(b"no database" * 10_000)
    said = start(CLIENT_LIB_SERVER_MAX_CPU_JOBS="1").refused()
    assert f"is {how}" in said
    assert "serve --recover" in said

    again = start("--recover", CLIENT_LIB_SERVER_MAX_CPU_JOBS="1")
    assert again.job("ends") == ended
    assert again.lines("ends") == ["done"]
    found = again.running("runs")
    assert (found["id"], found["workers"][0]["host"]) == (
        running["id"],
        running["workers"][0]["host"],
    )
    assert again.job("waits")["state"] == "PENDING"
    (tmp_path / "go").touch()
    assert [again.ended(name)["state"] for name in ("runs", "waits")] == ["SUCCEEDED", "SUCCEEDED"]
    assert again.lines("runs") == ["up"], "it was not started twice"
    assert len(again.get(paths.JOBS).json()["jobs"]) == 3


def test_pages_that_are_damaged_while_the_server_runs_are_told_at_once(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    server.accepted("runs", WAITS)
    server.running("runs")
    database = tmp_path / "state" / "data" / "client_lib.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages = connection.execute(
            "SELECT pageno FROM dbstat WHERE name IN ('jobs', 'events')"
        ).fetchall()
    with database.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * 4096)
            file.write(b"\xa5" * 4096)
    with closing(
        sqlite3.connect(database)
    ) as connection:  # a write by another process: the server's caches are void
        connection.execute("UPDATE alembic_version SET version_num = version_num")
        connection.commit()
    (tmp_path / "go").touch()
    until(lambda: server.get(paths.READYZ).status_code == 503)
    for answer in (server.get(paths.READYZ), server.submit("next", "print(1)")):
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert "is damaged: database disk image is malformed" in answer.json()["message"]
        assert "serve --recover" in answer.json()["hint"]
    (check,) = [
        each for each in server.get(paths.DOCTOR).json()["checks"] if each["name"] == "database"
    ]
    assert not check["ok"]
    assert "serve --recover" in check["fix"]
    server.kill()

    again = start("--recover")
    assert again.ended("runs")["state"] == "SUCCEEDED"
    assert again.lines("runs") == ["up"], "it was not started twice"


def test_a_running_job_whose_row_is_damaged_is_ended_with_its_processes(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    for name in ("damaged", "whole"):
        server.accepted(name, WAITS)
        server.running(name)
    job_id = server.job("damaged")["id"]
    server.kill()
    with closing(sqlite3.connect(tmp_path / "state" / "data" / "client_lib.db")) as connection:
        connection.execute("UPDATE jobs SET info = '{' WHERE name = 'damaged'")
        connection.commit()
    again = start()
    failed = again.ended("damaged")
    assert (failed["state"], failed["reason"]) == ("FAILED", "ServerError")
    assert not processes_of(tmp_path / "state" / "data" / "jobs" / job_id)
    assert again.running("whole")
    (tmp_path / "go").touch()
    assert again.ended("whole")["state"] == "SUCCEEDED"
