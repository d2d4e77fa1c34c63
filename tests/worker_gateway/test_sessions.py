"""Sessions in workers whose agents are elsewhere: real agents, and what other ones may do."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop

from client_lib.errors import Conflict, NotFound
from client_lib.launcher_protocol.frames import BLOCK, DATA, ERRORS, EXITED, Frames, frame
from client_lib.spec import paths
from server_stub.worker_gateway import sessions
from server_stub.worker_gateway.sessions import SessionEnd, SessionOrders, worker_of
from tests.kit.bounds import Bounds
from tests.kit.processes import alive
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Site, Start
from tests.worker_gateway.site import ROOM_S

WAITS = "import time\ntime.sleep(600)\n"


def entered(
    server: Site, job: str, request: dict[str, Any], stdin: bytes = b""
) -> tuple[dict[bytes, bytes], Any]:
    """The outputs of a session, and how it ended."""
    path, frames = paths.job_session(job, "1" * 32), Frames()
    shown = {DATA: b"", ERRORS: b""}
    with server.call("POST", path, json=request, stream=True) as answer:
        assert answer.status_code == 200, answer.text
        sent = frame(DATA, stdin) + frame(DATA)
        for _ in range(2):  # a repeated request changes nothing
            server.call("PUT", path, data=sent, params={"offset": 0})
        for block in answer.iter_content(None):
            for kind, data in frames.feed(block):
                if kind == EXITED:
                    return shown, json.loads(data)
                shown[kind] = shown.get(kind, b"") + data
    raise AssertionError(f"the session was cut off after {shown}")


@pytest.mark.process
def test_a_command_in_each_worker(site: Start) -> None:
    server = site()
    server.accepted("gang", WAITS, n_workers=2)
    server.running("gang")
    for rank in (0, 1):
        line = ["sh", "-c", "echo $RANK; cat; echo wrong >&2; exit 7"]
        shown, ended = entered(server, "gang", {"argv": line, "rank": rank}, b"stdin")
        assert (shown[DATA], shown[ERRORS], ended) == (
            b"%d\nstdin" % rank,
            b"wrong\n",
            {"exit_code": 7},
        )


@pytest.mark.process
def test_a_user_who_reads_late_gets_all(site: Start) -> None:
    server = site()
    server.accepted("one", WAITS)
    server.running("one")
    path, frames, received, ended = paths.job_session("one", "1" * 32), Frames(), 0, None
    with server.call(
        "POST", path, json={"argv": ["head", "-c", "20000000", "/dev/zero"]}, stream=True
    ) as answer:
        time.sleep(3 * ROOM_S)
        for block in answer.iter_content(None):
            for kind, data in frames.feed(block):
                received += len(data) if kind == DATA else 0
                ended = json.loads(data) if kind == EXITED else ended
    assert (received, ended) == (20_000_000, {"exit_code": 0})


@pytest.mark.process
def test_a_command_ends_with_its_user_who_left_unsent_input(site: Start) -> None:
    server = site()
    server.accepted("one", WAITS)
    server.running("one")
    path, line = (
        paths.job_session("one", "1" * 32),
        ["sh", "-c", "echo $$; while sleep 0.1; do echo; done"],
    )
    with server.call("POST", path, json={"argv": line}, stream=True) as answer:
        (first,) = Frames().feed(next(answer.iter_content(None)))
        sent, data = 0, frame(DATA, bytes(2**20))
        while server.call("PUT", path, data=data, params={"offset": sent}).status_code == 200:
            sent += len(data)
    until(lambda: not alive(int(first[1])), "the command has ended")


def test_the_worker_of_a_request() -> None:
    assert worker_of({"rank": None, "worker": None}, 2, 4) == 0
    assert worker_of({"rank": 5, "worker": None}, 2, 4) == 1
    assert worker_of({"rank": None, "worker": 1}, 2, 4) == 1
    with pytest.raises(NotFound, match="no rank 8"):
        worker_of({"rank": 8, "worker": None}, 2, 4)
    with pytest.raises(NotFound, match="no worker 2"):
        worker_of({"rank": None, "worker": 2}, 2, 4)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_bytes_that_come_again_are_dropped_and_a_gap_is_refused(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def send() -> None:
        end = await SessionEnd.of(pair[0])
        for offset, data in ((0, b"abc"), (0, b"abc"), (1, b"bcde"), (5, b"f")):
            await end.take(offset, data)
        with pytest.raises(Conflict, match="has 6 bytes"):
            await end.take(7, b"h")
        await end.take(6, b"")

    asyncio.run(send())
    assert pair[1].recv(BLOCK) == b"abcdef"
    assert pair[1].recv(BLOCK) == b""


def test_an_end_that_is_closed_already_has_no_bytes(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    async def content() -> list[bytes]:
        end = await SessionEnd.of(pair[0])
        return [data async for data in end.content()]

    pair[1].close()
    assert uvloop.run(content()) == []  # it notes the end sooner than asyncio's loop


def test_an_order_that_nobody_takes_up(bounds: Bounds) -> None:
    bounds(sessions, LIMIT_S=0.05)

    async def order() -> None:
        orders = SessionOrders(lambda: None)
        with pytest.raises(Conflict, match="did not answer within"):
            await orders.begin({"argv": ["true"]})
        mark = orders.next()
        assert mark is not None
        assert orders.next() is None
        with pytest.raises(NotFound):
            orders.end(mark)

    asyncio.run(order())


def test_an_order_whose_caller_goes_away_is_forgotten() -> None:
    async def order() -> None:
        begun = asyncio.Event()
        orders = SessionOrders(begun.set)
        caller = asyncio.create_task(orders.begin({"argv": ["true"]}))
        await begun.wait()
        mark = orders.next()
        assert mark is not None
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(NotFound):
            orders.end(mark)

    asyncio.run(order())


def test_a_request_that_no_buffer_of_a_socket_takes_is_passed_on() -> None:
    request = {"argv": ["\N{FIRE}" * 2**15], "rank": 0}

    async def received() -> bytes:
        begun = asyncio.Event()
        orders = SessionOrders(begun.set)
        caller = asyncio.create_task(orders.begin(request))
        await begun.wait()
        mark = orders.next()
        assert mark is not None
        taken = bytearray()
        async for data in orders.to_worker(mark):
            taken += data
            if taken.endswith(b"\n"):
                (await caller).sendall(b"keys")
            if taken.endswith(b"keys"):
                (await caller).close()
        return bytes(taken)

    line, _, keys = asyncio.run(received()).partition(b"\n")
    assert (json.loads(line), keys) == (request, b"keys")
