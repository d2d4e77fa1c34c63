"""The database goes away under a running server, or a commit fails: calls say so,
clients wait, jobs run on.
"""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from tests.faults.conftest import Server, Start
from tests.kit.processes import processes_of
from tests.kit.waiting import until
from tests.store.postgresql import Server as Postgresql
from tests.store.test_store import opened

pytestmark = pytest.mark.process
postgresql = pytest.mark.xdist_group("postgresql")

SAYS = """
import os, sys, time
print("up", flush=True)
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
for number in range(3): print("line", number, flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
print("end", flush=True)
"""


def assert_unavailable(answer: requests.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable"), answer.text
    assert float(answer.headers["Retry-After"]) > 0


def client_of(server: Server) -> dict[str, str]:
    """The variables of a client on another machine."""
    token = (server.state_dir / "token").read_text().strip()
    return {"CLIENT_LIB_ENDPOINT": server.facts()["url"], "CLIENT_LIB_TOKEN": token}


@postgresql
def test_a_restarted_postgresql_is_locked_again_and_jobs_run_on(
    start: Start, postgresql_may_stop: Postgresql, tmp_path: Path
) -> None:
    url, says, ends = postgresql_may_stop.new_database(), tmp_path / "says", tmp_path / "ends"
    variables = {"CLIENT_LIB_SERVER_DATABASE_URL": url, "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "1"}
    server = start(**variables)
    server.accepted("runs", SAYS, args=[str(says), str(ends)])
    server.running("runs")
    server.accepted("waits", "print('hello')")
    postgresql_may_stop.restart()
    (tmp_path / "other").mkdir()
    other = Server(tmp_path / "other", **variables)
    assert (
        "belongs to another data directory" in other.refused()
        or "another server runs on" in other.output
    )
    until(lambda: server.get(paths.READYZ).ok)
    assert [server.job(name)["state"] for name in ("runs", "waits")] == ["RUNNING", "PENDING"]
    says.touch()
    ends.touch()
    assert [server.ended(name)["state"] for name in ("runs", "waits")] == ["SUCCEEDED"] * 2


@postgresql
def test_calls_get_503_clients_wait_and_followers_go_on_while_postgresql_is_away(
    start: Start, postgresql_may_stop: Postgresql, tmp_path: Path
) -> None:
    says, ends = tmp_path / "says", tmp_path / "ends"
    server = start(CLIENT_LIB_SERVER_DATABASE_URL=postgresql_may_stop.new_database())
    server.accepted("over", "print('it ran')")
    server.ended("over")
    server.accepted("runs", SAYS, args=[str(says), str(ends)])
    server.accepted("goes", SAYS, args=[str(says), str(tmp_path / "never")])
    for name in ("runs", "goes"):
        server.running(name)
    environment = {**os.environ, **client_of(server), "CLIENT_LIB_RETRY_S": "120"}

    def client_lib(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "client_lib", *words]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    followers = [client_lib("logs", "-f", "runs") for _ in range(2)]
    for follower in followers:
        assert follower.stdout
        assert follower.stdout.readline() == "[0] up\n"
    postgresql_may_stop.stop()

    assert_unavailable(server.get(paths.READYZ))
    assert_unavailable(server.get(paths.JOBS))
    assert_unavailable(server.get(paths.job("over")))
    platform = server.get("/public/v2/jobs")
    assert (platform.status_code, platform.headers["Retry-After"]) == (503, "1")
    assert_unavailable(server.submit("new", "print('hello')"))
    assert_unavailable(server.call("DELETE", paths.job("over")))
    assert_unavailable(server.call("POST", paths.job("goes", "cancel")))
    checks = {check["name"]: check for check in server.get(paths.DOCTOR).json()["checks"]}
    assert not checks["database"]["ok"]
    says.touch()
    for follower in followers:
        assert follower.stdout
        assert [follower.stdout.readline() for _ in range(3)] == [
            f"[0] line {n}\n" for n in range(3)
        ]
    ends.touch()
    waiting = client_lib("logs", "over")
    submitting = client_lib("submit", "--name", "later", str(tmp_path / "over.py"))
    with pytest.raises(subprocess.TimeoutExpired):
        submitting.wait(2)

    postgresql_may_stop.start()
    for follower in followers:
        assert follower.communicate(timeout=60)[0] == "[0] end\n"
        assert follower.returncode == 0
    assert waiting.communicate(timeout=60)[0] == "[0] it ran\n"
    submitting.communicate(timeout=60)
    assert submitting.returncode == 0
    assert server.ended("later")["state"] == "SUCCEEDED"
    assert server.ended("runs")["state"] == "SUCCEEDED"
    assert server.ended("goes")["state"] == "CANCELLED", "the order was kept"
    assert server.submit("new", "print('hello')").status_code == 201


@postgresql
def test_a_server_that_another_one_has_replaced_ends_and_its_jobs_run_on(
    start: Start, postgresql_may_stop: Postgresql, tmp_path: Path
) -> None:
    url = postgresql_may_stop.new_database()
    first = start(CLIENT_LIB_SERVER_DATABASE_URL=url)
    first.accepted("runs", SAYS, args=[str(tmp_path / "never"), ""])
    first.running("runs")
    processes = processes_of(tmp_path / "runs.py")
    first.process.send_signal(signal.SIGSTOP)
    postgresql_may_stop.restart()

    async def take_over() -> None:
        async with opened(url):
            first.process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(first.process.wait, 60) == 1

    asyncio.run(take_over())
    assert "another server has taken over the database" in first.output
    assert "Traceback" not in first.output
    assert processes
    assert processes_of(tmp_path / "runs.py") == processes
    again = start(CLIENT_LIB_SERVER_DATABASE_URL=url)
    assert again.job("runs")["state"] == "RUNNING"


def test_a_submit_whose_commit_fails_in_sqlite_is_not_accepted(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    server.accepted("before", "print('hello')")
    server.ended("before")
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    full = (tmp_path / "state" / "data" / "client_lib.db-wal").stat().st_size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (full, limits[1]))
    for _ in range(2):
        assert_unavailable(server.submit("refused", "print('hello')"))
    assert server.get(paths.JOBS).ok
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    assert server.get(paths.job("refused")).status_code == 404
    server.end(signal.SIGKILL)
    server = start()
    assert server.get(paths.job("refused")).status_code == 404
    server.accepted("refused", "print('hello')")
    assert server.ended("refused")["state"] == "SUCCEEDED"


FAILING_FDATASYNC = """
import errno, os, pathlib
real, failing = os.fdatasync, pathlib.Path(__file__).with_name("failing")
def fdatasync(file):
    if failing.exists():
        raise OSError(errno.EIO, "Input/output error")
    real(file)
os.fdatasync = fdatasync
"""


def test_a_submit_whose_request_can_not_be_synced_is_not_accepted(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAILING_FDATASYNC)  # Python imports it at its start
    failing = tmp_path / "failing"
    server = start(PYTHONPATH=str(tmp_path))
    server.accepted("before", "print('hello')")
    server.ended("before")
    failing.touch()
    refused = server.submit("refused", "print('hello')")
    assert (refused.status_code, refused.json()["code"]) == (500, "server_error")
    assert "Input/output error; nothing was stored" in refused.json()["message"]
    failing.unlink()
    server.accepted("after", "print('hello')")
    server.end(signal.SIGKILL)
    server = start()
    assert server.get(paths.job("refused")).status_code == 404
    assert [server.ended(name)["state"] for name in ("before", "after")] == ["SUCCEEDED"] * 2
