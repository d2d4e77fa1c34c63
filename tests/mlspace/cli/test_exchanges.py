"""`mls`, unmodified, sends the golden requests and reads the golden answers: its commands against a
small server that answers as tests/mlspace/rest/golden says. That our server answers so is in
tests/mlspace/rest/test_exchanges.py.
"""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kit.small_server import SmallServer
from tests.mlspace.cli.conftest import EACH_VERSION, Mls
from tests.mlspace.rest.conftest import AUTH
from tests.mlspace.rest.exchanges import STORIES, Step, Volatile, steps

pytestmark = pytest.mark.process
A_DAY = {
    "<token of ann>": "clt_ann",
    "<job 1>": "lm-mpi-job-35cfaf59-ceaa-419b-87d4-bc3b173a3364",
    "<job 2>": "lm-mpi-job-962650d3-38f5-42f3-bdc6-fd49c5c7885b",
    "<unix time>": 1795892107,
    "<unix time as text>": "1795892107",
    "<ISO 8601>": "2026-11-28T18:55:07Z",
    "<duration>": "7s",
}
"""Values for the placeholders that `mls` looks into."""
OF_MLS = [story for story in STORIES if any("mls" in step for step in steps(story))]


@pytest.fixture(scope="module")
def small_server() -> Iterator[SmallServer]:
    with SmallServer() as small:
        yield small


@pytest.fixture(scope="module", params=EACH_VERSION)
def bare_mls(
    request: pytest.FixtureRequest,
    small_server: SmallServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Mls:
    """One version of `mls` whose profile is for the small server."""
    mls = Mls(request.param, tmp_path_factory.mktemp("mls-home"))
    mls.configure(small_server.url, "ann", "clt_ann")
    return mls


@pytest.mark.parametrize("story", OF_MLS)
def test_mls_sends_the_golden_requests_and_reads_the_golden_answers(
    story: str, bare_mls: Mls, small_server: SmallServer
) -> None:
    values = Volatile(A_DAY)
    small_server.answers.clear()
    # mls exchanges its pair before each command
    _let_answer(small_server, steps("auth")[0], values)
    for step in steps(story):
        if "request" in step:
            _let_answer(small_server, step, values)
        if "mls" in step:
            done = bare_mls(*values.shown(step["mls"]))
            assert (done.code, done.err) == (0, ""), (step["title"], done)
            assert _last_request(small_server) == _request(step, values)
            body = values.shown(step["answer"]["body"])
            assert body == (done.out.strip("\n") + "\n" if isinstance(body, str) else done.json)


def _let_answer(server: SmallServer, step: Step, values: Volatile) -> None:
    method, _, address = values.shown(step["request"])["line"].partition(" ")
    answer = values.shown(step["answer"])
    is_text = isinstance(answer["body"], str)
    body = answer["body"].encode() if is_text else answer["body"]
    server.answers[method, urlsplit(address).path] = (answer["status"], body)


def _last_request(server: SmallServer) -> tuple[str, Any]:
    assert server.asked[0] == ("POST", AUTH)
    return " ".join(server.asked[-1]), json.loads(server.bodies[-1] or "null")


def _request(step: Step, values: Volatile) -> tuple[str, Any]:
    wanted = values.shown(step["request"])
    return wanted["line"], wanted.get("json")
