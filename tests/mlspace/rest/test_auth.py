"""service_auth, and what every other path wants to see."""

import pytest

from client_lib.spec import paths
from tests.http.conftest import Running
from tests.mlspace.rest.conftest import AUTH, JOBS, Platform, platform

WRONG = {"error_code": 1, "error_message": "invalid user credentials"}
PATHS = [
    ("POST", JOBS),
    ("GET", JOBS),
    ("POST", f"{JOBS}/restart"),
    ("GET", f"{JOBS}/x"),
    ("DELETE", f"{JOBS}/x?region=SR006"),
    ("GET", f"{JOBS}/x/logs?region=SR006"),
    ("GET", f"{JOBS}/elastic/x/pods"),
    ("GET", "/public/v2/configs"),
    ("GET", "/public/v2/workspaces/v3/"),
    ("GET", "/public/v2/nowhere"),
]


def test_a_user_s_name_and_token_are_the_pair(server: Running) -> None:
    token = server.tokens["ann"]
    answer = platform(server, None)("POST", AUTH, json={"client_id": "ann", "client_secret": token})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json() == {
        "token": {"access_token": token, "token_type": "Bearer", "expires_in": 3600},
        "status": "ok",
        "error_code": 0,
        "error_message": "",
    }


def test_ping_is_answered_without_a_token(shared_server: Running) -> None:
    assert platform(shared_server, None)("GET", paths.PING).status_code == 200


@pytest.mark.parametrize("pair", [("ann", "wrong"), ("ben", "ann's"), ("", ""), ("ann", "ключ")])
def test_a_wrong_pair_is_answered_as_the_platform_does(
    pair: tuple[str, str], shared_server: Running
) -> None:
    secret = shared_server.tokens["ann"] if pair[1] == "ann's" else pair[1]
    answer = platform(shared_server, None)(
        "POST", AUTH, json={"client_id": pair[0], "client_secret": secret}
    )
    assert (answer.status_code, answer.json()) == (401, WRONG)


def test_a_pair_of_another_form_is_422(server: Running) -> None:
    answer = platform(server, None)("POST", AUTH, json={"client_id": "ann", "user": "ann"})
    assert answer.status_code == 422
    assert [found["loc"] for found in answer.json()["detail"]] == [
        ["body", "client_secret"],
        ["body", "user"],
    ]


@pytest.mark.parametrize("form", ["{}", "Bearer {}", "bearer {}"])
def test_the_token_is_taken_raw_and_with_its_scheme(form: str, server: Running) -> None:
    assert Platform(server.url, form.format(server.tokens["ann"]))("GET", JOBS).status_code == 200


@pytest.mark.parametrize(
    "authorization", [None, "wrong", "Bearer wrong", "Bearer ", "Basic YW5uOmFubg=="]
)
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_without_a_token_nothing_answers(
    method: str, path: str, authorization: str | None, shared_server: Running
) -> None:
    answer = Platform(shared_server.url, authorization)(method, path)
    assert (answer.status_code, answer.json()) == (401, WRONG)


def test_every_answer_has_a_request_id_and_a_line_in_the_access_log(
    server: Running, ann: Platform
) -> None:
    answer = ann("GET", f"{JOBS}/x")
    line = server.log_lines()[-1]
    assert answer.headers["x-request-id"] == line["id"]
    assert (line["route"], line["status"], line["user"]) == (f"{JOBS}/{{name}}", 200, "ann")


def test_a_token_that_is_taken_back_is_wrong_at_once(server: Running, ann: Platform) -> None:
    assert ann("GET", JOBS).status_code == 200
    users = server.settings.users_file
    assert users is not None
    users.write_text(users.read_text().replace('name = "ann"', 'name = "eve"'))
    assert (
        ann(
            "POST", AUTH, json={"client_id": "ann", "client_secret": server.tokens["ann"]}
        ).status_code
        == 401
    )


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/public/v2/nowhere", 404), ("PUT", JOBS, 405)]
)
def test_what_is_no_route_is_refused_in_the_platform_s_form(
    method: str, path: str, status: int, ann: Platform
) -> None:
    answer = ann(method, path)
    assert answer.status_code == status
    assert answer.json()["error_code"] == 1
    assert answer.headers["Content-Type"] == "application/json"


def test_a_body_that_is_too_large_is_refused_in_the_platform_s_form(ann: Platform) -> None:
    answer = ann.run(job_desc="x" * 2**24)
    assert (answer.status_code, answer.json()["error_code"]) == (413, 1)


@pytest.mark.parametrize("path", [f"{JOBS}/a%00b", f"{JOBS}?region=%00"])
def test_a_nul_byte_in_the_address_is_refused(path: str, ann: Platform) -> None:
    answer = ann("GET", path)
    assert (answer.status_code, answer.json()["error_code"]) == (400, 1)


def test_our_own_paths_answer_in_our_own_form(ann: Platform) -> None:
    # the raw token is the platform's way alone
    assert ann("GET", paths.JOBS).json()["code"] == "unauthorized"
