"""How many attempts that have ended are removed at once, and which are on their way out."""

from __future__ import annotations

import asyncio

import pytest

from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.removal import AT_ONCE, RemovalQueue

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_few_have_their_turn_and_the_others_follow_in_order() -> None:
    removals, begun, gone = RemovalQueue(), list[int](), asyncio.Event()

    async def remove(number: int) -> None:
        async with removals.turn():
            begun.append(number)
            await gone.wait()

    tasks = [asyncio.create_task(remove(number)) for number in range(2 * AT_ONCE)]
    await asyncio.sleep(0)
    assert begun == list(range(AT_ONCE))
    gone.set()
    await asyncio.gather(*tasks)
    assert begun == list(range(2 * AT_ONCE))


async def test_one_whose_removal_fails_gives_its_turn_away() -> None:
    removals = RemovalQueue()

    async def fail() -> None:
        async with removals.turn():
            raise OSError("disk")

    for _ in range(AT_ONCE + 1):
        with pytest.raises(OSError, match="disk"):
            await asyncio.wait_for(fail(), 5)


async def test_an_attempt_is_on_its_way_out_until_nothing_is_left_of_it() -> None:
    removals, key, other = RemovalQueue(), AttemptKey("0" * 32, 1), AttemptKey("0" * 32, 2)
    with removals.ended(key):
        assert key in removals
        assert other not in removals
    assert key not in removals
