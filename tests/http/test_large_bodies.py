"""A large body is read as a small one is, and its user takes turns with others."""

import json
import re

import pytest

from client_lib.spec import paths
from server_stub.http.api.large_bodies import REPORTS
from server_stub.http.limits import SMALL_BODY_BYTES
from server_stub.http.users_file import USER_NAME
from tests.http.conftest import Api


@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_the_size_of_a_body_does_not_change_its_answer(ann: Api, media_type: str) -> None:
    answers = []
    for size in (0, SMALL_BODY_BYTES + 1):
        spec = {"script": "echo", "type": "binary", "nonsense": "x" * size}
        body = json.dumps({"spec": spec, "code": {"mode": "in_place"}})
        answer = ann("POST", paths.JOBS, data=body, headers={"Content-Type": media_type})
        answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]


def test_no_user_has_the_turns_of_the_workers() -> None:
    assert re.fullmatch(USER_NAME, REPORTS) is None
