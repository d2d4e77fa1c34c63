"""Evictions of a job's pods while the server is away, as an upgrade of the nodes makes them."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_lib import Job
from client_lib.spec.states import State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, ended, prints
from tests.contract.test_faults import evict
from tests.contract.test_promises import STAY, texts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

FIRST_TIME = f"""
import os
if int(os.environ["CLIENT_LIB_ATTEMPT"]) > 1:
    raise SystemExit
{STAY}
"""


@pytest.fixture(params=["pytorchjob", "trainjob"])
def place(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path, cluster, f"evictions-{request.param}", kind=request.param)
    yield place
    assert_nothing_is_left(place)
    place.close()


def test_evictions_while_the_server_is_away_count_as_infrastructure(place: ClusterPlace) -> None:
    """Evict the first worker, the last, both; and both of a job without infrastructure retries."""
    evicted = {"first": [0], "last": [1], "both": [0, 1], "never": [0, 1]}
    limits = {"never": {"max_infrastructure_retry": 0}}
    jobs = {
        name: place.job(
            FIRST_TIME, name=name, n_workers=2, instance_type="tiny", **limits.get(name, {})
        )
        for name in evicted
    }
    for job in jobs.values():
        job.submit()
    for job in jobs.values():
        prints(job, "up", times=2)

    def drain() -> None:
        names = [
            pod_names(place, job)[worker] for name, job in jobs.items() for worker in evicted[name]
        ]
        for name in names:
            evict(place, name)
        for _ in until(60, pause_s=0.5):
            if not set(names) & {each for job in jobs.values() for each in pod_names(place, job)}:
                return

    place.restart(signal.SIGKILL, drain)
    for name, job in jobs.items():
        info = ended(job, 150).info()
        expected = (State.FAILED, 1, 0) if name == "never" else (State.SUCCEEDED, 2, 1)
        assert (info.state, info.attempt, info.infrastructure_retries) == expected, info.message
        told = [event.message for event in job.events() if event.reason == "Preempted"]
        assert "lost their pods, as by a drain of a node" in told[0]


LAST_WORDS = """
import time
print("up", flush=True)
time.sleep(8)
for number in range(6000):
    print(number)
"""


def test_a_worker_that_ends_while_the_server_is_away_leaves_its_place_and_all_that_it_has(
    cluster: Cluster, tmp_path: Path
) -> None:
    place = ClusterPlace(tmp_path, cluster, "leaves")
    job = place.job(LAST_WORDS, instance_type="tiny")
    job.submit()
    prints(job, "up")

    def leave() -> None:
        for _ in until(150, pause_s=1):
            (pod,) = place.pods(job)
            if pod["status"]["phase"] == "Succeeded":
                return

    place.restart(signal.SIGKILL, leave)
    info = ended(job).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    assert texts(job, stream=["stdout"]) == ["up", *map(str, range(6000))]
    assert_nothing_is_left(place)
    place.close()


def pod_names(place: ClusterPlace, job: Job) -> list[str]:
    return [pod["metadata"]["name"] for pod in place.pods(job)]
