"""Waiting for an event that may be set at the moment at which the waiting task is cancelled."""

import asyncio

import pytest

from server_stub.runtimes.tasks import is_set_within

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_that_comes_with_the_event_is_not_lost(turns: int) -> None:
    """`turns` of the event loop after the event."""
    event = asyncio.Event()
    waits = asyncio.create_task(is_set_within(event, 30.0))
    await asyncio.sleep(0.01)
    event.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    was_waiting = waits.cancel()
    [found] = await asyncio.gather(waits, return_exceptions=True)
    assert isinstance(found, asyncio.CancelledError) == was_waiting


async def test_an_event_is_waited_for_until_the_limit() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.01)
    assert not await is_set_within(event, -1.0)
    asyncio.get_running_loop().call_later(0.01, event.set)
    assert await is_set_within(event, 30.0)
    assert await is_set_within(event, 0.0)
