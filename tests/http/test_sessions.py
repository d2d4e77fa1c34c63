"""Sessions over HTTP: the users who may enter a job, and the jobs that can be entered."""

import asyncio
import io
import os
import select
import socket
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import requests

from client_lib.cli.commands.sessions import Session
from client_lib.launcher_protocol.frames import BLOCK, EXITED, Frames, json_frame
from client_lib.spec import paths
from client_lib.transport.config import Config, Endpoint
from client_lib.transport.http_client import connect
from client_lib.transport.rest import Rest
from tests.http.conftest import DEADLINE_S, Api, Running
from tests.http.test_stacks import runs
from tests.kit.bounds import Bounds

SESSION = paths.job_session("train", "0" * 32)


def refused(user: Api, owner: str | None = None, **request: Any) -> tuple[int, str, str]:
    answer = user("POST", SESSION, json=request, params={"owner": owner} if owner else {})
    return answer.status_code, answer.json()["code"], answer.json()["message"]


def test_the_owner_and_admins_may_enter(server: Running, ann: Api, ben: Api, root: Api) -> None:
    runs(server, ann)
    for user, owner in ((ann, None), (root, "ann")):  # the runtime of this test has no workers
        assert refused(user, owner) == (
            409,
            "conflict",
            "worker 0 of job train can't be entered: nothing is real here",
        )
    assert refused(ben)[:2] == refused(ben, "ann")[:2] == (404, "not_found")


def test_no_other_user_may_where_the_server_shares_jobs(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(share_jobs=True)
    runs(server, server.as_user("ann"))
    assert refused(server.as_user("ben"), "ann")[:2] == (403, "forbidden")


def test_a_server_may_forbid_it(start_server: Callable[..., Running]) -> None:
    server = start_server(sessions=False)
    runs(server, server.as_user("ann"))
    assert refused(server.as_user("ann"))[:2] == (422, "not_supported")


def test_a_job_that_does_not_run(ann: Api) -> None:
    ann.submit(name="train")
    assert (
        refused(ann)[2] == "job train is PENDING: only the workers of a running job can be entered"
    )


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"rank": 0, "worker": 0}, "give a rank or a worker, not both"),
        ({"argv": ["x" * 40_000]}, "longer than 32768 characters"),
        ({"port": 0}, "port=0"),
        ({"argvv": []}, "argvv"),
    ],
)
def test_a_wrong_request(server: Running, ann: Api, request_: dict[str, Any], why: str) -> None:
    runs(server, ann)
    status, code, message = refused(ann, **request_)
    assert (status, code) == (422, "invalid_request")
    assert why in message
    assert "no JSON object" not in message


def test_bytes_for_a_session_that_is_not_there(ann: Api) -> None:
    answer = ann("PUT", SESSION, params={"offset": 0}, data=b"x")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


# --- sessions whose workers' ends the test has


class Workers:
    """The workers' ends of all sessions that a server has begun."""

    def __init__(self, server: Running) -> None:
        self.ends: list[socket.socket] = []
        self.may_answer = asyncio.Event()
        server.runtime.begin_session = self._begin  # type: ignore[method-assign]
        self._server = server

    async def _begin(self, job_id: str, attempt: int, request: Mapping[str, Any]) -> socket.socket:
        ours, workers = socket.socketpair()
        self.ends.append(workers)
        await self.may_answer.wait()
        return ours

    def answer(self) -> None:
        self._server.call(self.may_answer.set)


@pytest.fixture
def workers(server: Running, ann: Api) -> Iterator[Workers]:
    runs(server, ann)
    found = Workers(server)
    yield found
    for end in found.ends:
        end.close()


def begun(user: Api, session: str) -> requests.Response:
    return user(
        "POST", paths.job_session("train", session * 32), json={"argv": ["cat"]}, stream=True
    )


def is_closed(end: socket.socket) -> bool:
    """True if the other end is closed soon; reads no byte."""
    poll = select.poll()
    poll.register(end, 0)
    return bool(poll.poll(DEADLINE_S * 1000))


def all_begun(workers: Workers, user: Api, *sessions: str) -> list[requests.Response]:
    """The answers to requests that come at the same time; the refused one first."""
    with ThreadPoolExecutor() as pool:
        running = {pool.submit(begun, Api(user.url, user.token), session) for session in sessions}
        while len(workers.ends) + sum(each.done() for each in running) < len(sessions):
            pass
        workers.answer()
        return sorted((each.result() for each in running), key=lambda answer: -answer.status_code)


def test_requests_at_the_same_time_keep_to_the_limit(
    workers: Workers, ann: Api, bounds: Bounds
) -> None:
    bounds("server_stub.service.sessions", OPEN_MAX=2)
    refused, *others = all_begun(workers, ann, "1", "2", "3")
    assert (refused.status_code, refused.json()["message"]) == (
        409,
        "ann has 2 open sessions, the limit",
    )
    assert [each.status_code for each in others] == [200, 200]
    for each in others:
        each.close()
    assert all(map(is_closed, workers.ends))
    assert begun(ann, "4").status_code == 200


def test_requests_at_the_same_time_with_one_id(workers: Workers, ann: Api) -> None:
    refused, other = all_begun(workers, ann, "1", "1")
    assert (refused.status_code, refused.json()["message"]) == (
        409,
        f"session {'1' * 32} exists already",
    )
    (end,) = workers.ends
    end.sendall(b"output")
    assert next(other.iter_content(6)) == b"output"


def test_a_user_who_leaves_with_unsent_input(workers: Workers, ann: Api, bounds: Bounds) -> None:
    bounds("server_stub.worker_gateway.sessions", ROOM_S=0.1)
    workers.answer()
    put = partial(ann, "PUT", SESSION, data=bytes(2**20))
    with begun(ann, "0"):
        assert put(params={"offset": 0}).json()["code"] == "unavailable"
        assert put(params={"offset": 0}).json()["code"] == "unavailable"
    assert is_closed(*workers.ends)


def test_the_server_keeps_little_of_input_that_nobody_reads(
    server: Running, workers: Workers, ann: Api, bounds: Bounds
) -> None:
    bounds("server_stub.worker_gateway.sessions", ROOM_S=1.0)
    workers.answer()
    sessions = [f"{number:x}" for number in range(16)]
    answers = [begun(Api(ann.url, ann.token), session) for session in sessions]
    body = b"," * 2**24

    def put(session: str) -> requests.Response:
        path = paths.job_session("train", session * 32)
        return Api(ann.url, ann.token)("PUT", path, params={"offset": 0}, data=body)

    tracemalloc.start()
    with ThreadPoolExecutor(len(sessions)) as pool:
        codes = [answer.json()["code"] for answer in pool.map(put, sessions)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(codes) == {"unavailable"}
    assert not server.call(lambda: server.parts.bodies.taken)
    assert most < len(sessions) * 2**20
    for answer in answers:
        answer.close()


def test_a_user_who_leaves_before_the_session_begins(
    server: Running, workers: Workers, ann: Api
) -> None:
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as user:  # type: ignore[arg-type]
        user.sendall(
            f"POST {SESSION} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.token}\r\n".encode()
            + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
        while not workers.ends:
            pass
    workers.answer()
    assert is_closed(*workers.ends)
    assert begun(ann, "0").status_code == 200


def test_input_waits_for_a_command_that_reads_late(
    server: Running, workers: Workers, ann: Api, bounds: Bounds
) -> None:
    bounds("server_stub.worker_gateway.sessions", ROOM_S=0.1)
    workers.answer()
    endpoint, config = Endpoint(ann.url, ann.token), Config(ann.url, retry_s=0.0)
    session, sent = (
        Session(Rest(lambda: endpoint, config, connect), "train", {"argv": ["cat"]}),
        os.urandom(2**22),
    )
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(session.run, print)
        pool.submit(session.send_all_of, io.BytesIO(sent).read)
        while not any(line["status"] == 503 for line in server.log_lines()):
            pass
        (end,), frames, received = workers.ends, Frames(), b""
        while len(received) < len(sent):
            received += b"".join(data for _, data in frames.feed(end.recv(BLOCK)))
        end.sendall(json_frame(EXITED, {"exit_code": 3}))
        assert (received == sent, ended.result(DEADLINE_S)) == (True, 3)
