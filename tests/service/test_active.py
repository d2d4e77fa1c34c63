"""Who waits for a change of a job hears of the next one, whenever it comes."""

import asyncio

import pytest

from client_lib.spec.states import State
from client_lib.spec.wire import StateChange
from server_stub.service.active import ActiveJobs

pytestmark = pytest.mark.anyio


async def test_a_change_right_after_the_look_is_not_missed() -> None:
    """`wait_for` may begin to run what it waits for a turn of the loop
    later, when the change is over.
    """
    jobs = ActiveJobs()
    change = jobs.next_change("job")
    jobs.publish("job")
    await asyncio.wait_for(change, 1)


async def test_only_those_who_wait_for_this_job_are_woken_and_nobody_is_kept() -> None:
    jobs = ActiveJobs()
    one, two, other = jobs.next_change("one"), jobs.next_change("one"), jobs.next_change("other")
    jobs.publish("one")
    await asyncio.gather(one, two)
    assert not other.done()
    jobs.publish("other")
    assert jobs._changes == {}


async def test_changes_of_states_are_kept_from_a_cursor_on_and_their_loss_is_told() -> None:
    jobs = ActiveJobs()
    begin = jobs.cursor
    assert jobs.changes_since(begin) == []
    woken = jobs.next_change()
    entries = [
        ("ann", StateChange(id=str(number), state=State.RUNNING)) for number in range(10_000)
    ]
    for entry in entries:
        jobs.publish_state(*entry)
    await asyncio.wait_for(woken, 1)
    assert jobs.changes_since(begin) == entries
    later = jobs.cursor
    jobs.publish_state("ben", StateChange(id="x", state=State.FAILED))
    assert jobs.changes_since(later) == [("ben", StateChange(id="x", state=State.FAILED))]
    for lost in (begin, ActiveJobs().cursor, "", "x-1", f"{later}0"):
        assert jobs.changes_since(lost) is None, lost
