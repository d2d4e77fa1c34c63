"""The API server away for a minute, and etcd compacted meanwhile, so that no watch can go on where
it was.

One outage, several jobs: each test looks at what became of one of them.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from client_lib.job import Job
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, becomes, ended, prints, says
from tests.contract.test_faults import COUNT, lines_of
from tests.contract.test_promises import STAY, texts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
AWAY_S = 60.0
# the operator and the garbage collector ask again up to a minute after the API server is back
LATE_S = 180.0
FAILS_ONCE = """
import os, sys, time
print("attempt", os.environ["CLIENT_LIB_ATTEMPT"], flush=True)
time.sleep(10 if os.environ["CLIENT_LIB_ATTEMPT"] == "1" else 0)
sys.exit(0 if os.environ["CLIENT_LIB_ATTEMPT"] == "2" else 3)
"""
COMPACT = """
import json, urllib.request
def ask(what, body):
    url = "http://127.0.0.1:2379/v3/kv/" + what
    request = urllib.request.Request(url, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=30))
newest = int(ask("range", {"key": "AA=="})["header"]["revision"])
ask("compaction", {"revision": newest, "physical": True})
print(newest)
"""


@dataclass
class Outage:
    """What was seen of it; it is over."""

    place: ClusterPlace
    through: Job
    pods: set[str]
    """UIDs of its pods, before."""
    ends: Job
    end_state: State
    """While the API server was away."""
    fails: Job
    cancelled: Job
    submitted: Job
    deleted: Job


@pytest.fixture(scope="module")
def outage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outage]:
    place = ClusterPlace(tmp_path_factory.mktemp("outage"), cluster, "contract-outage")
    tiny = {"instance_type": "tiny"}
    through = place.job(COUNT.format(seconds=int(AWAY_S) + 15), n_workers=2, **tiny)
    ends = place.job(COUNT.format(seconds=10), n_workers=2, **tiny)
    fails = place.job(FAILS_ONCE, max_retry=1, **tiny)
    cancelled = place.job(STAY, **tiny)
    deleted = place.job(STAY, **tiny)
    for job in (through, ends, fails, cancelled, deleted):
        job.submit()
    for job in (through, ends, fails, cancelled, deleted):
        becomes(job, State.RUNNING)
    prints(through, "line 5")
    pods = {pod["metadata"]["uid"] for pod in place.pods(through)}

    cluster.kill("kube-apiserver")
    began = time.monotonic()
    compact(cluster)
    submitted = place.job("print('ran')", **tiny)
    submitted.submit()
    cancelled.cancel()
    says(submitted, "the Kubernetes API does not answer")
    prints(ends, "line 99", times=2)
    for _ in until(30, pause_s=0.2):
        if ends.info().state.final:
            break
    end_state = ends.info().state
    time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
    cluster.start("kube-apiserver")
    cluster.api.delete(f"{place.jobs}/{deleted.name}")

    yield Outage(place, through, pods, ends, end_state, fails, cancelled, submitted, deleted)
    try:
        assert_nothing_is_left(place, LATE_S)
    finally:
        place.close()


def compact(cluster: Cluster) -> None:
    """etcd forgets every version but the newest; it answers within the cluster only."""
    assert int(cluster.node().run(sys.executable, "-c", COMPACT)) > 1


def test_a_job_that_runs_all_the_time_notices_nothing(outage: Outage) -> None:
    info = ended(outage.through, LATE_S).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    lines = [f"line {i}" for i in range((int(AWAY_S) + 15) * 10)]
    assert lines_of(outage.through, 0) == lines_of(outage.through, 1) == lines
    assert {pod["metadata"]["uid"] for pod in outage.place.pods(outage.through)} <= outage.pods


def test_a_job_that_ends_meanwhile_is_known_to_have_ended(outage: Outage) -> None:
    assert outage.end_state is State.SUCCEEDED
    assert lines_of(outage.ends, 0) == lines_of(outage.ends, 1) == [f"line {i}" for i in range(100)]


def test_a_job_that_is_submitted_meanwhile_runs_once(outage: Outage) -> None:
    info = ended(outage.submitted, LATE_S).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    assert texts(outage.submitted, stream=["stdout"]) == ["ran"]


def test_a_job_that_is_cancelled_meanwhile_stops_at_once_and_stays_so(outage: Outage) -> None:
    assert ended(outage.cancelled, LATE_S).info().state is State.CANCELLED
    assert texts(outage.cancelled, stream=["stdout"]) == ["up", "asked to stop"]


def test_an_attempt_that_fails_meanwhile_is_followed_by_one_more(outage: Outage) -> None:
    info = ended(outage.fails, LATE_S).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2), info.message
    assert texts(outage.fails, stream=["stdout"]) == ["attempt 1", "attempt 2"]


def test_what_was_deleted_before_the_watches_stood_again_is_found_by_listing_anew(
    outage: Outage,
) -> None:
    info = ended(outage.deleted, LATE_S).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.DELETED_EXTERNALLY), info.message
    said = [
        json.loads(line)
        for line in outage.place.server.output.splitlines()
        if "too old resource version" in line
    ]
    assert said, "no watch was refused as expired"
