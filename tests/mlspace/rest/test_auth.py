"""Tokens and request ids. That nothing is answered without a token is in test_exchanges.py."""

import pytest

from client_lib.spec import paths
from tests.http.conftest import Running
from tests.mlspace.rest.conftest import AUTH, JOBS, Platform, platform


def test_ping_is_answered_without_a_token(shared_server: Running) -> None:
    assert platform(shared_server, None)("GET", paths.PING).status_code == 200


@pytest.mark.parametrize("form", ["{}", "Bearer {}", "bearer {}"])
def test_the_token_is_taken_raw_and_with_its_scheme(form: str, server: Running) -> None:
    assert Platform(server.url, form.format(server.tokens["ann"]))("GET", JOBS).status_code == 200


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


def test_a_body_that_is_too_large_is_refused_in_the_platform_s_form(ann: Platform) -> None:
    answer = ann.run(job_desc="x" * 2**24)
    assert (answer.status_code, answer.json()["error_code"]) == (413, 1)


def test_our_own_paths_answer_in_our_own_form(ann: Platform) -> None:
    # the raw token is the platform's way alone
    assert ann("GET", paths.JOBS).json()["code"] == "unauthorized"
