"""Jobs over HTTP: what each answer holds, and a sentence for everything that is wrong."""

import threading
import time
from typing import Any

import pytest

from client_lib import Client
from client_lib.spec import paths
from client_lib.spec.request import SubmitRequest
from client_lib.spec.states import Reason
from client_lib.spec.wire import JobInfo, JobPage, Manifest
from server_stub.app import openapi, rest_api
from tests.http.conftest import Api, Running
from tests.kit.bounds import Bounds
from tests.kit.waiting import until


def submit(api: Api, **spec: Any) -> JobInfo:
    answer = api.submit(**spec)
    assert answer.status_code == 201, answer.text
    return JobInfo.model_validate_json(answer.content)


def test_a_submitted_job_is_there(ann: Api) -> None:
    job = submit(ann, name="train")
    found = JobInfo.model_validate_json(ann("GET", paths.job("train")).content)
    assert (found.id, found.owner, found.state) == (job.id, "ann", "PENDING")


def test_the_same_key_gives_the_same_job_with_200(ann: Api) -> None:
    first, again = ann.submit(key="k1"), ann.submit(key="k1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]


def test_the_same_key_with_another_spec_is_409(ann: Api) -> None:
    ann.submit(key="k1")
    other = ann.submit(key="k1", script="echo bye")
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")


def test_a_key_without_bounds_is_refused(ann: Api) -> None:
    assert ann.submit(key="k" * 256).status_code == 422


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "the body is no JSON object"),
        (b"{", "the body is no JSON object"),
        (b"\xff\xfe", "the body is no JSON object"),
        (b"[" * 100_000, "the body is no JSON object"),
        (b"[]", "the body is no JSON object"),
        (b"{}", "spec is missing"),
        (b'{"spec": {"script": "a.py"}, "code": {"mode": "x"}}', "code"),
        (
            b'{"spec": {"script": "a.py", "n_wokers": 2}, "code": {"mode": "in_place"}}',
            "did you mean 'n_workers'?",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_one_readable_422(
    body: bytes, says: str, shared_server: Running
) -> None:
    answer = shared_server.as_user("ann")("POST", paths.JOBS, data=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert says in answer.json()["message"]
    assert set(answer.json()) <= {"code", "message", "hint"}


@pytest.mark.parametrize(
    "media_type", [None, "application/json", "application/x-www-form-urlencoded"]
)
def test_a_body_is_read_as_json_whatever_type_it_names(media_type: str | None, ann: Api) -> None:
    body = b'{"spec": {"script": "echo hello", "type": "binary"}, "code": {"mode": "in_place"}}'
    headers = {"Content-Type": media_type} if media_type else {}
    assert ann("POST", paths.JOBS, data=body, headers=headers).status_code == 201
    wrong = ann("POST", paths.JOBS, data=b"{", headers=headers)
    assert (wrong.status_code, wrong.json()["message"][:27]) == (422, "the body is no JSON object:")


def test_the_body_of_bad_json_is_not_repeated(ann: Api) -> None:
    answer = ann("POST", paths.JOBS, data=b'{"secret_values": {"HF_TOKEN": "hf_secret"')
    assert "hf_secret" not in answer.text


@pytest.mark.parametrize("path", ["", "/events", "/manifest", "/request", "/logs"])
def test_a_missing_job_is_404_not_an_empty_answer(path: str, shared_server: Running) -> None:
    answer = shared_server.as_user("ann")("GET", paths.job("nowhere") + path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "nowhere" in answer.json()["message"]


def test_a_page_holds_the_newest_first_and_leads_to_the_next(ann: Api) -> None:
    for number in range(5):
        submit(ann, name=f"job-{number}")
    page = JobPage.model_validate_json(ann("GET", paths.JOBS, params={"limit": 3}).content)
    assert [job.name for job in page.jobs] == ["job-4", "job-3", "job-2"]
    rest = ann("GET", paths.JOBS, params={"limit": 3, "cursor": page.next_cursor})
    assert [job.name for job in JobPage.model_validate_json(rest.content).jobs] == [
        "job-1",
        "job-0",
    ]
    assert rest.json()["next_cursor"] is None


def test_a_page_of_large_jobs_is_shorter_and_the_client_reads_all(ann: Api, bounds: Bounds) -> None:
    bounds("server_stub.service.lookup", PAGE_CHARACTERS=20_000)
    names = [f"large-{number}" for number in range(7)]
    for name in names:
        assert ann.submit(name=name, args=["x" * 9000]).status_code == 201
    page = ann("GET", paths.JOBS, params={"limit": 7}).json()
    assert [job["name"] for job in page["jobs"]] == ["large-6", "large-5"]
    assert [job.name for job in Client(ann.url, ann.token).list_jobs()] == names[::-1]


def test_a_list_is_narrowed_by_name_label_and_state(ann: Api) -> None:
    submit(ann, name="train-1", labels={"team": "a", "run": "x"})
    submit(ann, name="train-2", labels={"team": "b"})
    submit(ann, name="eval-1", labels={"team": "a"})

    def names(**query: Any) -> list[str]:
        return [job["name"] for job in ann("GET", paths.JOBS, params=query).json()["jobs"]]

    assert names(name="train") == ["train-2", "train-1"]
    assert names(label="team=a") == ["eval-1", "train-1"]
    assert names(label=["team=a", "run=x"]) == ["train-1"]
    assert names(state="PENDING", name="eval") == ["eval-1"]
    assert names(state="failed") == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"state": "DONE"}, "state='DONE': input should be 'PENDING'"),
        ({"label": "team"}, "label='team': must be key=value"),
        ({"limit": "0"}, "limit='0': input should be greater than or equal to 1"),
        ({"limit": "nan"}, "limit='nan'"),
        ({"limit": "many"}, "limit='many'"),
        (
            {"stat": "FAILED"},
            (
                "unknown parameter 'stat'; there are: cursor, group, grouped, label, limit, name, "
                "owner,"
            ),
        ),
        ({"cursor": "@@@"}, "cursor"),
    ],
)
def test_a_wrong_parameter_is_named(
    query: dict[str, str], says: str, shared_server: Running
) -> None:
    answer = shared_server.as_user("ann")("GET", paths.JOBS, params=query)
    assert answer.status_code == 422
    assert says in answer.json()["message"]


def test_wrong_parameters_of_logs_are_sentences_too(ann: Api) -> None:
    submit(ann, name="train")
    answer = ann("GET", paths.job("train", "logs"), params={"rank": "first"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert "rank='first'" in answer.json()["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (method.upper(), path)
        for path, methods in openapi(rest_api())["paths"].items()
        for method in methods
        if path.startswith(paths.API) and not paths.is_of_workers(path)
    ],
)
def test_a_parameter_that_a_path_does_not_know_is_named(
    method: str, path: str, shared_server: Running
) -> None:
    ann = shared_server.as_user("ann")
    ann.submit(name="train", key="train")
    answer = ann(
        method,
        path.replace("{name}", "train").replace("{sha256}", "0" * 64),
        params={"flow": "true"},
    )
    assert answer.status_code == 422
    if method != "HEAD":
        assert answer.json()["code"] == "invalid_request"
        assert answer.json()["message"].startswith("unknown parameter 'flow'; ")


def test_cancel_is_ordered_and_arrives(ann: Api) -> None:
    submit(ann, name="train")
    assert ann("POST", paths.job("train", "cancel")).status_code == 200
    assert wait_until_final(ann, "train").state == "CANCELLED"
    again = ann("POST", paths.job("train", "cancel"))
    assert (again.status_code, again.json()["state"]) == (200, "CANCELLED")


def test_a_job_that_is_not_final_is_deleted_by_force_only(ann: Api) -> None:
    submit(ann, name="train")
    assert ann("DELETE", paths.job("train")).status_code == 409
    assert ann("DELETE", paths.job("train"), params={"force": "maybe"}).status_code == 422
    answer = ann("DELETE", paths.job("train"), params={"force": "true"})
    assert answer.status_code == 200
    assert "train" in answer.json()["message"]


def test_events_manifest_and_request(ann: Api) -> None:
    submit(ann, name="train", env_variables={"HF_TOKEN": "hf_x", "N": 1})
    events = ann("GET", paths.job("train", "events")).json()["events"]
    assert events[0]["state"] == "PENDING"
    assert (
        Manifest.model_validate_json(ann("GET", paths.job("train", "manifest")).content).runtime
        == "local"
    )
    again = SubmitRequest.model_validate_json(ann("GET", paths.job("train", "request")).content)
    assert again.spec.env_variables["N"] == 1


def test_render_creates_nothing(ann: Api) -> None:
    body = {
        "spec": {"script": "echo hello", "type": "binary", "name": "train"},
        "code": {"mode": "in_place"},
    }
    first, second = ann("POST", paths.RENDER, json=body), ann("POST", paths.RENDER, json=body)
    assert first.status_code == 200
    assert first.content == second.content
    assert ann("GET", paths.JOBS).json()["jobs"] == []


def test_a_long_poll_answers_when_the_job_changes(server: Running, ann: Api) -> None:
    job = submit(ann, name="train")
    threading.Timer(0.2, server.call, [lambda: server.runtime.runs(job.id)]).start()
    began = time.monotonic()
    answer = ann("GET", paths.job("train"), params={"after_version": job.version, "wait": 30})
    assert answer.json()["version"] > job.version
    assert time.monotonic() - began < 5


def test_a_long_poll_of_the_past_answers_at_once_and_of_nothing_new_when_the_wait_is_over(
    ann: Api,
) -> None:
    job = submit(ann, name="train")
    began = time.monotonic()
    assert (
        ann("GET", paths.job("train"), params={"after_version": -1, "wait": 30}).status_code == 200
    )
    assert (
        ann("GET", paths.job("train"), params={"after_version": job.version, "wait": 0.1}).json()[
            "id"
        ]
        == job.id
    )
    assert time.monotonic() - began < 5


def test_a_long_poll_is_bounded(ann: Api) -> None:
    submit(ann, name="train")
    answer = ann("GET", paths.job("train"), params={"after_version": 1, "wait": 61})
    assert answer.status_code == 422
    assert "wait='61': input should be less than or equal to 60" in answer.json()["message"]


def test_one_call_waits_for_a_change_of_the_state_of_any_job_that_the_user_sees(
    server: Running, ann: Api
) -> None:
    one, two = submit(ann, name="one"), submit(server.as_user("ben"), name="two")
    begin = ann("GET", paths.CHANGES).json()["cursor"]
    threading.Timer(
        0.2, server.call, [lambda: [server.runtime.runs(job.id) for job in (one, two)]]
    ).start()
    began = time.monotonic()
    found = ann("GET", paths.CHANGES, params={"after": begin, "wait": 30}).json()
    assert (found["changes"], found["complete"]) == ([{"id": one.id, "state": "RUNNING"}], True)
    assert time.monotonic() - began < 5
    assert (
        ann("GET", paths.CHANGES, params={"after": found["cursor"], "wait": 0.1}).json()["changes"]
        == []
    )
    seen = server.as_user("root")("GET", paths.CHANGES, params={"after": begin}).json()["changes"]
    assert {change["id"] for change in seen} >= {one.id}
    assert (
        ann("GET", paths.CHANGES, params={"after": "of another server", "wait": 30}).json()[
            "complete"
        ]
        is False
    )


def test_a_stop_answers_long_polls_and_cuts_followed_logs_without_their_end(
    server: Running, ann: Api
) -> None:
    job = submit(ann, name="train")
    server.call(lambda: server.runtime.runs(job.id))
    answers: list[Any] = []

    def follow() -> None:
        stream = server.as_user("ann")(
            "GET",
            paths.job("train", "logs"),
            params={"follow": "true"},
            headers={"Accept": paths.LOG_FRAMES},
            stream=True,
        )
        answers.append(b"".join(stream.iter_content(None)))

    def poll() -> None:
        answers.append(
            server.as_user("ann")(
                "GET", paths.job("train"), params={"after_version": 1000, "wait": 60}
            ).status_code
        )

    threads = [threading.Thread(target=follow), threading.Thread(target=poll)]
    for thread in threads:
        thread.start()
    until(lambda: server.parts.traffic.in_flight >= 2 and server.parts.hub.followers >= 1)
    began = time.monotonic()
    server.stop()
    for thread in threads:
        thread.join(10)
    assert time.monotonic() - began < 3
    assert 200 in answers
    (log,) = [answer for answer in answers if isinstance(answer, bytes)]
    assert b"@state" in log
    assert b"@end" not in log


def wait_until_final(api: Api, name: str) -> JobInfo:
    job = JobInfo.model_validate_json(api("GET", paths.job(name)).content)
    deadline = time.monotonic() + 10
    while not job.state.final:
        assert time.monotonic() < deadline, job
        answer = api("GET", paths.job(name), params={"after_version": job.version, "wait": 5})
        job = JobInfo.model_validate_json(answer.content)
    return job


def test_a_job_that_ends_says_so(server: Running, ann: Api) -> None:
    job = submit(ann, name="train")
    server.call(lambda: server.runtime.runs(job.id))
    server.call(lambda: server.runtime.end(job.id, Reason.COMPLETED))
    assert wait_until_final(ann, "train").state == "SUCCEEDED"


@pytest.mark.parametrize("path", [paths.JOBS, paths.INFO, paths.job("none"), paths.INSTANCE_TYPES])
def test_no_browser_keeps_an_answer(ann: Api, path: str) -> None:
    assert ann("GET", path).headers["Cache-Control"] == "no-store"
