"""The message about the place of a job in a queue of Kueue, from the API's own objects;
the error of its estimate.
"""

import asyncio
import random
import time
from dataclasses import replace
from heapq import heapify, heapreplace
from statistics import median
from typing import Any, cast

import pytest

from server_stub.runtimes.kube import queues
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.inventory import Inventory, Workload
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.queues import LocalQueue, describe, parse, wait_s
from tests.kit.bounds import Bounds

LOCAL: dict[str, Any] = {
    "metadata": {"name": "team-a"},
    "spec": {"clusterQueue": "shared"},
    "status": {
        "conditions": [
            {"type": "Active", "status": "True", "reason": "Ready", "message": "Can submit"}
        ]
    },
}
RESOURCES = [{"name": "cpu", "nominalQuota": "64"}, {"name": "nvidia.com/gpu", "nominalQuota": "8"}]
CLUSTER: dict[str, Any] = {
    "spec": {
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "nvidia.com/gpu"],
                "flavors": [
                    {"name": "a", "resources": RESOURCES},
                    {"name": "b", "resources": RESOURCES[:1]},
                ],
            }
        ]
    },
    "status": {
        "flavorsReservation": [
            {
                "name": "a",
                "resources": [
                    {"name": "cpu", "total": "500m"},
                    {"name": "nvidia.com/gpu", "total": "4"},
                ],
            },
            {"name": "b", "resources": [{"name": "cpu", "total": "1"}]},
        ]
    },
}
PENDING: dict[str, Any] = {
    "items": [{"metadata": {"ownerReferences": [{"uid": f"job-{n}"}]}} for n in range(7)]
}


def test_a_waiting_job_says_its_place_the_quota_and_the_time() -> None:
    queue = parse("team-a", LOCAL, CLUSTER, PENDING)
    assert describe(queue, "job-2", gpus=True, left_s=700.0) == (
        "3rd of 7 in queue team-a; 4 of 8 GPUs of the quota are in use; about 12 min"
    )
    assert describe(queue, "job-0", gpus=False, left_s=None) == (
        "1st of 7 in queue team-a; 1.5 of 128 cores of the quota are in use"
    )


def test_what_the_server_may_not_see_is_left_out() -> None:
    queue = parse("team-a", LOCAL, None, PENDING)
    assert describe(queue, "job-6", gpus=True, left_s=None) == "7th of 7 in queue team-a"
    unseen = parse("team-a", LOCAL, None, None)
    assert describe(unseen, "job-6", gpus=True, left_s=None) == "waits for queue team-a"


@pytest.mark.parametrize("stopped", ["local", "cluster"])
def test_a_queue_that_is_not_active_says_why(stopped: str) -> None:
    inactive = {
        "status": {
            "conditions": [{"type": "Active", "status": "False", "message": "it is stopped"}]
        }
    }
    local, cluster = (
        ({**LOCAL, **inactive}, CLUSTER) if stopped == "local" else (LOCAL, {**CLUSTER, **inactive})
    )
    queue = parse("team-a", local, cluster, PENDING)
    assert (
        describe(queue, "job-2", gpus=True, left_s=1.0)
        == "queue team-a lets no job start: it is stopped"
    )
    assert describe(replace(queue, problem=""), "job-2", gpus=True, left_s=None).startswith(
        "3rd of 7"
    )


def test_nothing_is_estimated_where_nothing_is_known() -> None:
    assert wait_s(2, ages_s=[10.0], earlier_s=[]) is None
    assert wait_s(2, ages_s=[], earlier_s=[60.0]) is None


@pytest.mark.parametrize(
    ("ahead", "ages_s", "expected"),
    [
        (0, [10.0, 40.0], 20.0),  # when the older of two jobs that take 60 s ends
        (1, [10.0, 40.0], 50.0),
        (2, [10.0, 40.0], 80.0),  # after the first of the queue, which began at 20
        (0, [100.0], 60.0),  # it runs longer than any before: nothing is known of its end
    ],
)
def test_each_job_that_ends_lets_the_next_one_start(
    ahead: int, ages_s: list[float], expected: float
) -> None:
    assert wait_s(ahead, ages_s, earlier_s=[60.0, 60.0]) == expected


def test_the_estimate_is_wrong_by_less_than_half_for_most_jobs() -> None:
    """Queues of jobs whose lengths differ by a factor of 5 on average,
    after 20 of them have ended.
    """
    chance = random.Random(1)
    errors = []
    for _ in range(400):
        lengths = [chance.lognormvariate(6.0, 0.8) for _ in range(20 + 4 + 10)]
        earlier, running, waiting = lengths[:20], lengths[20:24], lengths[24:]
        ages = [length * chance.random() for length in running]
        ends, ahead = (
            [length - age for length, age in zip(running, ages, strict=True)],
            chance.randrange(10),
        )
        heapify(ends)
        for length in waiting[:ahead]:
            heapreplace(ends, ends[0] + length)
        estimated = wait_s(ahead, ages, earlier)
        assert estimated is not None
        errors.append(abs(estimated - ends[0]) / ends[0])
    assert median(errors) < 0.5


def test_a_queue_that_nobody_knows_of_has_a_name() -> None:
    assert describe(LocalQueue("team", "there is none"), "x", gpus=False, left_s=None) == (
        "queue team lets no job start: there is none"
    )


WAITING = Workload(
    kind=PYTORCHJOB,
    key=AttemptKey("id", 1),
    name="train",
    uid="uid",
    created_at="",
    queue="team-a",
    suspended=True,
)


@pytest.mark.parametrize("spec", [{}, {"spec": {}}, {"spec": {"stopPolicy": "None"}}])
def test_a_queue_without_a_cluster_queue_says_what_kueue_says(spec: dict[str, Any]) -> None:
    condition = {"type": "Active", "status": "False", "message": "it has no ClusterQueue"}

    class OneQueue:
        def get(self, path: str) -> Any:
            if path.endswith("/localqueues/team-a"):
                return {
                    **spec,
                    "metadata": {"name": "team-a"},
                    "status": {"conditions": [condition]},
                }
            raise ApiError(404, "not found")

    async def look() -> str:
        return await queues.Queues(cast(Any, OneQueue()), "jobs", Inventory()).place(
            WAITING, gpus=False
        )

    assert asyncio.run(look()) == "queue team-a lets no job start: it has no ClusterQueue"


def test_gangs_that_have_waited_for_one_slow_answer_all_take_it(
    bounds: Bounds,
) -> None:
    asked: list[str] = []

    class SlowApi:
        def get(self, path: str) -> Any:
            asked.append(path)
            time.sleep(0.2)
            raise ApiError(503, "not now")

    async def look() -> None:
        found = queues.Queues(SlowApi(), "jobs", Inventory())  # type: ignore[arg-type]
        await asyncio.gather(*(found.place(WAITING, gpus=False) for _ in range(5)))

    bounds(queues, LOOK_S=0.15)
    asyncio.run(look())
    assert len(asked) == 1
