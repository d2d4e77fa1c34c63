"""The server answers the golden requests as the golden files say; that `mls` sends them, and reads
the answers, is in tests/mlspace/cli/test_exchanges.py.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from server_stub.app import openapi
from server_stub.http.api import public_v2
from tests.http.conftest import Running
from tests.mlspace.rest.conftest import AUTH, Platform
from tests.mlspace.rest.exchanges import GOLDEN, STORIES, exchanges, played, send, steps, text

WRONG = {"error_code": 1, "error_message": "invalid user credentials"}
NUL_BYTE = {
    "error_code": 1,
    "error_message": "the path or the query has a NUL byte, which no name has",
}
WORKSPACES = "/public/v2/workspaces/v3"
NEVER_REFUSED = {
    f"GET {WORKSPACES}/",
    f"GET {WORKSPACES}/{{workspace}}",
    f"GET {WORKSPACES}/{{workspace}}/allocations",
    "GET /public/v2/instance_types/{region}/available",
}
"""Any workspace and any region is accepted."""


@pytest.mark.parametrize("story", STORIES)
def test_a_story_happens_as_its_golden_file_says(
    story: str, start_server: Callable[..., Running]
) -> None:
    """`python -m tests.mlspace.rest.exchanges` writes new ones."""
    for found, golden in zip(played(story, start_server()), steps(story), strict=True):
        assert found == golden


@pytest.mark.parametrize("story", STORIES)
def test_a_golden_file_has_the_form_in_which_it_is_written(story: str) -> None:
    assert (GOLDEN / f"{story}.json").read_text() == text(steps(story)) + "\n"


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "wrong", "Bearer ", "Basic YTph"])
def test_no_golden_request_is_answered_without_a_token(
    authorization: str | None, shared_server: Running
) -> None:
    stranger = Platform(shared_server.url, authorization)
    requests = [step["request"] for _, step in exchanges() if AUTH not in step["request"]["line"]]
    for request in requests:
        answer = send(request, stranger)
        assert (answer.status_code, answer.json()) in [(401, WRONG), (400, NUL_BYTE)], request


def test_each_operation_has_a_good_call_and_a_refused_one() -> None:
    paths = openapi(public_v2.routes())["paths"]
    operations = [f"{method.upper()} {path}" for path, found in paths.items() for method in found]
    assert len(operations) > len(NEVER_REFUSED)
    found = {
        (_operation(step["request"]["line"], operations), _kind(step["answer"]))
        for _, step in exchanges()
    }
    expected = {(operation, kind) for operation in operations for kind in ("good", "refused")}
    assert expected - found == {(operation, "refused") for operation in NEVER_REFUSED}


def _operation(line: str, operations: list[str]) -> str | None:
    """The one whose template has the fewest parameters, as `restart` is no name of a job."""
    fitting = [
        operation
        for operation in operations
        if re.fullmatch(re.sub(r"{\w+}", "[^/]+", operation), line.split("?")[0])
    ]
    return min(fitting, key=lambda operation: operation.count("{"), default=None)


def _kind(answer: dict[str, Any]) -> str:
    body = answer["body"]
    says_missing = isinstance(body, dict) and body.get("error_code")
    return "refused" if answer["status"] != 200 or says_missing else "good"
