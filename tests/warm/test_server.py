"""A server with warm pools: what jobs and `server status` say of them,
and that they end with it.
"""

import os
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from client_lib.cli.commands import server as server_command
from tests.kit.processes import alive
from tests.kit.server_process import ServerProcess
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="the warm pool is there on Linux only"),
]


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "state")
    yield process
    process.kill()


def run_through_server(
    server_process: ServerProcess, folder: Path, text: str = "import tqdm", **fields: Any
) -> dict[str, Any]:
    """The job as it ended."""
    script = folder / "train.py"
    script.write_text(text)
    nonce = folder / "nonce"
    nonce.write_text("0123456789abcdef")
    submitted = server_process.call(
        "POST",
        "/api/v1/jobs",
        json={
            "spec": {"script": str(script), "processes_per_worker": 2} | fields,
            "code": {
                "mode": "in_place",
                "proof": {"path": str(nonce), "nonce": "0123456789abcdef"},
            },
            "submitter": {
                "python": sys.executable,
                "environment": dict(os.environ),
                "working_dir": str(folder),
            },
        },
    )
    assert submitted.status_code == 201, submitted.text
    info = submitted.json()
    while info["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        info = server_process.get(
            f"/api/v1/jobs/{info['name']}?wait=20&after_version={info['version']}"
        ).json()
    assert info["state"] == "SUCCEEDED", info
    return info


def pools(server_process: ServerProcess) -> list[dict[str, Any]]:
    return server_process.get("/api/v1/info").json()["warm_pools"]


def wait_for_pool(server_process: ServerProcess) -> None:
    until(lambda: [pool["state"] for pool in pools(server_process)] == ["ready"])


def test_jobs_say_whether_they_were_warm_and_why_not_and_the_pool_is_shown_and_ends(
    server_process: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [
        worker["warm"] for worker in run_through_server(server_process, tmp_path)["workers"]
    ] == [False]
    wait_for_pool(server_process)
    assert [
        worker["warm"] for worker in run_through_server(server_process, tmp_path)["workers"]
    ] == [True]

    odd = run_through_server(server_process, tmp_path, env_variables={"MALLOC_ARENA_MAX": 1})
    assert [worker["warm"] for worker in odd["workers"]] == [False]
    events = server_process.get(f"/api/v1/jobs/{odd['name']}/events").json()["events"]
    told = [event["message"] for event in events if "MALLOC_ARENA_MAX" in event["message"]]
    assert len(told) == 1

    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(server_process.state_dir))
    shown = CliRunner().invoke(server_command.group, ["status"])
    pid = pools(server_process)[0]["pid"]
    assert f"ready, pid {pid}" in shown.output
    server_process.end()
    until(lambda: not alive(pid))


LIMIT = """
import resource, tqdm
with open("limit", "w") as out:
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], file=out)
"""


@pytest.mark.skipif(not shutil.which("prlimit"), reason="prlimit is missing")
def test_the_server_may_open_many_files_and_ranks_as_many_as_at_its_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "state", before=("prlimit", "--nofile=300:3000"))
    try:
        server.facts()
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (3000, 3000)
        for warm in (False, True):
            job = run_through_server(server, tmp_path, LIMIT, processes_per_worker=1)
            assert [worker["warm"] for worker in job["workers"]] == [warm]
            assert (tmp_path / "limit").read_text() == "300\n"
            wait_for_pool(server)
    finally:
        server.kill()
