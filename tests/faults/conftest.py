"""Real servers on one directory, one after the other, that run real jobs;
and what is done to them.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.spec import paths
from tests.kit.processes import kill_processes_of
from tests.kit.server_process import ServerProcess
from tests.store.conftest import (
    postgresql_may_stop as postgresql_may_stop,
    postgresql_server as postgresql_server,
)

PATIENCE_S = 60.0
FINAL = ("SUCCEEDED", "FAILED", "CANCELLED")


class Server(ServerProcess):
    """A server, as one who submits scripts of `folder` in place sees it."""

    def __init__(self, folder: Path, *flags: str, **options: Any) -> None:
        super().__init__(folder / "state", *flags, **options)
        self.folder = folder

    def submit(self, name: str, script: str, **fields: Any) -> requests.Response:
        """`script` is Python text. `_`-fields stand beside the spec: _environment,
        _secrets, _python, _gpus.
        """
        path = self.folder / f"{name}.py"
        path.write_text(script)
        nonce = secrets.token_hex(16)
        (self.folder / ".proof").write_text(nonce)
        submitter = {
            "python": fields.pop("_python", sys.executable),
            "environment": fields.pop("_environment", {"PATH": os.environ["PATH"]}),
            "working_dir": str(self.folder),
            "gpus": fields.pop("_gpus", None),
        }
        request = {
            "secret_values": fields.pop("_secrets", {}),
            "spec": {"script": str(path), "name": name, "log_file": None, "grace_s": 2} | fields,
            "code": {
                "mode": "in_place",
                "proof": {"path": str(self.folder / ".proof"), "nonce": nonce},
            },
            "submitter": submitter,
        }
        return self.call("POST", paths.JOBS, json=request)

    def accepted(self, name: str, script: str, **fields: Any) -> dict[str, Any]:
        answer = self.submit(name, script, **fields)
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def job(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(paths.job(name)).json()
        return found

    def until(
        self, name: str, true: Callable[[dict[str, Any]], bool], within_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The job as soon as `true(job)`."""
        deadline = time.monotonic() + within_s
        while not true(job := self.job(name)):
            assert time.monotonic() < deadline, f"{job}\n{self.output[-3000:]}"
            time.sleep(0.05)
        return job

    def running(self, name: str) -> dict[str, Any]:
        return self.until(name, lambda job: job["state"] == "RUNNING")

    def ended(self, name: str, within_s: float = PATIENCE_S) -> dict[str, Any]:
        return self.until(name, lambda job: job["state"] in FINAL, within_s)

    def lines(self, name: str) -> list[str]:
        """Its log as text, without the ranks."""
        text = self.call(
            "GET", f"{paths.job(name, 'logs')}?rank=0", headers={"Accept": "text/plain"}
        ).text
        return text.splitlines()


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server on `<tmp>/state`. Servers, launchers and ranks that
    live at the end are killed.
    """
    started: list[Server] = []

    def run(*flags: str, **options: Any) -> Server:
        started.append(Server(tmp_path, *flags, **options))
        return started[-1]

    yield run
    for server in started:
        server.kill()
    kill_processes_of(tmp_path)
