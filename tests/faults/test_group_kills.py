"""kill -9 of the server while a group is submitted: the repeated request finds all of
its members, or stores them.
"""

import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.spec import paths
from tests.faults.conftest import Start
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import until

pytestmark = pytest.mark.process

RUNS = 200
ORDER: dict[str, Any] = {
    "name": "scan",
    "request": {"spec": {"script": "sleep", "type": "binary"}, "code": {"mode": "in_place"}},
    "members": [{"args": [f"0.{number}"]} for number in range(RUNS)],
    "max_parallel": 1,
}


def post(server: ServerProcess) -> requests.Response:
    return server.call("POST", paths.GROUPS, json=ORDER, headers={paths.IDEMPOTENCY_KEY: "once"})


@pytest.mark.parametrize(("where", "again"), [("written", 201), ("committed", 200)])
def test_a_kill_in_the_middle_of_a_submit_loses_and_doubles_no_member(
    where: str, again: int, tmp_path: Path
) -> None:
    """`again`: the status of the repeated request, which tells that nothing of the
    first was stored, or all.
    """
    state, paused = tmp_path / "state", tmp_path / "paused"
    before = (sys.executable, "-m", "tests.faults.paused_server")
    server = ServerProcess(state, before=before, PAUSE=where, PAUSED=str(paused))
    try:
        server.facts()

        def submit() -> None:
            with suppress(requests.RequestException):
                post(server)

        submits = threading.Thread(target=submit)
        submits.start()
        until(paused.exists)
        server.process.kill()
        server.process.wait()
        submits.join(60)
        server = ServerProcess(state)
        assert post(server).status_code == again
        assert post(server).status_code == 200
        params = {"group": "scan", "limit": "1000"}
        found = server.call("GET", paths.JOBS, params=params).json()["jobs"]
        assert [job["name"] for job in found[::-1]] == [f"scan-{number}" for number in range(RUNS)]
        assert [job["spec"]["args"] for job in found[::-1]] == [
            run["args"] for run in ORDER["members"]
        ]
        assert len(server.get(f"{paths.JOBS}?limit=1000").json()["jobs"]) == RUNS
        until(lambda: server.get(paths.group("scan")).json()["counts"].get("SUCCEEDED", 0) >= 2)
        states = [
            job["state"] for job in server.call("GET", paths.JOBS, params=params).json()["jobs"]
        ]
        assert states.count("RUNNING") <= 1
    finally:
        server.end()
        server.kill()


WAITS = (
    "import pathlib, time\nprint('ran', flush=True)\nwhile not pathlib.Path('go').exists(): "
    "time.sleep(0.02)\n"
)


@pytest.mark.parametrize("pause_s", [None, 0.05, 0.3])
def test_jobs_that_wait_for_others_are_neither_lost_nor_started_twice_by_a_kill(
    pause_s: float | None, start: Start, tmp_path: Path
) -> None:
    """`pause_s`: seconds from the end of the first job to the kill; None: it comes before."""
    server = start()
    server.accepted("first", WAITS)
    names = [f"waits-{number}" for number in range(5)]
    for name in names:
        server.accepted(name, "print('ran')\n", after=["first"])
    server.accepted("last", "print('ran')\n", after=names)
    server.running("first")
    if pause_s is not None:
        (tmp_path / "go").touch()
        time.sleep(pause_s)
    server.kill()
    (tmp_path / "go").touch()
    server = start()
    assert server.ended("last")["state"] == "SUCCEEDED"
    for name in ("first", *names, "last"):
        found = server.job(name)
        assert (found["state"], found["attempt"], server.lines(name)) == (
            "SUCCEEDED",
            1,
            ["ran"],
        ), found["message"]
