"""`mls` as its users have it, unmodified, as a process; and one against a real server with real
jobs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.server_process import ServerProcess
from tests.kit.waiting import until
from tests.mlspace.cli.environments import VERSIONS, environment
from tests.mlspace.rest.conftest import JOBS, Platform

IMAGE = "cr.ai.cloud.ru/aicloud-base-images/py3.10-torch2.1.2:0.0.40"
WORKSPACE = "00000000-0000-4000-8000-000000000000"
LOGS = f"{JOBS}/{{name}}/logs"
DEADLINE_S = 60.0

SCRIPT = """
import os, sys, time
print("привет", os.environ["RANK"], os.environ.get("A"), sys.argv[1:], flush=True)
for number in range(int(os.environ.get("LINES", "0"))):
    print(f"line {number} " + "x" * 300 * (number % 3 == 2), flush=True)
    time.sleep(float(os.environ.get("PAUSE", "0")))
"""


@dataclass(frozen=True)
class Done:
    """One command line that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Mls:
    """One version of `mls` in a user's home."""

    version: str
    home: Path

    @property
    def venv(self) -> Path:
        return environment(self.version)

    @property
    def variables(self) -> dict[str, str]:
        foreign = ("CLIENT_LIB_", "MLS_", "PYTHON", "VIRTUAL_ENV")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        return clean | {"HOME": str(self.home), "PYTHONIOENCODING": "utf-8", "no_proxy": "*"}

    def configure(self, url: str, user: str, token: str) -> None:
        """Configure `mls` as `client-lib mls-config` does; see tests/cli/test_mls_config.py."""
        answers = [user, token, WORKSPACE, "any", "SR006", "json", f"{url}/public/v2"]
        done = self("configure", stdin="\n".join(answers) + "\n")
        assert done.code == 0, done
        assert "успешно" in done.out

    def start(self, *args: str) -> subprocess.Popen[str]:
        line = [str(self.venv / "bin" / "mls"), *args]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            line, env=self.variables, cwd=self.home, stdout=pipe, stderr=pipe, text=True
        )

    def __call__(self, *args: str, stdin: str = "") -> Done:
        line = [str(self.venv / "bin" / "mls"), *args]
        done = subprocess.run(
            line,
            env=self.variables,
            cwd=self.home,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def python(self, program: str, *args: str) -> Any:
        """The JSON that a program prints; it runs where `mls_core` can be imported."""
        line = [str(self.venv / "bin" / "python"), "-c", program, *args]
        done = subprocess.run(
            line, env=self.variables, capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@dataclass(frozen=True)
class Site(Mls):
    """One version of `mls` with a profile for a real server."""

    server: ServerProcess
    script: Path
    user: Platform
    """The same user without `mls`: for what a test only needs done."""

    def created(self, **parameters: Any) -> str:
        """A job that is run without `mls`."""
        plain = {
            "script": f"{self.script}",
            "base_image": IMAGE,
            "instance_type": "cpu.1C.1G",
            "type": "pytorch2",
        }
        return self.user.created(**{**plain, "region": "SR006", **parameters})

    def until(self, name: str, *statuses: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while (shown := self.user.status(name))["status"] not in statuses:
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)
        return shown

    def log_requests(self, name: str) -> int:
        """How many requests for its logs the server has answered, once the last is in its log."""
        mark = os.urandom(8).hex()
        self.user("GET", JOBS, headers={"x-request-id": mark})
        until(lambda: mark in self.server.output)
        lines = [
            json.loads(line) for line in self.server.output.splitlines() if line.startswith("{")
        ]
        return sum(line.get("route") == LOGS and f"/{name}/" in line["path"] for line in lines)


EACH_VERSION = [
    pytest.param(version, marks=pytest.mark.xdist_group(f"mls {version}")) for version in VERSIONS
]


@pytest.fixture(scope="module", params=EACH_VERSION)
def mls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Both versions, each with a server and a home of its own. Two jobs at once: a third waits."""
    folder = tmp_path_factory.mktemp(f"mls-{request.param}")
    for name in ("home", "envs/conda_name/bin"):
        (folder / name).mkdir(parents=True)
    python = folder / "envs/conda_name/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    variables: dict[str, Any] = {
        "CLIENT_LIB_SERVER_MAX_CPU_JOBS": "2",
        "CONDA_ENVS_DIRS": str(folder / "envs"),
    }
    server = ServerProcess(folder / "state", **variables)
    try:
        facts = server.facts()
        token = (folder / "state" / "token").read_text().strip()
        site = Site(request.param, folder / "home", server, script, Platform(facts["url"], token))
        site.configure(facts["url"], server.get("/api/v1/info").json()["user"], token)
        yield site
        for name in site.user.names(status=["Pending", "Running"]):
            site.user("DELETE", f"{JOBS}/{name}?region=SR006")
            site.until(name, "deleted", "completed", "failed")
    finally:
        server.end()
