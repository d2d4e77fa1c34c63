"""Connections that send little or nothing are closed, and other clients still
get connections and memory.
"""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from client_lib.spec import paths
from tests.http.conftest import DEADLINE_S, Running
from tests.kit.bounds import Bounds
from tests.kit.waiting import until

SOON_S = 0.3
LARGE = 100_000


@pytest.fixture
def impatient(start_server: Callable[..., Running], bounds: Bounds) -> Running:
    bounds("server_stub.http.limits", HEAD_S=SOON_S, BODY_S=SOON_S, UNREAD_S=SOON_S)
    return start_server()


@pytest.fixture
def narrow(start_server: Callable[..., Running], bounds: Bounds) -> Running:
    """Room for three bodies of LARGE bytes, of which each sender may have two."""
    bounds("server_stub.http.limits", BODIES_MAX_BYTES=3 * LARGE, SENDERS_BODIES_BYTES=2 * LARGE)
    return start_server()


@pytest.fixture
def few(start_server: Callable[..., Running], bounds: Bounds) -> Running:
    bounds("server_stub.http.limits", STRANGERS_MAX=3)
    return start_server()


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def rest(connection: socket.socket) -> bytes:
    """Return all bytes that the server sends until it closes the connection."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionError:
        pass
    return found


def trickle(connection: socket.socket, data: bytes) -> bytes:
    """Send a byte now and then; the answer once the server closes."""
    connection.settimeout(SOON_S / 10)
    deadline, found = time.monotonic() + DEADLINE_S, b""
    for number in range(10**9):
        assert time.monotonic() < deadline, "it listens for ever"
        try:
            connection.sendall(data[number % len(data) :][:1])
            received = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if not received:
            break
        found += received
    return found


def head(method: str, path: str, token: str | None, *lines: str) -> bytes:
    given = [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *given, *lines, "", ""]).encode()


# --- heads


def test_a_connection_that_sends_nothing_is_closed(impatient: Running) -> None:
    with connect(impatient) as connection:
        assert rest(connection) == b""


def test_a_head_that_comes_byte_by_byte_is_408(impatient: Running) -> None:
    with connect(impatient) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert b" 408 " in trickle(connection, b"x")


@pytest.mark.parametrize(
    "sent", [b"\r\n", b"GET /healthz HTTP/1.1\r\nX: xxxxxxxxxx"], ids=["line ends", "head"]
)
def test_after_a_response_it_is_timed_again(sent: bytes, impatient: Running) -> None:
    with connect(impatient) as connection:
        connection.sendall(head("GET", paths.HEALTHZ, None))
        assert b" 200 " in connection.recv(65536)
        trickle(connection, sent)


def test_a_body_that_nobody_reads_is_timed_too(impatient: Running) -> None:
    with connect(impatient) as connection:
        connection.sendall(head("POST", paths.JOBS, "wrong", "Content-Length: 1000000"))
        assert b" 401 " in trickle(connection, b"x")


def test_a_request_in_progress_is_not_timed(impatient: Running) -> None:
    ann = impatient.as_user("ann")
    job = ann.submit().json()
    wait = {"wait": 5 * SOON_S, "after_version": 10**6}
    assert ann("GET", paths.job(job["name"]), params=wait).ok
    logs = f"{impatient.url}{paths.job(job['name'], 'logs')}?follow=true"
    with ann.session.get(logs, stream=True, timeout=DEADLINE_S) as followed:
        time.sleep(5 * SOON_S)
        impatient.call(impatient.parts.hub.close)
        assert followed.content == b""  # its end, and not a cut connection


@pytest.mark.parametrize("line", ["Connection: close", "Connection: keep-alive"])
def test_a_client_that_does_not_read_its_answer_is_left(line: str, impatient: Running) -> None:
    impatient.add_finished_jobs("ann", 200)
    connections = impatient._server.server_state.connections
    until(lambda: not connections)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = impatient.url.removeprefix("http://").split(":")
        client.connect((host, int(port)))
        until(lambda: connections)
        (connection,) = connections
        transport = connection.transport
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.sendall(head("GET", f"{paths.JOBS}?limit=200", impatient.tokens["ann"], line))
        until(lambda: not connections)
        assert len(rest(client)) < 50_000  # of 200 kB and more


# --- their number


def test_of_too_many_silent_connections_the_oldest_are_closed(
    few: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connect(few)) for _ in range(8)]
        for connection in silent[:5]:
            assert rest(connection) == b""
        for connection in silent[5:]:
            connection.sendall(head("GET", paths.HEALTHZ, None))
            assert b" 200 " in connection.recv(65536)
    assert caplog.text.count("connections are refused: 127.0.0.1 has 3 connections") == 1


SILENT = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nX: ",
    "no body": b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
    "a request before": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.mark.parametrize("sent", SILENT.values(), ids=SILENT)
def test_silent_connections_keep_no_request_out(few: Running, sent: bytes) -> None:
    ann = few.as_user("ann")
    assert ann("GET", paths.INFO).ok
    with ExitStack() as stack:
        for _ in range(30):
            silent = stack.enter_context(connect(few))
            silent.sendall(sent)
            assert few.anonymous()("GET", paths.HEALTHZ).ok
            assert few.as_user("ben")("GET", paths.INFO).ok
            assert ann("GET", paths.INFO).ok  # on its first connection


def test_connections_with_a_token_do_not_count(few: Running) -> None:
    users = [few.as_user(name) for name in 5 * ("ann", "ben")]
    for user in users:
        assert user("GET", paths.INFO).ok  # its connection stays
    with connect(few) as another:
        another.sendall(head("GET", paths.HEALTHZ, None))
        assert b" 200 " in another.recv(65536)


# --- bodies


@pytest.fixture
def begun(narrow: Running) -> Iterator[list[socket.socket]]:
    """Two large bodies that are not complete."""
    token = narrow.tokens["ann"]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(narrow)) for _ in range(2)]
        connections[0].sendall(head("POST", paths.JOBS, token, f"Content-Length: {LARGE}") + b" ")
        connections[1].sendall(head("POST", paths.JOBS, token, "Transfer-Encoding: chunked"))
        connections[1].sendall(f"{LARGE:x}\r\n".encode() + LARGE * b" " + b"\r\n")
        until(lambda: taken(narrow) == {"ann": 2 * LARGE})
        yield connections


@pytest.mark.parametrize("path", [paths.JOBS, "/public/v2/jobs"])
def test_unfinished_bodies_leave_a_bound_of_memory_and_others_their_share(
    path: str, narrow: Running, begun: list[socket.socket]
) -> None:
    ann = narrow.as_user("ann")
    answer = ann("POST", path, data=LARGE * b" ")
    assert answer.status_code == 503, answer.text
    assert "too many large requests of ann" in answer.text
    if path == paths.JOBS:
        assert (answer.json()["code"], answer.headers["Retry-After"]) == ("unavailable", "1")
    assert ann.submit().status_code == 201  # a small one
    assert narrow.as_user("ben")("POST", path, data=LARGE * b" ").status_code == 422
    with connect(narrow) as another:
        another.sendall(
            head("POST", path, narrow.tokens["root"], f"Content-Length: {LARGE}") + b" "
        )
        until(lambda: taken(narrow).total() == 3 * LARGE)
        answer = narrow.as_user("ben")("POST", path, data=LARGE * b" ")
        assert answer.status_code == 503
        assert "of ann" not in answer.text
        assert "of ben" not in answer.text
    for connection in begun:
        connection.close()
    until(lambda: ann("POST", path, data=LARGE * b" ").status_code != 503)
    assert ann("POST", path, data=LARGE * b" ").status_code == 422
    until(lambda: not taken(narrow))


def taken(server: Running) -> Counter[str]:
    """Bytes of bodies in the memory of the server, by sender."""
    return server.call(lambda: Counter(server.parts.bodies.taken))


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("how", ["Content-Length: 1000000", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_arrive_is_503(method: str, how: str, impatient: Running) -> None:
    path = paths.JOBS if method == "POST" else paths.snapshot("0" * 64)
    piece = b"1\r\nx\r\n" if "chunked" in how else b"x"
    with connect(impatient) as connection:
        connection.sendall(head(method, path, impatient.tokens["ann"], how))
        answer = trickle(connection, piece)
    assert b" 503 " in answer
    assert b"too slow" in answer
    assert b"retry-after: 1" in answer.lower()


def test_a_slow_body_that_goes_on_arrives(
    start_server: Callable[..., Running], bounds: Bounds
) -> None:
    """Each byte gives it more time: the first ones, which come with the head,
    ten seconds on any machine.
    """
    bounds("server_stub.http.limits", BODY_S=SOON_S, BODY_RATE=1000)
    server = start_server()
    with connect(server) as connection:
        request = head("POST", paths.JOBS, server.tokens["ann"], "Content-Length: 10003")
        connection.sendall(request + 10_000 * b" ")
        for _ in range(3):
            time.sleep(SOON_S / 2)
            connection.sendall(b" ")
        assert b" 422 " in connection.recv(65536)
