"""How many attempts that have ended are removed at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.inventory import Inventory
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.removal import AT_ONCE, ObjectRemoval, RemovalQueue
from tests.waiting import eventually


@pytest.mark.anyio
async def test_a_few_have_their_turn_and_the_others_follow() -> None:
    queue, inventory, deleted = RemovalQueue(), Inventory(), list[int]()

    async def remove(number: int) -> None:
        def delete(name: str, uid: str, **_: Any) -> None:
            deleted.append(number)

        objects: Any = SimpleNamespace(kind=PYTORCHJOB, delete_workload=delete)
        key, changed = AttemptKey(str(number), 1), asyncio.Event()
        inventory.follow(key, changed.set)
        await ObjectRemoval(key, objects, inventory, changed).after_end("train", "uid", queue, lambda: ())

    tasks = [asyncio.create_task(remove(number)) for number in range(2 * AT_ONCE)]
    await eventually(lambda: len(deleted) >= AT_ONCE)
    await asyncio.sleep(0.5)  # time for more, of which there must be none
    assert sorted(deleted) == list(range(AT_ONCE))
    inventory.list_workloads(PYTORCHJOB.name, ())  # none is there any more
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert sorted(deleted) == list(range(2 * AT_ONCE))
