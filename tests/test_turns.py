"""Users take turns at long work."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.errors import Unavailable
from server_stub.turns import Turns, finished
from tests.kit.examples import examples

T = TypeVar("T")
USERS = ["ann", "ben", "eve"]


def within_10_s(test: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(test, 10))


async def settle() -> None:
    """Let each task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Work:
    """A piece of work that waits for its turn, runs, and ends when it is told to."""

    def __init__(self, turns: Turns, user: str) -> None:
        self.user = user
        self.running = False
        self._end = asyncio.Event()
        self.task = asyncio.create_task(self._run(turns))

    async def _run(self, turns: Turns) -> None:
        async with turns.of(self.user):
            self.running = True
            try:
                await self._end.wait()
            finally:
                self.running = False

    async def end(self) -> None:
        self._end.set()
        await self.task


def test_the_work_of_one_user_leaves_room_for_others() -> None:
    async def test() -> None:
        turns = Turns("searches", at_once=2, of_user=1, waiting_of_user=8)
        ann = [Work(turns, "ann") for _ in range(4)]
        await settle()
        assert [work.running for work in ann] == [True, False, False, False]
        ben = Work(turns, "ben")
        await settle()
        assert ben.running
        await ben.end()
        for work in ann:
            assert work.running
            await work.end()
            await settle()

    within_10_s(test())


def test_users_who_wait_are_served_in_turn() -> None:
    async def test() -> None:
        turns = Turns("searches", at_once=1, of_user=1, waiting_of_user=8)
        first = Work(turns, "eve")
        await settle()
        waiting = [Work(turns, user) for user in ("ann", "ann", "ben", "ann", "ben")]
        await settle()
        await first.end()
        served = []
        while waiting:
            await settle()
            [now] = [work for work in waiting if work.running]
            served.append(now.user)
            waiting.remove(now)
            await now.end()
        assert served == ["ann", "ben", "ann", "ben", "ann"]

    within_10_s(test())


def test_too_much_work_of_one_user_is_refused_at_once() -> None:
    async def test() -> None:
        turns = Turns("searches", at_once=1, of_user=1, waiting_of_user=2)
        works = [Work(turns, "ann") for _ in range(3)]
        await settle()
        with pytest.raises(Unavailable, match="2 searches of ann wait already"):
            async with turns.of("ann"):
                pass
        for work in works:
            await work.end()

    within_10_s(test())


def test_a_turn_lasts_as_long_as_the_thread_of_its_work() -> None:
    async def test() -> None:
        turns = Turns("reads", at_once=2, of_user=1, waiting_of_user=8)
        goes_on = threading.Event()
        threads = ThreadPoolExecutor(2)

        async def read() -> bool:
            async with turns.of("ann"):
                return await finished(threads.submit(goes_on.wait, 10))

        first = asyncio.create_task(read())
        await settle()
        first.cancel()
        second = Work(turns, "ann")
        await settle()
        assert not first.done()
        assert not second.running
        goes_on.set()
        await asyncio.wait({first})
        assert first.cancelled()
        await settle()
        await second.end()
        threads.shutdown()

    within_10_s(test())


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["begin", "end", "cancel"]), st.integers(0, 9)), max_size=40
    ),
    st.integers(1, 3),
    st.integers(1, 2),
)
def test_no_turn_is_lost_and_none_is_given_twice(
    steps: list[tuple[str, int]], at_once: int, of_user: int
) -> None:
    async def test() -> None:
        turns = Turns("searches", at_once=at_once, of_user=of_user, waiting_of_user=99)
        works: list[Work] = []
        for step, number in steps:
            if step == "begin":
                works.append(Work(turns, USERS[number % len(USERS)]))
            elif works:
                work = works.pop(number % len(works))
                if step == "cancel" or not work.running:
                    work.task.cancel()
                    with suppress(asyncio.CancelledError):
                        await work.task
                else:
                    await work.end()
            if number % 2:
                await settle()
        await settle()
        running = Counter(work.user for work in works if work.running)
        assert running.total() <= at_once
        assert max(running.values(), default=0) <= of_user
        if running.total() < at_once:
            waiting = {work.user for work in works if not work.running}
            assert all(running[user] == of_user for user in waiting)
        while works:
            await settle()
            ended = [work for work in works if work.running]
            assert ended
            for work in ended:
                works.remove(work)
                await work.end()

    within_10_s(test())
