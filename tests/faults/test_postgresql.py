"""The whole server on PostgreSQL: what is durable in SQLite is durable there."""

import signal
from pathlib import Path

import pytest
import sqlalchemy as sa

from client_lib.spec import paths
from tests.faults.conftest import Start
from tests.store import postgresql

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("postgresql")]

WAITS = (
    "import os, sys, time\nprint('up', flush=True)\nwhile not os.path.exists(sys.argv[1]): "
    "time.sleep(0.02)\n"
)


@pytest.fixture
def url(postgresql_server: postgresql.Server) -> str:
    return postgresql_server.new_database()


def test_jobs_run_and_outlive_a_killed_server_there_too(
    start: Start, url: str, tmp_path: Path
) -> None:
    stop = tmp_path / "stop"
    on_postgresql = {"CLIENT_LIB_SERVER_DATABASE_URL": url, "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1"}
    first = start(**on_postgresql)
    first.accepted("ran", WAITS, args=[str(stop)], labels={"team": "a"})
    first.running("ran")
    first.accepted("waited", "raise SystemExit(3)", max_retry=1)
    assert first.submit("ran", WAITS).status_code == 409
    database = {
        check["name"]: check["message"] for check in first.get(paths.DOCTOR).json()["checks"]
    }["database"]
    assert database.startswith("postgresql")
    first.end(signal.SIGKILL)

    second = start(**on_postgresql)
    assert second.job("ran")["state"] == "RUNNING"
    stop.touch()
    assert second.ended("ran")["state"] == "SUCCEEDED"
    failed = second.ended("waited")
    assert (failed["state"], failed["attempt"], failed["failure"]["exit_code"]) == ("FAILED", 2, 3)
    assert second.lines("ran") == ["up"]
    states = [event["state"] for event in second.get(paths.job("ran", "events")).json()["events"]]
    assert (states[0], states[-1]) == ("PENDING", "SUCCEEDED")
    listed = second.get(f"{paths.JOBS}?label=team%3Da&state=SUCCEEDED").json()["jobs"]
    assert [job["name"] for job in listed] == ["ran"]
    assert second.call("DELETE", paths.job("waited")).ok
    assert second.get(paths.job("waited")).status_code == 404
    assert second.end()[0] == 0
    assert not list(tmp_path.glob("state/data/*.db"))


def test_one_key_is_one_job_there_too(start: Start, url: str) -> None:
    server = start(CLIENT_LIB_SERVER_DATABASE_URL=url)
    body = {"spec": {"script": "echo hello", "type": "binary"}, "code": {"mode": "in_place"}}
    answers = [
        server.call("POST", paths.JOBS, headers={paths.IDEMPOTENCY_KEY: "a-key"}, json=sent)
        for sent in (body, body, body | {"spec": {"script": "echo other", "type": "binary"}})
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 409]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    server.ended(answers[0].json()["name"])


def test_no_secret_is_in_its_rows(start: Start, url: str) -> None:
    server = start(CLIENT_LIB_SERVER_DATABASE_URL=url)
    secret = "s3cr3t-of-the-job"
    server.accepted("hides", "print('hello')", secrets=["HF_TOKEN"], _secrets={"HF_TOKEN": secret})
    server.ended("hides")
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        tables = sa.inspect(connection).get_table_names()
        rows = [
            str(row)
            for name in tables
            for row in connection.exec_driver_sql(f'SELECT * FROM "{name}"')
        ]
    engine.dispose()
    assert any("hides" in row for row in rows)
    assert not [row for row in rows if secret in row]
