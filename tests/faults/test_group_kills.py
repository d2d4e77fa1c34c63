"""kill -9 of the server while a group is submitted: the repeated request finds all of its members, or stores them."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from tests.local_server import until
from tests.server_process import ServerProcess

pytestmark = pytest.mark.process

RUNS = 200
ORDER = {
    "name": "scan",
    "request": {"spec": {"script": "sleep", "type": "binary"}, "code": {"mode": "in_place"}},
    "members": [{"args": [f"0.{number}"]} for number in range(RUNS)],
    "max_parallel": 1,
}


def post(server: ServerProcess) -> requests.Response:
    return server.call("POST", paths.GROUPS, json=ORDER, headers={paths.IDEMPOTENCY_KEY: "once"})


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_in_the_middle_of_a_submit_loses_and_doubles_no_member(seed: int, tmp_path: Path) -> None:
    state = tmp_path / "state"
    server = ServerProcess(state)
    try:
        server.facts()
        answered = threading.Event()

        def submit() -> None:
            with suppress(requests.RequestException):
                post(server)
            answered.set()

        threading.Thread(target=submit).start()
        answered.wait(random.Random(seed).uniform(0.01, 0.3))
        server.process.kill()
        server.process.wait()
        answered.wait(60)
        server = ServerProcess(state)
        assert post(server).status_code in (200, 201)
        assert post(server).status_code == 200
        params = {"group": "scan", "limit": "1000"}
        found = server.call("GET", paths.JOBS, params=params).json()["jobs"]
        assert [job["name"] for job in found[::-1]] == [f"scan-{number}" for number in range(RUNS)]
        assert [job["spec"]["args"] for job in found[::-1]] == [run["args"] for run in ORDER["members"]]
        assert len(server.get(f"{paths.JOBS}?limit=1000").json()["jobs"]) == RUNS
        until(lambda: server.get(paths.group("scan")).json()["counts"].get("SUCCEEDED", 0) >= 2)
        states = [job["state"] for job in server.call("GET", paths.JOBS, params=params).json()["jobs"]]
        assert states.count("RUNNING") <= 1
    finally:
        server.end()
        server.kill()
