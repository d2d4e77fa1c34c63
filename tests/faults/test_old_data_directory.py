"""A data directory that version 0.1.0 wrote (data_0_1.tar.gz), under the server of today.

Its four jobs belong to `ann`: one finished, one failed, one ran when the machine went down, one was
queued.
"""

import tarfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec import paths
from server_stub.http import users_file
from tests.faults.conftest import FINAL, PATIENCE_S
from tests.kit.server_process import ServerProcess

ARCHIVE = Path(__file__).with_name("data_0_1.tar.gz")

pytestmark = [pytest.mark.process, pytest.mark.smoke]


class Ann:
    """The owner of the jobs."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server

    def get(self, path: str) -> Any:
        answer = self._server.get(path)
        assert answer.status_code == 200, answer.text
        return answer

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(paths.job(name)).json()
        return found

    def until(self, name: str, states: Collection[str]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while (job := self.job(name))["state"] not in states or (
            job["state"] == "RUNNING" and job["attempt"] == 1
        ):
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
        return job

    def ended(self, name: str) -> dict[str, Any]:
        return self.until(name, FINAL)

    def cancel(self, name: str) -> None:
        assert self._server.call("POST", paths.job(name, "cancel")).status_code in (200, 202)

    def events(self, name: str) -> list[str]:
        return [event["state"] for event in self.get(paths.job(name, "events")).json()["events"]]

    def log(self, name: str) -> list[str]:
        lines: list[str] = self.get(paths.job(name, "logs")).text.splitlines()
        return lines


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ann]:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder / "state", filter="data")
    users = folder / "users.toml"
    (folder / "state" / "token").write_text(users_file.add(users, "ann", admin=False))
    kept: dict[str, Any] = {
        "CLIENT_LIB_SERVER_RETENTION_DAYS": "1e6",
        "CLIENT_LIB_SERVER_MIN_FREE_BYTES": "0",
    }
    server = ServerProcess(folder / "state", "--users-file", str(users), **kept)
    try:
        server.facts()
        yield Ann(server)
    finally:
        server.end()
        server.kill()


def test_all_jobs_are_listed_newest_first(ann: Ann) -> None:
    jobs = ann.get(paths.JOBS).json()["jobs"]
    assert [job["name"] for job in jobs] == ["queued", "running", "failed", "finished"]


def test_a_finished_job_has_its_state_its_events_and_its_log(ann: Ann) -> None:
    job = ann.job("finished")
    assert (job["state"], job["reason"], job["spec"]["labels"]) == (
        "SUCCEEDED",
        "Completed",
        {"team": "vision"},
    )
    assert ann.events("finished") == ["PENDING", "RUNNING", "SUCCEEDED"]
    assert sorted(ann.log("finished")[1:]) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]


def test_a_failed_job_has_its_failure_report(ann: Ann) -> None:
    job = ann.job("failed")
    assert (job["state"], job["reason"]) == ("FAILED", "ExitCode")
    assert job["message"] == "rank 0 ended with exit code 1: KeyError: 'learning_rate'"
    failure = job["failure"]
    assert (failure["rank"], failure["exit_code"], failure["exception"]) == (
        0,
        1,
        "KeyError: 'learning_rate'",
    )
    assert failure["last_lines"][-1] == "KeyError: 'learning_rate'"
    assert "[0] KeyError: 'learning_rate'" in ann.log("failed")
    assert ann.events("failed") == ["PENDING", "RUNNING", "FAILED"]


def test_a_job_that_ran_when_the_machine_went_down_starts_again(ann: Ann) -> None:
    job = ann.until("running", (*FINAL, "RUNNING"))
    assert ann.log("running")[0] == "[0] running"
    if job["state"] == "FAILED":  # on the machine that made the archive
        assert job["reason"] == "LauncherLost"
        return
    assert (job["state"], job["attempt"], job["infrastructure_retries"]) == ("RUNNING", 2, 1)
    ann.cancel("running")
    assert ann.ended("running")["state"] == "CANCELLED"


def test_a_queued_job_runs(ann: Ann) -> None:
    job = ann.ended("queued")
    assert job["state"] == "SUCCEEDED", job
    assert ann.log("queued")[-1] == "[0] it ran at last"
