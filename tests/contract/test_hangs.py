"""Jobs whose rank 1 hangs in a pod, of both kinds, in a `restricted` namespace with Debian's torch.

What is said of all kinds of hangs is measured on this machine by benchmarks/hangs.py.
"""

import time
from collections.abc import Iterator

import pytest

from client_lib import Job
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import looked_over
from tests.contract.places import ClusterPlace, ended
from tests.contract.test_shapes import CATALOGUE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LIMIT_S = 240.0
STACKS_S = 2.0
SCRIPT = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
def divergence():
    dist.broadcast(x, src=0)
def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
def lock():
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()
dist.init_process_group("gloo")
x = torch.ones(8)
for step in range(10):
    if step == 5 and os.environ["RANK"] == "1":
        globals()[sys.argv[1]]()
    dist.all_reduce(x)
    time.sleep(0.1)
"""
SAYS = {
    "divergence": "rank 1 is in broadcast (script.py:5): these are different calls",
    "stopped": "; rank 1 is stopped and has not entered it",
    "lock": "; rank 1 is in lock (script.py:11) and has not entered it",
}


@pytest.fixture(scope="module", params=["pytorchjob", "trainjob"])
def torch_place(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    cluster.load("torch")
    folder = tmp_path_factory.mktemp("hangs")
    place = ClusterPlace(
        folder, cluster, f"hangs-{request.param}", catalogue=CATALOGUE, kind=request.param
    )
    yield from looked_over(place)
    place.close()


def test_the_rank_that_hangs_is_named_with_its_line_and_shows_its_stacks(
    torch_place: ClusterPlace,
) -> None:
    jobs = {kind: hanging(torch_place, kind) for kind in SAYS}
    for kind, job in jobs.items():
        message = told(job)
        assert message.startswith("rank 0 has waited in all_reduce (script.py:17) since "), message
        assert SAYS[kind] in message
    began = time.monotonic()
    first, second = jobs["lock"].stacks().ranks
    assert time.monotonic() - began < STACKS_S
    assert [rank.processes[0].problem for rank in (first, second)] == [None, None]
    assert "rank 1: lock (script.py:11) <- <module> (script.py:16)" in str(jobs["lock"].stacks())
    for job in jobs.values():
        job.cancel()
    for job in jobs.values():
        assert ended(job).info().state is State.CANCELLED


def test_a_job_that_hangs_in_pods_is_stopped_if_it_says_so(torch_place: ClusterPlace) -> None:
    job = hanging(torch_place, "lock", hang_action="stop")
    info = ended(job, LIMIT_S).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.HUNG)
    assert f"{SAYS['lock']} (hang_action)" in info.message
    assert "rank 1: lock (script.py:11) <- <module> (script.py:16)" in info.stacks


def hanging(place: ClusterPlace, kind: str, **fields: str) -> Job:
    job = place.job(SCRIPT, args=[kind], n_workers=2, **fields)
    job.submit()
    return job


def told(job: Job) -> str:
    """The message of the job when it is called hung."""
    for _ in until(LIMIT_S, pause_s=0.3):
        info = job.info()
        if info.reason is Reason.HUNG:
            return info.message
        assert not info.state.final, (info.state, info.reason, info.message)
    raise AssertionError(f"never called hung: {info.message}, {job.stacks()}")
