"""The value of a secret is nowhere but in files that only this user can read: every
file, row, log and answer.
"""

import json
import sqlite3
import stat
from pathlib import Path

import pytest

from client_lib.spec import paths
from tests.faults.conftest import Server, Start

pytestmark = pytest.mark.process

SECRET, PASSWORD, INHERITED = "s3cr3t-of-the-job", "p4ssw0rd-in-a-variable", "t0k3n-of-the-shell"
VALUES = (SECRET, PASSWORD, INHERITED)
SCRIPT = (
    "import os, sys\nprint([len(os.environ[n]) for n in sys.argv[1:]], flush=True)\nraise "
    "SystemExit(3)\n"
)


def submit(server: Server, name: str, **fields: object) -> None:
    server.accepted(
        name,
        SCRIPT,
        args=["HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"],
        secrets=["HF_TOKEN"],
        env_variables={"DB_PASSWORD": PASSWORD},
        _secrets={"HF_TOKEN": SECRET},
        _environment={"AWS_SECRET_ACCESS_KEY": INHERITED},
        **fields,
    )


def files_with_a_value(folder: Path) -> dict[str, int]:
    """Path -> mode of each file below that holds one of the values."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and any(value.encode() in path.read_bytes() for value in VALUES):
            found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


@pytest.mark.smoke
def test_it_is_in_no_row_no_log_no_answer_and_no_open_file(start: Start, tmp_path: Path) -> None:
    server = start(CLIENT_LIB_SERVER_LOG_LEVEL="debug")
    submit(server, "one", max_retry=1)
    job = server.ended("one")
    assert job["failure"]["exit_code"] == 3
    assert server.lines("one")[0] == str([len(value) for value in VALUES])

    answers = [
        server.get(path).text for path in (paths.JOBS, paths.job("one"), paths.job("one", "events"))
    ]
    answers += [
        server.get(paths.job("one", "manifest")).text,
        server.get(paths.DOCTOR).text,
        server.get(paths.METRICS).text,
    ]
    answers += [
        *server.lines("one"),
        server.get(f"{paths.job('one', 'logs')}?timestamps=true").text,
    ]
    request = server.get(paths.job("one", "request")).json()
    # what its owner needs to submit it again
    assert request["spec"]["env_variables"] == {"DB_PASSWORD": PASSWORD}
    assert not {"submitter", "secret_values"} & {*request}
    answers.append(request | {"spec": request["spec"] | {"env_variables": {}}})
    assert not [
        answer for answer in answers if any(value in json.dumps(answer) for value in VALUES)
    ]
    assert not [value for value in VALUES if value in server.output]

    database = sqlite3.connect(tmp_path / "state" / "data" / "client_lib.db")
    dump = "\n".join(database.iterdump())
    database.close()
    assert "one" in dump
    assert not [value for value in VALUES if value in dump]

    found = files_with_a_value(tmp_path / "state")
    assert found
    assert set(found.values()) == {0o600}
    assert {path.split("/")[-1] for path in found if path.startswith("data/jobs")} == {"plan.json"}
    assert {path.split("/")[1] for path in found} == {"jobs", "submissions"}


def test_nothing_of_it_is_left_when_the_job_is_deleted(start: Start, tmp_path: Path) -> None:
    server = start()
    submit(server, "one")
    server.ended("one")
    assert server.call("DELETE", paths.job("one")).ok
    assert files_with_a_value(tmp_path / "state") == {}


def test_render_and_a_refusal_do_not_repeat_it(start: Start) -> None:
    server = start()
    spec = {
        "script": "/nowhere.py",
        "secrets": ["HF_TOKEN"],
        "env_variables": {"DB_PASSWORD": PASSWORD},
    }
    body = {
        "spec": spec,
        "code": {"mode": "in_place"},
        "submitter": {"environment": {"AWS_SECRET_ACCESS_KEY": INHERITED}},
        "secret_values": {"HF_TOKEN": SECRET},
    }
    rendered = server.call("POST", paths.RENDER, json=body)
    assert rendered.ok, rendered.text
    assert "***" in rendered.text
    refusals = [
        body | {"spec": {**spec, "n_workers": 0}},
        body | {"secret_values": {"HF_TOKEN": SECRET, "OTHER": SECRET}},
        body | {"submitter": {"environment": {"AWS_SECRET_ACCESS_KEY": INHERITED}, "python": 1}},
        body | {"spec": {**spec, "env_variables": {"RANK": PASSWORD}}},
        body | {"spec": {**spec, "env_variables": {"DB_PASSWORD": [PASSWORD]}}},
        body | {"spec": {**spec, "env_variables": {"DB_PASSWORD": PASSWORD + "\0"}}},
        body | {"secret_values": {"HF_TOKEN": [SECRET]}},
        body | {"secret_values": {"HF_TOKEN": SECRET + "\0"}},
        body | {"secret_values": f"HF_TOKEN={SECRET}"},
        body | {"submitter": [INHERITED]},
        body | {"submitter": {"environment": {"AWS_SECRET_ACCESS_KEY": INHERITED + "\0"}}},
        body | {"submitter": {"environment": {"AWS_SECRET_ACCESS_KEY": [INHERITED]}}},
    ]
    for refused in refusals:
        answer = server.call("POST", paths.JOBS, json=refused)
        assert answer.status_code == 422, answer.text
        assert not [value for value in VALUES if value in answer.text], answer.text
    assert not [value for value in VALUES if value in rendered.text]
    assert not [value for value in VALUES if value in server.output]
