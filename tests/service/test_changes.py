"""Who waits for a change of a job hears of the next one, whenever it comes."""

from __future__ import annotations

import asyncio

import pytest

from server_stub.service.changes import Changes

pytestmark = pytest.mark.anyio


async def test_a_change_right_after_the_look_is_not_missed() -> None:
    """`wait_for` may begin to run what it waits for a turn of the loop later, when the change is over."""
    changes = Changes()
    change = changes.next("job")
    changes.publish("job")
    await asyncio.wait_for(change, 1)


async def test_only_those_who_wait_for_this_job_are_woken_and_nobody_is_kept() -> None:
    changes = Changes()
    one, two, other = changes.next("one"), changes.next("one"), changes.next("other")
    changes.publish("one")
    await asyncio.gather(one, two)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(other, 0.01)
    await asyncio.sleep(0)
    assert len(changes) == 0
    changes.publish("other")
