"""The stacks of a running job's processes, wherever it runs."""

import time

import pytest

from client_lib import Client, Job
from client_lib.errors import Conflict, NotFound
from client_lib.spec.states import State
from tests.cluster.waiting import until
from tests.contract.places import PATIENCE_S, ClusterPlace, Place, becomes, ended, new_token, prints

pytestmark = pytest.mark.process

# rank 0 loops in Python, rank 1 sleeps in C, rank 2 holds the interpreter's lock in C, rank 3 waits
# for its child
FOUR = """
import ctypes, os, time
def loops():
    while True:
        pass
def sleeps():
    time.sleep(600)
def holds():
    ctypes.PyDLL(None).sleep(600)
def loads():
    if os.fork() == 0:
        reads()
    os.wait()
def reads():
    time.sleep(600)
print("up", flush=True)
[loops, sleeps, holds, loads][int(os.environ["RANK"])]()
"""


def test_what_each_rank_does(place: Place) -> None:
    job = place.job(FOUR, n_workers=2, processes_per_worker=2)
    job.submit()
    prints(job, "up", times=4)
    innermost: list[str] = []
    for _ in until(PATIENCE_S, pause_s=0.2):  # after the line, each of them goes where it stays
        stacks = job.stacks()
        main_threads = [rank.processes[0].main_thread for rank in stacks.ranks]
        innermost = [thread.frames[0].function for thread in main_threads if thread]
        if (
            innermost == ["loops", "sleeps", "holds", "loads"]
            and len(stacks.ranks[3].processes) == 2
        ):
            break
    assert innermost == ["loops", "sleeps", "holds", "loads"]
    assert not stacks.problems
    assert [(rank.rank, rank.worker) for rank in stacks.ranks] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert [process.problem for rank in stacks.ranks for process in rank.processes] == [None] * 5
    assert "1 child process of rank 3: reads (script.py:15) <- loads (script.py:12)" in str(stacks)
    job.cancel()


def test_a_command_is_described_by_what_its_machine_knows(place: Place) -> None:
    job = Job(
        script="sleep 600",
        client=place.client,
        instance_type=place.instance_type,
        type="binary",
        grace_s=5,
    )
    job.submit()
    becomes(job, State.RUNNING)
    (rank,) = job.stacks().ranks
    (process,) = rank.processes
    assert (process.name, process.state, process.threads) == ("sleep", "sleeping", [])
    assert process.problem is not None
    assert "without a stack" in str(job.stacks())
    job.cancel()


def test_a_silent_job_shows_where_it_stood_before_it_was_stopped(place: Place) -> None:
    job = place.job(FOUR, n_workers=2, processes_per_worker=2)
    job.submit()
    prints(job, "up", times=4)
    time.sleep(10.5)
    job.cancel()
    info = ended(job).info()
    assert any(line.startswith("rank 0: loops (script.py:") for line in info.stacks), info.stacks
    assert "rank 1: sleeps (script.py:7) <- <module> (script.py:17)" in info.stacks
    assert any(line.startswith("1 child process of rank 3: reads") for line in info.stacks), (
        info.stacks
    )


def test_a_job_that_forbids_it_and_one_that_has_ended(place: Place) -> None:
    job = place.job(FOUR, observe=False)
    job.submit()
    prints(job, "up")
    with pytest.raises(Conflict, match="observe=False"):
        job.stacks()
    job.cancel()
    ended = place.run("pass")
    with pytest.raises(Conflict, match="SUCCEEDED"):
        ended.stacks()


@pytest.mark.cluster
def test_another_user_does_not_even_see_the_job(kube: ClusterPlace) -> None:
    other = Client(kube.url, new_token(kube.folder / "users.toml", "curious"), insecure=True)
    job = kube.job(FOUR)
    job.submit()
    prints(job, "up")
    with pytest.raises(NotFound):
        other.job_stacks(job.info().name)
    job.cancel()
