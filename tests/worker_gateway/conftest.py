"""A real server on a fixed port whose workers are real agents on this machine,
and what is done to both.
"""

import json
import random
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_lib.spec import paths
from tests.faults.conftest import Server
from tests.kit.odd_server import odd_server
from tests.kit.processes import kill_processes_of

__all__ = ["odd_server"]
Start = Callable[..., "Site"]


def free_port() -> int:
    """A port outside the range for outgoing connections, so that it stays free while its server is
    down. In that range a connection to an unused port may even connect to itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


class Site(Server):
    """One server process."""

    def __init__(self, folder: Path, port: int, *flags: str, **options: Any) -> None:
        before = (sys.executable, "-m", "tests.worker_gateway.site")
        super().__init__(folder, "--port", str(port), *flags, before=before, **options)

    def pod(self, job: dict[str, Any], worker: int = 0, attempt: int = 1) -> Path:
        """The root of a pod."""
        return self.attempt(job, attempt) / "pods" / str(worker)

    def attempt(self, job: dict[str, Any], number: int = 1) -> Path:
        return self.state_dir / "data" / "jobs" / job["id"] / "attempts" / str(number)

    def stored_log(self, job: dict[str, Any], worker: int = 0, attempt: int = 1) -> bytes:
        folder = self.attempt(job, attempt) / "workers" / str(worker) / "log"
        return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))

    def text(self, name: str, query: str = "") -> list[str]:
        """The job's log as users see it."""
        answer = self.call("GET", paths.job(name, "logs") + query, headers={"Accept": "text/plain"})
        return answer.text.splitlines()


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def sites(folder: Path, port: int) -> Iterator[Start]:
    """Start servers on `<folder>/state`; `pods` says how pods are made. What
    runs at the end is killed.
    """
    started: list[Site] = []

    def start(*flags: str, pods: dict[str, Any] | None = None, **options: Any) -> Site:
        data = folder / "state" / "data"
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        data.parent.chmod(0o700)
        if pods is not None:
            (data / "pods.json").write_text(json.dumps(pods))
        started.append(Site(folder, port, *flags, **options))
        return started[-1]

    yield start
    for server in started:
        server.kill()
    kill_processes_of(folder)


@pytest.fixture
def site(tmp_path: Path, port: int) -> Iterator[Start]:
    """See `sites`."""
    with sites(tmp_path, port) as start:
        yield start
