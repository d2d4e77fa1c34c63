"""Requests of one user keep no other user waiting."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import requests

from client_lib.spec import paths
from server_stub.files.job_dirs import log_dir
from server_stub.http.limits import SMALL_BODY_BYTES
from server_stub.logs import search
from tests.http.conftest import DEADLINE_S, GANG, Api, Running
from tests.kit.bounds import Bounds
from tests.kit.loop_blocks import BLOCK_S, blocks_of_loops
from tests.kit.waiting import until
from tests.logs.support import LogWriter

WIDE = "[!-\U0010ffff]"
"""Without regard to case, `re` takes 10 ms to compile each of these."""
SLOW = {"in a row": "(?i)" + WIDE * 190, "alternatives": "(?i:" + "|".join([WIDE] * 160) + ")"}


@contextmanager
def others_are_answered(other: Api) -> Iterator[None]:
    """Fails if another user has no answers while the body runs, or would have to wait for long."""
    asked: list[bool] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            asked.append(other("GET", paths.READYZ).ok and other("GET", paths.JOBS).ok)
            ended.wait(0.02)

    asking = threading.Thread(target=ask)
    with blocks_of_loops() as blocks:
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()
    assert asked
    assert all(asked)
    assert blocks.longest_s < BLOCK_S, blocks.of


def at_once(count: int, call: Callable[[], requests.Response]) -> list[requests.Response]:
    """The answers of calls at the same time."""
    answers: list[requests.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(call())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == count
    return answers


@pytest.mark.parametrize("expression", SLOW.values(), ids=SLOW)
def test_an_expression_to_search_for_is_not_compiled_by_the_server(
    ann: Api, ben: Api, expression: str
) -> None:
    ann.submit(name="here")
    path = paths.job("here", "logs")
    with others_are_answered(ben):
        answers = at_once(
            3, lambda: Api(ann.url, ann.token)("GET", path, params={"grep": expression})
        )
    assert {answer.status_code for answer in answers} <= {200, 422, 503}
    assert ben("GET", path, params={"grep": expression}).status_code == 404


@pytest.mark.parametrize(
    "expression",
    ["(?i)(?P<loss>x)" + WIDE * 750, "(?P<loss>x)(?i:(" + ")|(".join([WIDE] * 480) + "))"],
    ids=["in a row", "groups"],
)
def test_an_expression_for_metrics_is_not_compiled_by_the_server(
    ann: Api, ben: Api, expression: str
) -> None:
    with others_are_answered(ben):
        answers = at_once(2, lambda: Api(ann.url, ann.token).submit(metrics=expression))
    for answer in answers:
        assert answer.status_code == 422
        assert "takes longer than 1 s to compile" in answer.json()["message"]
    assert ann("GET", paths.JOBS).json()["jobs"] == []


HOPELESS = "(a+)+N$"
"""Needs twice the time for each further `a`."""


@pytest.fixture
def searched(server: Running, ann: Api, ben: Api) -> str:
    """Both users have a job whose log keeps a search for HOPELESS busy. Returns the path of its
    logs."""
    for user in (ann, ben):
        job = user.submit(name="here").json()
        folder = server.parts.settings.data_dir / "jobs" / job["id"]
        LogWriter(log_dir(folder, 1, 0)).write("a" * 60)
    return paths.job("here", "logs")


def test_searches_of_one_user_leave_others_their_answers(
    ann: Api, ben: Api, searched: str, bounds: Bounds
) -> None:
    # a search that is given up late would make this test last as long
    bounds(search, LIMIT_S=4.0)
    answers: list[requests.Response] = []
    ask = partial(answer_into, answers, ann, searched)
    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) == 11)  # one search runs, 8 wait
    refused = answers[0]
    assert {answer.status_code for answer in answers} == {503}
    assert refused.headers["Retry-After"] == "1"
    assert "8 searches of ann wait already" in refused.json()["message"]
    began = time.monotonic()
    assert ben("GET", searched, params={"grep": "a"}).text == "[0] " + "a" * 60 + "\n"
    assert time.monotonic() - began < 2.0
    assert len(answers) == 11


def answer_into(answers: list[requests.Response], user: Api, path: str) -> None:
    """Search for HOPELESS. A server that ends at the end of the test gives no answer."""
    with suppress(requests.ConnectionError, requests.Timeout):
        answers.append(Api(user.url, user.token)("GET", path, params={"grep": HOPELESS}))


def test_a_search_ends_when_its_reader_leaves(ann: Api, searched: str) -> None:
    with pytest.raises(requests.ReadTimeout):
        ann.session.get(ann.url + searched, params={"grep": HOPELESS}, timeout=2)
    until(lambda: not searches(), "the search ends", 5.0)
    assert ann("GET", searched, params={"grep": "^a"}).status_code == 200


def searches() -> list[str]:
    """The command lines of the processes that search for the server of this process."""
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text())
    return [command for command in found if "logs.search" in command]


def test_a_body_of_very_many_unknown_fields_keeps_nobody_waiting(ann: Api, ben: Api) -> None:
    fields = ",".join(f'"k{number}":1' for number in range(1_000_000))
    body = f'{{"spec": {{"script": "echo", {fields}}}, "code": {{"mode": "in_place"}}}}'
    with others_are_answered(ben):
        answers = at_once(2, lambda: Api(ann.url, ann.token)("POST", paths.JOBS, data=body))
    for answer in answers:
        assert answer.status_code == 413
        assert "more than 200000 commas and brackets" in answer.json()["message"]


@pytest.mark.parametrize("what", ["state", "report", "stacks"])
def test_the_bound_of_entries_holds_for_workers_too(ben: Api, server: Running, what: str) -> None:
    worker = server.as_worker("ann")
    path = f"{paths.worker('train', 1, 0)}/{what}"
    with others_are_answered(ben):
        answer = worker("PUT", path, data=b"[" + b"[]," * 1_000_000 + b"[]]")
    assert answer.status_code == 413
    assert "more than 200000 commas and brackets" in answer.json()["message"]


@pytest.mark.parametrize("what", ["log?offset=5", f"outputs/a%0Ab?size=9&sha256={'0' * 64}"])
def test_bytes_of_workers_may_have_any_number_of_commas(server: Running, what: str) -> None:
    worker = server.as_worker("ann")
    answer = worker("PUT", f"{paths.worker('train', 1, 0)}/{what}", data=b"," * 300_000)
    assert answer.status_code != 413, answer.text


def test_no_worker_of_a_gang_with_large_messages_is_refused(server: Running) -> None:
    text = json.dumps({"mark": "m", "processes": [{"dump": "x" * 2 * SMALL_BODY_BYTES}]})
    gang = [server.as_worker("ann", number) for number in range(GANG)]

    def send(number: int) -> requests.Response:
        path = f"{paths.worker('train', 1, number)}/stacks"
        return gang[number]("PUT", path, data=text)

    with ThreadPoolExecutor(GANG) as pool:
        answers = [answer.status_code for answer in pool.map(send, range(GANG))]
    assert answers == [200] * GANG


def test_large_messages_of_other_jobs_keep_no_worker_waiting(server: Running) -> None:
    turns = server.parts.large_requests

    async def begin() -> None:
        await turns.of("the jobs of ann").__aenter__()

    asyncio.run_coroutine_threadsafe(begin(), server._loop).result(DEADLINE_S)
    worker = server.as_worker("ben")
    text = json.dumps({"mark": "m", "processes": [{"dump": "x" * 2 * SMALL_BODY_BYTES}]})
    assert worker("PUT", f"{paths.worker('train', 1, 0)}/stacks", data=text).ok


def test_a_large_request_whose_client_has_left_is_not_handled(server: Running, ann: Api) -> None:
    turn = server.parts.large_requests.of("ann")
    on_loop = partial(asyncio.run_coroutine_threadsafe, loop=server._loop)
    on_loop(turn.__aenter__()).result(DEADLINE_S)
    request = json.dumps(
        {
            "spec": {"script": "echo", "type": "binary"},
            "code": {"mode": "in_place"},
            "submitter": {"environment": {"A": "x" * 2 * SMALL_BODY_BYTES}},
        }
    )
    with pytest.raises(requests.ReadTimeout):
        ann.session.post(ann.url + paths.JOBS, data=request, timeout=0.5)
    until(lambda: server.parts.bodies.taken["ann"] > 0)
    on_loop(turn.__aexit__(None, None, None)).result(DEADLINE_S)
    until(lambda: [line["status"] for line in server.log_lines()] == [499])
    assert ann("GET", paths.JOBS).json()["jobs"] == []


@pytest.mark.parametrize("path", ["/public/v2/service_auth", paths.PING, "/login"])
def test_the_body_of_a_stranger_is_small(ben: Api, path: str) -> None:
    stranger = Api(ben.url, None)
    stranger("POST", path)  # a server loads some modules with the first request that needs them
    with others_are_answered(ben):
        answer = stranger("POST", path, data=b"x" * 5000)
    assert answer.status_code == 413
    assert "4096 bytes" in answer.text
