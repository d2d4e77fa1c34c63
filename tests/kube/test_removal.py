"""How many attempts that have ended are removed at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server_stub.runtimes.kube.cluster import REMOVALS_AT_ONCE, Cluster
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.objects import ObjectRemoval
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from tests.kube.cases import CLUSTER
from tests.waiting import eventually


@pytest.mark.anyio
async def test_a_few_have_their_turn_and_the_others_follow() -> None:
    deleted, unused = list[int](), cast(Any, None)
    usual = Cluster.of(unused, CLUSTER, unused)

    async def remove(number: int) -> None:
        def delete(name: str, uid: str, **_: Any) -> None:
            deleted.append(number)

        objects: Any = SimpleNamespace(kind=PYTORCHJOB, delete_workload=delete)
        key, changed = AttemptKey(str(number), 1), asyncio.Event()
        usual.inventory.follow(key, changed.set)
        cluster = replace(usual, objects=objects)
        await ObjectRemoval(key, cluster, changed, "train", "uid").after_end(lambda: ())

    tasks = [asyncio.create_task(remove(number)) for number in range(2 * REMOVALS_AT_ONCE)]
    await eventually(lambda: len(deleted) >= REMOVALS_AT_ONCE)
    await asyncio.sleep(0.5)  # time for more, of which there must be none
    assert sorted(deleted) == list(range(REMOVALS_AT_ONCE))
    usual.inventory.list_workloads(PYTORCHJOB.name, ())  # none is there any more
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    assert sorted(deleted) == list(range(2 * REMOVALS_AT_ONCE))
