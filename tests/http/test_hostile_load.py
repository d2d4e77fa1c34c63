"""Each operation of both APIs and of the pages with hostile sizes: none keeps the event loop from
other requests for long. A block is one callback of the loop, so one request at a time shows it;
benchmarks/hostile_load.py measures many at once: times of the clock and memory."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import requests

from client_lib.spec import paths
from server_stub.http.api.public_v2.jobs import PAGE_MAX
from tests.http.conftest import Api, Running
from tests.kit.hostile_sizes import Operation, Sent, operations, requests_for
from tests.kit.loop_blocks import BLOCK_S, Blocks, blocks_of_loops
from tests.mlspace.rest.conftest import JOBS


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Blocks]]:
    with blocks_of_loops() as blocks:
        server = Running(tmp_path_factory.mktemp("measured"))
        server.add_finished_jobs("ann", PAGE_MAX)
        server.as_user("ann")("GET", JOBS)  # loads the platform's API
        yield server, blocks
        server.stop()


_JSON = {"Content-Type": "application/json"}
"""The platform's API reads no other body."""


def logged_in(server: Running) -> Api:
    """The view of a user whose browser is logged in, too."""
    ann = server.as_user("ann")
    link = ann("POST", paths.LOGIN_LINKS).json()["path"]
    assert ann("GET", f"/{link}").ok
    return ann


def send(user: Api, sent: Sent) -> None:
    """Send a request; the server may close the connection before all of it has arrived."""
    with suppress(requests.ConnectionError, requests.Timeout):
        answer = user(sent.operation.method, sent.path, data=sent.body, headers=_JSON)
        assert answer.status_code != 500, sent.what


@pytest.mark.parametrize("operation", operations(), ids=str)
def test_no_request_blocks_the_event_loop(
    measured: tuple[Running, Blocks], operation: Operation
) -> None:
    server, blocks = measured
    who = server.as_worker("ann") if paths.is_of_workers(operation.path) else logged_in(server)
    too_long = {}
    for sent in requests_for(operation):
        blocks.longest_s = 0.0
        send(who, sent)
        if blocks.longest_s > BLOCK_S:
            too_long[sent.what] = (blocks.longest_s, blocks.of)
    assert not too_long
