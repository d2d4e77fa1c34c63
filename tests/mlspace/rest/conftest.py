"""A real server on a socket with a runtime that runs nothing (tests/http), and
clients in the platform's words.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import requests

from tests.http.conftest import Running, server, shared_server, start_server
from tests.kit import waiting

__all__ = ["server", "shared_server", "start_server"]

JOBS = "/public/v2/jobs"
AUTH = "/public/v2/service_auth"
IMAGE = "cr.ai.cloud.ru/aicloud-base-images/cuda12.1-torch2-py311:0.0.36"
COMMAND = {
    "script": "sleep 1000",
    "base_image": IMAGE,
    "instance_type": "cpu.2C.8G",
    "type": "binary",
}


@dataclass
class Platform:
    """One user of one server."""

    url: str
    authorization: str | None
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.trust_env = False
        self.session.headers["x-workspace-id"] = "00000000-0000-4000-8000-000000000000"
        self.session.headers["x-api-key"] = "any"
        if self.authorization is not None:
            self.session.headers["authorization"] = self.authorization

    def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=20, **options)

    def run(self, **parameters: Any) -> requests.Response:
        return self("POST", JOBS, json=COMMAND | parameters)

    def created(self, **parameters: Any) -> str:
        """Run a job; its name."""
        answer = self.run(**parameters)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["job_name"])

    def status(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self("GET", f"{JOBS}/{name}").json()
        return answer

    def listed(self, **filters: Any) -> dict[str, Any]:
        answer = self("GET", JOBS, params=filters)
        assert answer.status_code == 200, answer.text
        page: dict[str, Any] = answer.json()
        return page

    def names(self, **filters: Any) -> list[str]:
        return [job["job_name"] for job in self.listed(**filters)["jobs"]]


def platform(server: Running, user: str | None) -> Platform:
    return Platform(server.url, server.tokens[user] if user else None)


def act(server: Running, name: str, what: str, *args: Any, **options: Any) -> str:
    """Let the runtime say something about a job; the job's id."""
    job_id = next(id for id, attempt in server.runtime.attempts.items() if attempt.job_name == name)
    server.call(lambda: getattr(server.runtime, what)(job_id, *args, **options))
    return job_id


def until(user: Platform, name: str, status: str) -> dict[str, Any]:
    """The answer about a job when it has this status."""

    def found() -> dict[str, Any] | None:
        shown = user.status(name)
        return shown if shown["status"] == status else None

    return waiting.until(found, f"{name} is {status}")


@pytest.fixture
def ann(server: Running) -> Platform:
    return platform(server, "ann")


@pytest.fixture
def ben(server: Running) -> Platform:
    return platform(server, "ben")


@pytest.fixture
def root(server: Running) -> Platform:
    return platform(server, "root")
