"""The record of what a job ran, over HTTP: who may see it, and values that a client or
a script should not send.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from client_lib.errors import InvalidRequest
from client_lib.spec import paths
from client_lib.spec.job import JobSpec
from client_lib.spec.request import DIFF_MAX, CodeInPlace, Provenance, SubmitRequest
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, JobInfo
from client_lib.transport.api import Api as TypedApi
from client_lib.transport.config import Config
from client_lib.transport.rest import Rest
from server_stub.files.job_dirs import log_dir
from server_stub.logs.records import LoggedJob
from server_stub.runtimes import RAN_IMAGE
from server_stub.service.provenance import provenance
from server_stub.service.stored import row_of
from tests.http.conftest import Api, Running

RAN = paths.job("train", "provenance")
SENT = {"command_line": "client-lib submit train.py", "commit": "c0ffee", "diff": "a patch"}


def submitted(user: Api, **fields: Any) -> Any:
    order = json.loads(user.submit(name="before").request.body or "")
    order["spec"]["name"] = "train"
    return user("POST", paths.JOBS, json={**order, "provenance": {**SENT, **fields}})


def test_the_owner_and_admins_see_it_and_lists_do_not_have_it(
    ann: Api, ben: Api, root: Api
) -> None:
    assert submitted(ann).status_code == 201
    for answer in (ann("GET", RAN), root("GET", RAN, params={"owner": "ann"})):
        assert answer.json()["submitted"] == {
            **SENT,
            "branch": None,
            "remote": None,
            "missing": None,
        }
        assert answer.json()["last_success"] is None
    assert ben("GET", RAN, params={"owner": "ann"}).status_code == 404
    for path in (paths.JOBS, paths.job("train"), paths.job("train", "request")):
        assert "a patch" not in ann("GET", path).text


def test_no_other_user_sees_it_where_the_server_shares_jobs(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(share_jobs=True)
    server.as_user("ann").submit(name="train")
    answer = server.as_user("ben")("GET", RAN, params={"owner": "ann"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert server.as_user("ann")("GET", RAN).json()["submitted"] is None


def test_a_value_over_its_bound_is_refused_by_its_name(ann: Api) -> None:
    for field, value in {
        "diff": "x" * (DIFF_MAX + 1),
        "branch": "a\nb",
        "commit": 7,
        "other": 1,
    }.items():
        answer = submitted(ann, **{field: value})
        assert answer.status_code == 422
        assert f"provenance.{field}" in answer.json()["message"]


def test_an_older_server_gets_the_request_without_it() -> None:
    bodies: list[dict[str, Any]] = []

    class Older:
        def call(self, *_: object, body: bytes, **__: object) -> bytes:
            bodies.append(json.loads(body))
            if "provenance" in bodies[-1]:
                raise InvalidRequest("provenance: unknown field")
            return info(name="train").model_dump_json().encode()

    api = TypedApi(Config(endpoint=None), cast(Rest, Older()))
    request = SubmitRequest(
        spec=JobSpec(script="train.py"), code=CodeInPlace(), provenance=Provenance(commit="c0ffee")
    )
    assert api.submit_request(request, "key").name == "train"
    assert [body.keys() for body in bodies] == [{"spec", "code", "provenance"}, {"spec", "code"}]


def test_a_server_names_the_field_that_it_does_not_know(ann: Api) -> None:
    order = json.loads(ann.submit(name="before").request.body or "")
    assert (
        "provenance_of_tomorrow"
        in ann("POST", paths.JOBS, json={**order, "provenance_of_tomorrow": {}}).json()["message"]
    )


def info(**fields: Any) -> JobInfo:
    usual = {
        "name": "n",
        "id": "0" * 32,
        "owner": "ann",
        "version": 1,
        "runtime": "local",
        "state": "FAILED",
    }
    more = {
        "reason": "ExitCode",
        "code": {"mode": "in_place"},
        "created_at": "2026-11-22T10:00:00Z",
        "spec": {"script": "/a/train.py"},
    }
    return JobInfo.model_validate({**usual, **more, **fields})


def logs(folder: Path, *lines: str) -> LoggedJob:
    directory = log_dir(folder, 1, 0)
    directory.mkdir(parents=True)
    text = "".join(f"{n} 2026-11-21T10:58:55.123456Z {line}\n" for n, line in enumerate(lines))
    (directory / f"{0:020d}.log").write_text(text)
    return LoggedJob("id", folder, 1, 1, 1, State.FAILED, Reason.EXIT_CODE, "")


def test_lines_of_a_script_that_look_like_a_launchers_are_skipped_or_harmless(
    tmp_path: Path,
) -> None:
    job = logs(
        tmp_path,
        '- metrics {"hardware": {"cpu": "one"}}',
        '0 stdout 7 2026-11-21T10:58:55.123456Z - metrics {"packages": {"forged": "1"}}',
        '- metrics {"packages": {"numpy": "2"}}',
        '- metrics {"packages": {"numpy": 3}}',
        '- metrics {"packages": [[[[}',
        "- metrics [1, 2]",
        '- metrics {"worker": 9, "other": {}}',
    )
    request = SubmitRequest(spec=JobSpec(script="x"), code=CodeInPlace())
    (machine,) = provenance(info(), request, job, [], []).machines
    assert (machine.worker, machine.hardware, machine.packages) == (
        0,
        {"cpu": "one"},
        {"numpy": "2"},
    )


def test_what_scripts_have_written_there_is_bounded(tmp_path: Path) -> None:
    lines = [
        "- metrics "
        + json.dumps(
            {"packages": {f"n{line}-{n}": "1" for n in range(60)}, "seeds": {"S": str(line)}}
        )
        for line in range(120)
    ]
    request = SubmitRequest(spec=JobSpec(script="x"), code=CodeInPlace())
    job = logs(tmp_path, '- metrics {"hardware": {"cpu": "one"}}', *lines)
    (machine,) = provenance(info(), request, job, [], []).machines
    assert (len(machine.packages), machine.seeds) == (4998, {"S": "119"})
    (machine,) = provenance(info(), request, job, [], [], all_names_max=10).machines
    assert (len(machine.packages), machine.hardware) == (8, {"cpu": "one"})


def test_the_last_success_is_of_the_same_program(tmp_path: Path) -> None:
    request = SubmitRequest(spec=JobSpec(script="x"), code=CodeInPlace())
    same = info(name="same", spec={"script": "/a/train.py", "args": ["1"]})
    other = info(name="other", spec={"script": "/b/train.py"})
    module = info(name="module", spec={"script": "python -m pkg.train --lr 1", "type": "binary"})
    function = info(
        name="f", function={"sha256": "0" * 64, "name": "f", "python": "3.11", "cloudpickle": "3"}
    )
    before = [row_of(each) for each in (other, module, function, same)]
    damaged = before[0]._replace(info="{")
    job = logs(tmp_path)

    def last(failed: JobInfo) -> str | None:
        return provenance(failed, request, job, [], [damaged, *before]).last_success

    assert last(info()) == "same"
    assert last(info(spec={"script": "python -m pkg.train --lr 2", "type": "binary"})) == "module"
    assert last(info(spec={"script": "python -m pkg.test", "type": "binary"})) is None
    assert (
        last(info(function={"sha256": "1" * 64, "name": "f", "python": "3.11", "cloudpickle": "3"}))
        == "f"
    )


def test_the_digests_of_images_are_read_from_events(tmp_path: Path) -> None:
    request = SubmitRequest(spec=JobSpec(script="x"), code=CodeInPlace())
    said = (f"{RAN_IMAGE}docker.io/x@sha256:1", "another", f"{RAN_IMAGE}docker.io/x@sha256:1")
    at = {"time": "2026-11-22T10:00:00Z", "attempt": 1, "state": "RUNNING", "reason": "Running"}
    events = [Event.model_validate({**at, "message": message}) for message in said]
    assert provenance(info(), request, logs(tmp_path), events, []).images == [
        "docker.io/x@sha256:1"
    ]
