"""Rights of pods: the token of the attempt, the path, and the first pod,
until the attempt is over.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.spec import paths
from client_lib.worker.pod.settings import PodFiles, read_settings
from server_stub.http.limits import MAX_BODY_BYTES
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Site, Start, free_port, sites

FOREVER = "import os, time\nwhile not os.path.exists('enough'): time.sleep(0.01)"


class Speaker:
    """Says things with the token of a job's pod, as another client than the agent."""

    def __init__(self, gateway: Site, job: dict[str, Any], of_pod: int) -> None:
        self.token = (gateway.pod(job, of_pod) / "secret" / "token").read_text()
        self._url, self._name = gateway.facts()["url"], job["name"]

    def __call__(
        self, worker: int = 0, *, uid: str = "mine", method: str = "PUT", **given: Any
    ) -> requests.Response:
        path = paths.worker(given.get("name", self._name), given.get("attempt", 1), worker)
        headers = {
            "Authorization": f"Bearer {given.get('token', self.token)}",
            paths.POD_UID: uid,
            paths.WORKER_PROTOCOL: given.get("protocol", "1"),
        }
        url = self._url + path + given.get("what", "/state")
        return requests.request(
            method, url, headers=headers, data=given.get("body", b'{"state":"ready"}'), timeout=60
        )


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with sites(tmp_path_factory.mktemp("rights"), free_port()) as start:
        yield start(pods={"held": [0]})


@pytest.fixture(scope="module")
def speak(gateway: Site) -> Speaker:
    """Requests for a job of two workers whose worker 0 has no pod, so that its place is free."""
    return Speaker(gateway, gateway.accepted("half", FOREVER, n_workers=2), of_pod=1)


def test_the_first_pod_owns_the_place_and_another_is_refused(speak: Speaker) -> None:
    assert speak().json()["do"] in ("wait", "go")
    other = speak(uid="another")
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    assert "belongs to pod" in other.json()["message"]
    assert speak(uid="another", what="/log?offset=0", body=b"").status_code == 409
    assert speak().status_code == 200


@pytest.mark.parametrize(
    ("given", "status", "code"),
    [
        ({"token": "clw_guess.1.abc"}, 401, "unauthorized"),
        ({"token": "x"}, 401, "unauthorized"),
        ({"name": "other"}, 403, "forbidden"),
        ({"attempt": 2}, 403, "forbidden"),
        ({"worker": 7}, 404, "not_found"),
        ({"uid": ""}, 422, "invalid_request"),
        ({"protocol": "7"}, 422, "invalid_request"),
        ({"body": b"{"}, 422, "invalid_request"),
        ({"body": b'{"state":"asleep"}'}, 422, "invalid_request"),
        ({"what": "/log?offset=0", "body": b"no record\n"}, 422, "invalid_request"),
        ({"what": "/log?offset=-1", "body": b""}, 422, "invalid_request"),
        ({"what": "/report", "body": b"[]"}, 422, "invalid_request"),
        ({"what": "/results/5", "body": b""}, 404, "not_found"),
        ({"what": "/snapshot", "method": "GET"}, 404, "not_found"),
    ],
)
def test_who_says_it_wrong_is_told_how(
    speak: Speaker, given: dict[str, Any], status: int, code: str
) -> None:
    answer = speak(**given)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize("name", ["a/b", "sessions/b", "a/sessions/b", "results/0", "a/results/0"])
def test_no_name_of_an_output_lifts_the_bound_of_a_body(speak: Speaker, name: str) -> None:
    pieces = iter([b"x" * 2**20] * (MAX_BODY_BYTES // 2**20 + 1))  # without a Content-Length
    answer = speak(what=f"/outputs/{name}?size={2**25}&sha256={64 * '0'}", body=pieces)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large"), answer.text


def test_the_token_of_one_job_opens_no_other_and_no_users_path(
    gateway: Site, speak: Speaker
) -> None:
    other = gateway.accepted("other", FOREVER, n_workers=2)
    stranger = Speaker(gateway, other, of_pod=1)
    assert speak(token=stranger.token).status_code == 403
    headers = {"Authorization": f"Bearer {speak.token}"}
    for path in (
        paths.JOBS,
        paths.job("half"),
        paths.job("half", "logs"),
        paths.snapshot("0" * 64),
    ):
        assert gateway.call("GET", path, headers=headers).status_code == 401
    users = gateway.call("PUT", paths.worker("half", 1, 0) + "/state", data=b'{"state":"ready"}')
    assert (users.status_code, users.json()["code"]) == (401, "unauthorized")


def test_the_token_dies_with_the_attempt_also_for_the_next_server(site: Start) -> None:
    first = site()
    job = first.accepted("short", "print('here')")
    assert first.ended("short")["state"] == "SUCCEEDED"
    speak = Speaker(first, job, of_pod=0)
    assert speak().status_code == 401
    first.end()
    assert Speaker(site(), job, of_pod=0)().status_code == 401


def test_a_body_has_a_bound(speak: Speaker) -> None:
    answer = speak(what="/log?offset=0", body=b"0" * (17 * 2**20))
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_a_pod_that_is_made_anew_starts_nothing_and_says_why(site: Start) -> None:
    server = site()
    job = server.accepted(
        "again", "open('ran.%s' % __import__('os').getpid(), 'w').close()\n" + FOREVER
    )
    server.running("again")
    until(lambda: len(list(server.folder.glob("ran.*"))) == 1)
    root = server.folder / "second"
    shutil.copytree(server.pod(job) / "plan", root / "plan")
    shutil.copytree(server.pod(job) / "secret", root / "secret")
    told = json.loads((root / "plan" / "pod.json").read_text()) | {
        "termination_log": str(root / "word")
    }
    (root / "plan" / "pod.json").write_text(json.dumps(told))
    environment = {
        "RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "CLIENT_LIB_POD_UID": "another",
    }
    launcher = server.state_dir / "data" / "worker.pyz"
    command = [sys.executable, str(launcher), "pod", str(root)]
    pod = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert pod.returncode == 76
    assert "belongs to pod pod-0" in pod.stderr
    word = json.loads((root / "word").read_text())
    assert word["reason"] == "StartFailed"
    assert "belongs to pod pod-0" in word["message"]
    assert not (root / "run" / "plan.json").exists()
    (server.folder / "enough").touch()
    assert server.ended("again")["state"] == "SUCCEEDED"
    assert len(list(server.folder.glob("ran.*"))) == 1


def test_agent_and_server_mean_the_same_path(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    told = {
        "protocol": 1,
        "server_url": "http://server",
        "job": "a job",
        "attempt": 3,
        "n_workers": 9,
        "spool_bytes": 1,
    }
    (tmp_path / "plan" / "pod.json").write_text(json.dumps(told))
    pod = read_settings(
        PodFiles(str(tmp_path)), {"RANK": "7", "MASTER_ADDR": "m", "MASTER_PORT": "1"}
    )
    assert pod.worker_url == "http://server" + paths.worker("a job", 3, 7)
