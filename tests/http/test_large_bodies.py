"""A large body is read as a small one is, and its user takes turns with others."""

import json
import re

import pytest

from client_lib.spec import paths
from server_stub.http.auth import sender
from server_stub.http.limits import SMALL_BODY_BYTES
from server_stub.http.users_file import USER_NAME
from tests.http.conftest import Api, Running


@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_the_size_of_a_body_does_not_change_its_answer(ann: Api, media_type: str) -> None:
    answers = []
    for size in (0, SMALL_BODY_BYTES + 1):
        spec = {"script": "echo", "type": "binary", "nonsense": "x" * size}
        body = json.dumps({"spec": spec, "code": {"mode": "in_place"}})
        answer = ann("POST", paths.JOBS, data=body, headers={"Content-Type": media_type})
        answers.append((answer.status_code, answer.json()))
    assert answers[0] == answers[1]


def test_no_user_has_the_turns_of_the_workers(server: Running) -> None:
    server.as_worker("ann")
    attempt = server.parts.workers.find("job-of-ann", 1)
    assert re.fullmatch(USER_NAME, sender({"attempt": attempt})) is None
    assert re.fullmatch(USER_NAME, sender({})) is None
