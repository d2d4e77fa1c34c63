"""Work that ends early: its reader leaves, or sends what no reader may send."""

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from client_lib.errors import TooLarge
from server_stub.http.waiting import while_connected


class Work:
    """Work that never ends by itself."""

    def __init__(self) -> None:
        self.cancelled = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True


async def leave() -> Message:
    return {"type": "http.disconnect"}


async def exceed_a_bound() -> Message:
    raise TooLarge("the request body is larger than 1 byte")


@pytest.mark.parametrize(
    ("receive", "error"), [(leave, ClientDisconnect), (exceed_a_bound, TooLarge)]
)
def test_the_work_ends_with_the_error_of_its_reader(
    receive: Receive, error: type[Exception]
) -> None:
    async def test() -> None:
        work = Work()
        with pytest.raises(error):
            await while_connected(Request({"type": "http"}, receive), work.run())
        assert work.cancelled

    asyncio.run(asyncio.wait_for(test(), 10))


def test_a_body_changes_nothing() -> None:
    received = iter([{"type": "http.request", "body": b"x", "more_body": False}])

    async def receive() -> Message:
        for message in received:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    async def test() -> str:
        return await while_connected(Request({"type": "http"}, receive), work())

    assert asyncio.run(asyncio.wait_for(test(), 10)) == "done"
