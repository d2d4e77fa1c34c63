"""A second user can't see, cancel, read or fetch a job: to others it does not exist.

The routes are taken from the app itself: a new one is tested here, or has to be named among those
that hold nothing of a single user's.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts

from client_lib.spec import paths
from server_stub.app import rest_api
from server_stub.http.api.server import without_places
from tests.http.conftest import Api, Running

JOB = paths.job("train")
ARCHIVE = b"some archive"
SHA = hashlib.sha256(ARCHIVE).hexdigest()
ROUTES = [
    (method, str(route.path))
    for route in iter_route_contexts(rest_api().routes)
    for method in route.methods or ()
]
OF_ALL_USERS = {
    ("GET", paths.INFO),
    ("GET", paths.DOCTOR),
    ("GET", paths.INSTANCE_TYPES),
    ("GET", paths.METRICS),
    ("GET", paths.HEALTHZ),
    ("GET", paths.PING),
    ("GET", paths.READYZ),
}
OF_WHO_ASKS = {
    ("POST", paths.JOBS),
    ("GET", paths.JOBS),
    ("POST", paths.RENDER),
    ("POST", paths.LOGIN_LINKS),
}
# http/test_groups has the owners of groups, http/test_jobs those of changes, http/test_oidc the
# login
OF_WHO_ASKS |= {
    ("POST", paths.GROUPS),
    ("GET", f"{paths.GROUPS}/{{name}}"),
    ("POST", f"{paths.GROUPS}/{{name}}/cancel"),
    ("POST", f"{paths.GROUPS}/{{name}}/resubmit"),
    ("GET", paths.CHANGES),
    ("GET", paths.LOGIN),
}
ON_A_SNAPSHOT = [(method, paths.snapshot(SHA)) for method in ("HEAD", "GET", "PUT")]
VARIANTS = {
    ("GET", JOB): ["?after_version=0&wait=1"],
    ("GET", paths.job("train", "logs")): ["?follow=true"],
    ("DELETE", JOB): ["?force=true"],
}
ON_A_JOB = sorted(
    (
        method,
        path.replace("{name}", "train").replace("{rank}", "0").replace("{session}", "0" * 32)
        + query,
    )
    for method, path in ROUTES
    if path.startswith(f"{paths.JOBS}/{{name}}") and not paths.is_of_workers(path)
    for query in ("", *VARIANTS.get((method, path.replace("{name}", "train")), ()))
)


def body(path: str) -> dict[str, Any]:
    """The part of a valid request that is needed beside the path."""
    if "/sessions/" in path:
        return {"json": {"argv": ["true"]}}
    if path.endswith("/checkpoints/prune"):
        return {"json": {"keep": 1}}
    if path.endswith("/checkpoints/archive"):
        return {"params": {"path": "model-1.pt"}}
    return {}


def test_every_route_is_one_of_those_tested_here() -> None:
    on_a_snapshot = {(method, f"{paths.SNAPSHOTS}/{{sha256}}") for method, _ in ON_A_SNAPSHOT}
    of_workers = {(method, path) for method, path in ROUTES if paths.is_of_workers(path)}
    on_a_job = {
        (method, path) for method, path in ROUTES if path.startswith(f"{paths.JOBS}/{{name}}")
    } - of_workers
    assert set(ROUTES) == OF_ALL_USERS | OF_WHO_ASKS | on_a_snapshot | on_a_job | of_workers
    assert len(ON_A_JOB) == len(on_a_job) + len(VARIANTS)


@pytest.mark.parametrize(
    ("method", "path"), [route for route in ROUTES if paths.is_of_workers(route[1])]
)
def test_no_user_speaks_for_a_worker(method: str, path: str, shared_server: Running) -> None:
    assert shared_server.as_user("root")(method, path).json()["code"] == "unauthorized"


@pytest.fixture
def train(ann: Api) -> str:
    """A job of ann; its id."""
    return str(ann.submit(name="train").json()["id"])


@pytest.fixture(scope="module")
def shared_train(shared_server: Running) -> str:
    """The same on a server whose tests change nothing."""
    return str(shared_server.as_user("ann").submit(name="train").json()["id"])


@pytest.mark.parametrize(("method", "path"), ON_A_JOB)
def test_a_job_of_another_does_not_exist(
    method: str, path: str, shared_train: str, shared_server: Running
) -> None:
    ann, ben = shared_server.as_user("ann"), shared_server.as_user("ben")
    mine, missing = (
        ben(method, each, **body(path)) for each in (path, path.replace("train", "nowhere"))
    )
    assert (mine.status_code, mine.json()["code"]) == (404, "not_found")
    assert mine.json()["message"] == missing.json()["message"].replace("nowhere", "train")
    assert ann("GET", JOB).json()["state"] == "PENDING"


@pytest.mark.parametrize(("method", "path"), ON_A_JOB)
def test_naming_the_owner_does_not_help(
    method: str, path: str, shared_train: str, shared_server: Running
) -> None:
    ann, ben = shared_server.as_user("ann"), shared_server.as_user("ben")
    answer = ben(method, path + ("&" if "?" in path else "?") + "owner=ann", **body(path))
    # 422: it takes no owner
    assert answer.status_code in (403, 404) or "owner" in answer.json()["message"]
    assert shared_train not in answer.text
    assert ann("GET", JOB).json()["state"] == "PENDING"


def test_a_job_is_not_found_by_its_id_either(train: str, ben: Api) -> None:
    assert ben("GET", paths.job(train)).status_code == 404


@pytest.mark.parametrize("owner", [None, "ann", "*"])
def test_a_list_shows_one_s_own(owner: str | None, train: str, ben: Api) -> None:
    ben.submit(name="mine")
    answer = ben("GET", paths.JOBS, params={"owner": owner} if owner else {})
    assert train not in answer.text
    if answer.ok:
        assert {job["owner"] for job in answer.json()["jobs"]} <= {"ben"}


def test_two_users_may_use_one_name_and_one_key(ann: Api, ben: Api) -> None:
    jobs = [api.submit(name="train", key="k") for api in (ann, ben)]
    assert [answer.status_code for answer in jobs] == [201, 201]
    assert [api("GET", JOB).json()["owner"] for api in (ann, ben)] == ["ann", "ben"]


def test_a_snapshot_of_another_is_not_rendered_either(ann: Api, ben: Api) -> None:
    ann("PUT", paths.snapshot(SHA), data=ARCHIVE)
    body = {
        "spec": {"script": "echo", "type": "binary"},
        "code": {"mode": "snapshot", "sha256": SHA, "root": "/x"},
    }
    answers = [api("POST", paths.RENDER, json=body) for api in (ann, ben)]
    assert answers[0].ok
    assert (answers[1].status_code, answers[1].text) == (answers[0].status_code, answers[0].text)


@pytest.mark.parametrize(("method", "path"), sorted(OF_ALL_USERS))
def test_what_all_users_see_names_no_job_of_another(
    method: str, path: str, shared_train: str, shared_server: Running
) -> None:
    answer = shared_server.as_user("ben")(method, path)
    assert answer.ok
    assert not {shared_train, "train", "ann"} & set(re.split(r"\W+", answer.text))


def test_a_snapshot_of_another_does_not_exist_until_its_bytes_are_sent(ann: Api, ben: Api) -> None:
    path = paths.snapshot(SHA)
    assert ann("PUT", path, data=ARCHIVE).status_code == 201
    assert ann("GET", path).content == ARCHIVE
    assert ann("HEAD", path).headers["Content-Length"] == str(len(ARCHIVE))
    assert [ben(method, path).status_code for method in ("HEAD", "GET")] == [404, 404]
    code = {"mode": "snapshot", "sha256": SHA, "root": "/x"}
    assert ben.submit(code=code).status_code == 404
    assert ben("PUT", path, data=b"a guess").status_code == 422
    assert ben("HEAD", path).status_code == 404
    # as if ann had none
    assert [ben("PUT", path, data=ARCHIVE).status_code for _ in range(2)] == [201, 200]
    assert ben("GET", path).content == ARCHIVE
    assert ben.submit(code=code).status_code == 201


def test_users_see_no_place_of_the_server(server: Running, ann: Api, root: Api) -> None:
    place, database = str(server.settings.data_dir), server.settings.database_url
    assert place in root("GET", paths.DOCTOR).text
    seen = ann("GET", paths.DOCTOR)
    assert place not in seen.text
    assert database not in seen.text
    assert "://" not in seen.text
    assert [check["name"] for check in seen.json()["checks"]] == [
        check["name"] for check in root("GET", paths.DOCTOR).json()["checks"]
    ]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("12.0 GB free in /srv/data/x", "12.0 GB free in …"),
        ("runs with /usr/bin/python3, which is gone", "runs with …, which is gone"),
        ("logs go to https://a.b:1/c?d=e; 3 GB", "logs go to …; 3 GB"),
        (
            "1/2 of 3 GiB, and/or a (docker run --shm-size=8g)",
            "1/2 of 3 GiB, and/or a (docker run --shm-size=8g)",
        ),
    ],
)
def test_paths_and_urls_are_left_out_of_what_users_see(said: str, seen: str) -> None:
    assert without_places(said) == seen


def test_an_admin_sees_and_acts_on_all(train: str, ann: Api, root: Api) -> None:
    ann("PUT", paths.snapshot(SHA), data=ARCHIVE)
    assert root("GET", JOB, params={"owner": "ann"}).json()["id"] == train
    assert train in root("GET", paths.JOBS, params={"owner": "*"}).text
    assert train not in root("GET", paths.JOBS).text
    assert root("GET", paths.snapshot(SHA)).content == ARCHIVE
    assert root("POST", paths.job("train", "cancel"), params={"owner": "ann"}).status_code == 200


def test_where_the_server_shares_jobs_all_see_them(start_server: Callable[..., Running]) -> None:
    server = start_server(share_jobs=True)
    ann, ben = server.as_user("ann"), server.as_user("ben")
    train = ann.submit(name="train").json()["id"]
    ann("PUT", paths.snapshot(SHA), data=ARCHIVE)
    assert ben("GET", JOB, params={"owner": "ann"}).json()["owner"] == "ann"
    assert train in ben("GET", paths.JOBS, params={"owner": "*"}).text
    assert ben("GET", paths.snapshot(SHA)).content == ARCHIVE


@pytest.mark.parametrize("share_jobs", [False, True])
def test_who_may_read_the_snapshot_of_another_still_uploads_their_own(
    start_server: Callable[..., Running], share_jobs: bool
) -> None:
    """HEAD decides whether a client uploads, and a submit wants an upload of the user's own."""
    server = start_server(share_jobs=share_jobs)
    server.as_user("ann")("PUT", paths.snapshot(SHA), data=ARCHIVE)
    root = server.as_user("root")
    code = {"mode": "snapshot", "sha256": SHA, "root": "/x"}
    body = {"spec": {"script": "echo", "type": "binary"}, "code": code}
    assert root("GET", paths.snapshot(SHA)).status_code == 200
    assert root("HEAD", paths.snapshot(SHA)).status_code == 404
    assert root("PUT", paths.snapshot(SHA), data=ARCHIVE).status_code == 201
    assert root("HEAD", paths.snapshot(SHA)).status_code == 200
    assert root("POST", paths.JOBS, json=body).status_code == 201


def test_the_data_directory_is_told_to_admins_only(server: Running, ann: Api, root: Api) -> None:
    assert ann("GET", paths.INFO).json()["data_dir"] is None
    assert root("GET", paths.INFO).json()["data_dir"] == str(server.settings.data_dir)
    assert [api("GET", paths.INFO).json()["user"] for api in (ann, root)] == ["ann", "root"]


OPEN = (paths.HEALTHZ, paths.PING, paths.READYZ)
CLOSED = sorted((OF_ALL_USERS | OF_WHO_ASKS) - {("GET", path) for path in (*OPEN, paths.LOGIN)})
EVERYTHING = [*ON_A_JOB, *CLOSED, *ON_A_SNAPSHOT, ("GET", "/nowhere")]


@pytest.mark.parametrize("token", [None, "clt_wrong"])
@pytest.mark.parametrize(("method", "path"), EVERYTHING)
def test_without_a_token_nothing_answers(
    method: str, path: str, token: str | None, shared_server: Running
) -> None:
    answer = Api(shared_server.url, token)(method, path)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    if method != "HEAD":
        assert answer.json()["code"] == "unauthorized"
        assert answer.json()["hint"]


def test_health_needs_no_token(server: Running) -> None:
    assert [server.anonymous()("GET", path).status_code for path in OPEN] == [200, 200, 200]
