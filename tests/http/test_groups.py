"""Groups over HTTP: stored whole or not at all, started as `max_parallel` allows, and
seen by their owner alone.
"""

from typing import Any

import pytest
import requests

from client_lib.spec import paths
from client_lib.spec.states import Reason
from server_stub.service.admission import MAX_SPEC_BYTES
from tests.http.conftest import Api, Running
from tests.kit.waiting import until

JOB: dict[str, Any] = {
    "spec": {"script": "echo", "type": "binary", "labels": {"team": "a"}},
    "code": {"mode": "in_place"},
}


def submit(
    api: Api, name: str = "scan", runs: int = 3, key: str = "", **asked: Any
) -> requests.Response:
    members = [{"args": [f"--lr={number}"], "values": {"lr": number}} for number in range(runs)]
    body = {"name": name, "request": JOB, "members": members} | asked
    return api("POST", paths.GROUPS, json=body, headers={paths.IDEMPOTENCY_KEY: key} if key else {})


def members(api: Api, name: str = "scan") -> list[dict[str, Any]]:
    """By their index."""
    found = api("GET", paths.JOBS, params={"group": name, "limit": 1000})
    assert found.status_code == 200, found.text
    jobs: list[dict[str, Any]] = found.json()["jobs"]
    return jobs[::-1]


def counts(api: Api, name: str = "scan") -> dict[str, int]:
    found: dict[str, int] = api("GET", paths.group(name)).json()["counts"]
    return found


def started(server: Running) -> list[str]:
    return [server.runtime.attempts[job_id].job_name for job_id, _ in server.runtime.started]


def test_the_members_of_a_group_are_jobs_with_names_and_arguments_of_their_own(ann: Api) -> None:
    answer = submit(ann)
    assert (answer.status_code, answer.json()["size"], answer.json()["counts"]) == (
        201,
        3,
        {"PENDING": 3},
    )
    found = members(ann)
    assert [job["name"] for job in found] == ["scan-0", "scan-1", "scan-2"]
    assert [job["spec"]["args"] for job in found] == [["--lr=0"], ["--lr=1"], ["--lr=2"]]
    assert found[2]["group"] == {
        "name": "scan",
        "id": answer.json()["id"],
        "index": 2,
        "values": {"lr": 2},
    }
    labelled = ann("GET", paths.JOBS, params={"label": "team=a"}).json()["jobs"]
    assert len(labelled) == 3, "a list for older clients has them as jobs"


def test_the_same_key_gives_the_same_group_and_another_group_is_409(ann: Api) -> None:
    first, again = submit(ann, key="k"), submit(ann, key="k")
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert len(members(ann)) == 3
    other = submit(ann, runs=4, key="k")
    assert (other.status_code, other.json()["code"]) == (409, "key_reused")


def test_groups_and_jobs_share_their_names_and_a_refused_group_leaves_nothing(
    ann: Api, ben: Api
) -> None:
    ann.submit(name="scan-1")
    taken = submit(ann, key="k")
    assert (taken.status_code, taken.json()["code"]) == (409, "conflict")
    assert "scan-1" in taken.json()["message"]
    assert [job["name"] for job in ann("GET", paths.JOBS).json()["jobs"]] == ["scan-1"]
    assert ann("GET", paths.group("scan")).status_code == 404
    assert ann("DELETE", paths.job("scan-1"), params={"force": "true"}).status_code == 200
    until(lambda: ann("GET", paths.job("scan-1")).status_code == 404)
    assert submit(ann, key="k").status_code == 201, "the key stayed free"
    assert ann.submit(name="scan").status_code == 409, "no job gets the name of a group"
    assert submit(ann).status_code == 409
    assert submit(ben).status_code == 201, "names are those of one user"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"members": []}, "members"),
        ({"members": [{"args": []}] * 1001}, "1001"),
        ({"name": "Scan"}, "'Scan' is not a DNS label"),
        ({"name": "s" * 47}, "name"),
        ({"max_parallel": 0}, "max_parallel"),
        ({"max_paralell": 2}, "max_paralell"),
    ],
)
def test_what_is_wrong_with_a_group_is_one_readable_422(
    wrong: dict[str, Any], says: str, ann: Api
) -> None:
    answer = submit(ann, **wrong)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert says in answer.json()["message"]
    assert ann("GET", paths.JOBS).json()["jobs"] == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {"labels": {f"label-{number}": "x" for number in range(11)}},
            "1000 members have 11000 labels",
        ),
        (
            {"env_variables": {"DATA": "x" * 40_000}},
            "the requests of 1000 members, with the environment of the submit, have",
        ),
    ],
)
def test_what_is_too_much_for_one_group_is_413(spec: dict[str, Any], says: str, ann: Api) -> None:
    request = {"spec": {"script": "echo", "type": "binary", **spec}, "code": {"mode": "in_place"}}
    answer = submit(ann, request=request, members=[{"args": []}] * 1000)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert says in answer.json()["message"]
    assert ann("GET", paths.JOBS).json()["jobs"] == []


def test_another_users_group_is_404_and_an_admin_names_its_owner(
    ann: Api, ben: Api, root: Api
) -> None:
    submit(ann)
    assert ben("GET", paths.group("scan")).status_code == 404
    assert ben("GET", paths.JOBS, params={"group": "scan"}).status_code == 404
    assert ben("GET", paths.group("scan"), params={"owner": "ann"}).status_code == 404
    assert root("GET", paths.group("scan"), params={"owner": "ann"}).json()["size"] == 3
    assert (
        len(root("GET", paths.JOBS, params={"group": "scan", "owner": "ann"}).json()["jobs"]) == 3
    )


def test_a_list_has_a_group_in_the_place_of_its_members_page_by_page(ann: Api) -> None:
    for number in range(3):
        ann.submit(name=f"alone-{number}")
        submit(ann, f"scan{number}")
    seen: list[str] = []
    params: dict[str, Any] = {"grouped": "true", "limit": 2}
    while True:
        page = ann("GET", paths.JOBS, params=params).json()
        assert len(page["jobs"]) + len(page["groups"]) <= 2
        both = page["jobs"] + page["groups"]
        seen += [
            each["name"] for each in sorted(both, key=lambda each: each["created_at"], reverse=True)
        ]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert seen == ["scan2", "alone-2", "scan1", "alone-1", "scan0", "alone-0"]
    assert ann("GET", paths.JOBS, params={"grouped": "true", "state": "FAILED"}).status_code == 422


def test_max_parallel_members_run_and_each_that_ends_starts_the_next(
    ann: Api, server: Running
) -> None:
    submit(ann, runs=4, max_parallel=2)
    first = [job["id"] for job in members(ann)]
    assert started(server) == ["scan-0", "scan-1"]
    until(lambda: "runs 2 at a time" in members(ann)[3]["message"])
    server.call(lambda: server.runtime.end(first[1]))
    until(lambda: started(server) == ["scan-0", "scan-1", "scan-2"])
    server.call(lambda: server.runtime.end(first[0], Reason.EXIT_CODE, "exit code 1"))
    until(lambda: started(server)[3:] == ["scan-3"])
    assert counts(ann) == {"FAILED": 1, "PENDING": 2, "SUCCEEDED": 1}
    for job_id in first[2:]:
        server.call(lambda job_id=job_id: server.runtime.end(job_id))
    until(lambda: ann("GET", paths.group("scan")).json()["state"] == "FAILED")


def test_a_member_that_waits_for_its_turn_is_cancelled_without_a_start(
    ann: Api, server: Running
) -> None:
    submit(ann, max_parallel=1)
    assert ann("POST", paths.job("scan-1", "cancel")).status_code == 200
    until(lambda: members(ann)[1]["state"] == "CANCELLED")
    first = members(ann)[0]["id"]
    server.call(lambda: server.runtime.end(first))
    until(lambda: started(server) == ["scan-0", "scan-2"])


def test_a_cancelled_group_starts_none_of_the_members_that_wait_for_their_turn(
    ann: Api, ben: Api, server: Running
) -> None:
    submit(ann, runs=20, max_parallel=2)
    assert ben("POST", paths.group("scan", "cancel")).status_code == 404
    answer = ann("POST", paths.group("scan", "cancel"))
    assert answer.status_code == 200, answer.text
    until(lambda: counts(ann) == {"CANCELLED": 20})
    assert started(server) == ["scan-0", "scan-1"]
    assert {job["message"] for job in members(ann)} == {"cancelled by ann"}
    again = ann("POST", paths.group("scan", "cancel"))
    assert (again.status_code, again.json()["state"]) == (200, "CANCELLED"), "as often as one likes"


@pytest.mark.parametrize("max_parallel", [2, None])
def test_stop_on_failure_cancels_the_others_when_one_has_failed_for_good(
    max_parallel: int | None, ann: Api, server: Running
) -> None:
    request = {**JOB, "spec": {**JOB["spec"], "max_retry": 1}}
    answer = submit(ann, runs=6, stop_on_failure=True, max_parallel=max_parallel, request=request)
    assert answer.json()["stop_on_failure"] is True
    first, second = [job["id"] for job in members(ann)][:2]
    server.call(lambda: server.runtime.end(first))
    for attempt in (1, 2):
        until(lambda attempt=attempt: (second, attempt) in server.runtime.started)
        assert counts(ann).get("CANCELLED", 0) == 0, "the failed member has another attempt"
        server.call(lambda: server.runtime.end(second, Reason.EXIT_CODE, "exit code 1"))
    until(lambda: counts(ann) == {"CANCELLED": 4, "FAILED": 1, "SUCCEEDED": 1})
    told = "scan-1 failed, and the group scan stops on a failure (stop_on_failure)"
    assert [job["message"] for job in members(ann)[2:]] == [told] * 4
    if max_parallel:
        assert set(started(server)) == {"scan-0", "scan-1", "scan-2"}


def test_a_restarted_server_keeps_max_parallel(ann: Api, server: Running) -> None:
    submit(ann, runs=5, max_parallel=2)
    ids = [job["id"] for job in members(ann)]
    server.call(lambda: server.runtime.runs(ids[1]))
    until(lambda: members(ann)[1]["state"] == "RUNNING")
    server.call(lambda: server.runtime.end(ids[0]))
    until(lambda: started(server)[2:] == ["scan-2"])
    server.stop()
    again = Running(server.settings.state_dir)
    try:
        api = Api(again.url, again.tokens["ann"])
        assert sorted(started(again)) == ["scan-1", "scan-2"]
        again.call(lambda: again.runtime.end(ids[1]))
        until(lambda: started(again)[2:] == ["scan-3"])
        assert counts(api) == {"PENDING": 3, "SUCCEEDED": 2}
    finally:
        again.stop()


def test_members_that_did_not_succeed_run_again_in_the_same_group_and_once_for_one_key(
    ann: Api, ben: Api, server: Running
) -> None:
    submit(ann, runs=4, max_parallel=3)
    first, second, *_ = [job["id"] for job in members(ann)]
    server.call(lambda: server.runtime.end(first))
    server.call(lambda: server.runtime.end(second, Reason.EXIT_CODE, "exit code 1"))
    ann("POST", paths.job("scan-2", "cancel"))
    until(lambda: counts(ann) == {"SUCCEEDED": 1, "FAILED": 1, "CANCELLED": 1, "PENDING": 1})

    def again(api: Api, key: str, **params: str) -> requests.Response:
        headers = {paths.IDEMPOTENCY_KEY: key}
        return api("POST", paths.group("scan", "resubmit"), params=params, headers=headers)

    assert again(ben, "k", failed="true").status_code == 404
    whole = again(ann, "k")
    assert (whole.status_code, "jobs that have not ended" in whole.json()["message"]) == (409, True)
    found = [again(ann, "once", failed="true") for _ in range(2)][1]
    assert found.status_code == 200, found.text
    assert (found.json()["size"], found.json()["earlier"]) == (4, "scan-earlier-1")
    assert [job["name"] for job in members(ann)] == ["scan-0", "scan-3", "scan-4", "scan-5"]
    assert [job["group"]["values"] for job in members(ann)[2:]] == [{"lr": 1}, {"lr": 2}]
    assert [job["spec"]["args"] for job in members(ann)[2:]] == [["--lr=1"], ["--lr=2"]]
    assert server.runtime.attempts[members(ann)[2]["id"]].checkpoints_name == "scan-1"
    earlier = members(ann, "scan-earlier-1")
    assert [(job["name"], job["state"]) for job in earlier] == [
        ("scan-1", "FAILED"),
        ("scan-2", "CANCELLED"),
    ]
    assert earlier[0]["group"] | {"id": ""} == {
        "name": "scan-earlier-1",
        "id": "",
        "index": 1,
        "values": {"lr": 1},
    }
    listed = ann("GET", paths.JOBS, params={"grouped": "true"}).json()
    assert ([group["name"] for group in listed["groups"]], listed["jobs"]) == (
        ["scan", "scan-earlier-1"],
        [],
    )
    assert again(ann, "k", failed="true").status_code == 409, "none has failed again"
    for job in members(ann)[1:]:
        server.call(lambda job=job: server.runtime.end(job["id"]))
    until(lambda: counts(ann) == {"SUCCEEDED": 4})
    assert again(ann, "all").json()["earlier"] == "scan-earlier-2"
    assert [job["name"] for job in members(ann)] == [f"scan-{number}" for number in (6, 7, 8, 9)]
    until(lambda: started(server)[-3:] == ["scan-6", "scan-7", "scan-8"])
    assert "scan-9" not in started(server), "max_parallel holds"
    for name in ("scan-1", "scan-2"):
        assert ann("DELETE", paths.job(name)).status_code == 200
    assert ann("GET", paths.group("scan-earlier-1")).status_code == 404


def test_a_group_goes_with_its_last_member(ann: Api, server: Running) -> None:
    submit(ann, runs=2)
    for name in ("scan-1", "scan-0"):
        assert ann("GET", paths.group("scan")).status_code == 200
        ann("DELETE", paths.job(name), params={"force": "true"})
    until(lambda: ann("GET", paths.group("scan")).status_code == 404)
    assert submit(ann).status_code == 201, "its name is free"


def test_the_name_of_a_group_is_checked_before_its_members_are_made(ann: Api) -> None:
    large = [{"args": ["x" * 1000] * (MAX_SPEC_BYTES // 1000), "values": {}}]
    assert submit(ann, members=large).status_code == 413
    assert submit(ann).status_code == 201
    assert submit(ann, members=large).status_code == 409
