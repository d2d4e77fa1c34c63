"""What goes wrong on a cluster, made to happen on a real one.

After each the state is true, nothing is doubled, and nothing is left over (the fixtures look).
"""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import Conflict
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.cluster.tests.jobs import pytorch_job
from tests.cluster.waiting import until
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import CATALOGUE, ClusterPlace, becomes, ended, prints, says
from tests.contract.test_promises import STAY, texts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
COUNT = """
import os, time
print("begun", flush=True)
for i in range({seconds} * 10):
    print("line", i, flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def other(
    cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ClusterPlace]:
    """A place of its own, for a fault that others would feel; its parameter:
    arguments of ClusterPlace.
    """
    place = ClusterPlace(tmp_path, cluster, "contract-other", **getattr(request, "param", {}))
    yield place
    assert_nothing_is_left(place)
    place.close()


def lines_of(job: Any, rank: int) -> list[str]:
    return [line for line in texts(job, rank=[rank], stream=["stdout"]) if line.startswith("line")]


# --- the server: killed, or ended politely (SIGTERM) as at each upgrade. Tests of what carries a
# log try both, the other tests one


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_loses_no_line_and_starts_nothing_twice(
    other: ClusterPlace, sig: signal.Signals
) -> None:
    job = other.job(COUNT.format(seconds=8), n_workers=2)
    job.submit()
    prints(job, "line 5")
    uids = {pod["metadata"]["uid"] for pod in other.pods(job)}
    other.restart(sig)
    again = other.client.get_job(str(job.name))
    assert {pod["metadata"]["uid"] for pod in other.pods(job)} == uids
    info = ended(again).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    for rank in (0, 1):
        assert lines_of(again, rank) == [f"line {i}" for i in range(80)]
        assert texts(again, rank=[rank], stream=["stdout"]).count("begun") == 1


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_ends_while_the_server_is_away_is_found_to_have_succeeded(
    other: ClusterPlace, sig: signal.Signals
) -> None:
    job = other.job(COUNT.format(seconds=2), n_workers=2)
    job.submit()
    prints(job, "line 1")

    def ranks_are_done() -> None:
        for _ in until(60, pause_s=0.3):
            if all("line 19" in other.printed(pod) for pod in other.pods(job)):
                return

    other.restart(sig, pause=ranks_are_done)
    again = other.client.get_job(str(job.name))
    assert ended(again).info().state is State.SUCCEEDED, again.info().message
    assert lines_of(again, 1) == [f"line {i}" for i in range(20)]


def test_a_job_is_cancelled_though_the_server_ends_right_after(other: ClusterPlace) -> None:
    job = other.job(STAY, n_workers=2)
    job.submit()
    becomes(job, State.RUNNING)
    job.cancel()
    other.restart(signal.SIGTERM)
    assert ended(other.client.get_job(str(job.name))).info().state is State.CANCELLED


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_a_submit_that_is_interrupted_finds_its_own_object(
    other: ClusterPlace, sig: signal.Signals
) -> None:
    jobs = [other.job("print('ran')", name=f"interrupted-{number}") for number in range(4)]
    for job in jobs:
        job.submit()
    other.restart(sig)
    for job in jobs:
        again = ended(other.client.get_job(str(job.name)))
        assert (again.info().state, again.info().attempt) == (State.SUCCEEDED, 1), (
            again.info().message
        )
        assert texts(again, stream=["stdout"]) == ["ran"]


# --- hands


def test_a_job_that_kubectl_deletes_says_so(kube: ClusterPlace) -> None:
    job = kube.job(STAY, n_workers=2)
    job.submit()
    becomes(job, State.RUNNING)
    kube.cluster.api.delete(f"{kube.jobs}/{job.name}")
    info = ended(job).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.DELETED_EXTERNALLY)
    assert info.message == f"{kube.kind.name} {job.name} was deleted by someone else"


def test_a_job_that_is_deleted_while_it_waits_says_so(kube: ClusterPlace) -> None:
    job = kube.job(STAY, instance_type="vast")
    job.submit()
    says(job, "free; waits since")
    kube.cluster.api.delete(f"{kube.jobs}/{job.name}")
    assert ended(job).info().reason is Reason.DELETED_EXTERNALLY


@pytest.mark.parametrize("worker", [0, 1])
def test_a_pod_that_is_deleted_ends_the_attempt_and_the_next_is_a_whole_gang(
    kube: ClusterPlace, worker: int
) -> None:
    script = "import os, time\nprint('attempt', os.environ['CLIENT_LIB_ATTEMPT'], flush=True)\n"
    script += "time.sleep(600 if os.environ['CLIENT_LIB_ATTEMPT'] == '1' else 0)\n"
    job = kube.job(script, n_workers=2, max_retry=1)
    job.submit()
    prints(job, "attempt 1", times=2)
    becomes(job, State.RUNNING)
    name = kube.pods(job)[worker]["metadata"]["name"]
    kube.cluster.api.delete(f"/api/v1/namespaces/{kube.namespace}/pods/{name}")
    info = ended(job, 150).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2), info.message
    told = [event.message for event in job.events()]
    assert any(
        f"the pod of worker {worker} was deleted by someone else" in message for message in told
    ), told
    printed = texts(job, stream=["stdout"])
    assert printed.count("attempt 2") == 2
    # the pod that the operator made in its place started nothing
    assert printed.count("attempt 1") == 2


def test_an_eviction_is_followed_by_another_attempt_without_max_retry(kube: ClusterPlace) -> None:
    script = "import os, time\ntime.sleep(600 if os.environ['CLIENT_LIB_ATTEMPT'] == '1' else 0)\n"
    job = kube.job(script, n_workers=2)
    job.submit()
    becomes(job, State.RUNNING)
    name = kube.pods(job)[1]["metadata"]["name"]
    evict(kube, name)
    info = ended(job, 150).info()
    assert (info.state, info.attempt, info.infrastructure_retries) == (State.SUCCEEDED, 2, 1), (
        info.message
    )
    told = [
        event.message
        for event in job.events()
        if event.state is State.RESTARTING and event.reason == "Preempted"
    ]
    assert told[0].startswith("attempt 1 failed: worker 1 was taken away from node "), told
    assert told[0].endswith(" (1 of 3 infrastructure retries); the next starts in 1 s"), told


def test_an_eviction_ends_a_job_that_has_no_retries_for_it(kube: ClusterPlace) -> None:
    job = kube.job(STAY, n_workers=2, max_infrastructure_retry=0)
    job.submit()
    becomes(job, State.RUNNING)
    evict(kube, kube.pods(job)[0]["metadata"]["name"])
    info = ended(job, 150).info()
    assert (info.state, info.reason, info.attempt) == (State.FAILED, Reason.PREEMPTED, 1), (
        info.message
    )


def evict(place: ClusterPlace, name: str) -> None:
    """Evict a pod in the way of `kubectl drain`."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    place.cluster.api.create(f"/api/v1/namespaces/{place.namespace}/pods/{name}/eviction", eviction)


def test_a_worker_that_writes_more_than_its_limit_is_not_started_again(kube: ClusterPlace) -> None:
    """The kubelet looks every ten seconds."""
    script = (
        "import os, time\nfile = open('/tmp/big', 'wb')\nos.posix_fallocate(file.fileno(), 0, "
        "1_200_000_000)\n"
    )
    script += "time.sleep(600)\n"
    info = kube.run(script, tmp_storage="scant").info()
    assert (info.state, info.reason, info.attempt) == (State.FAILED, Reason.STORAGE_FULL, 1), (
        info.message
    )


# --- what can't start


def test_an_image_that_does_not_exist_is_named_while_it_waits(kube: ClusterPlace) -> None:
    job = kube.job(STAY, base_image="localhost/none:local")
    job.submit()
    says(job, "image 'localhost/none:local' can't be pulled")
    assert job.info().reason is Reason.IMAGE_PULL
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


def test_an_image_without_python_says_what_to_take(kube: ClusterPlace) -> None:
    info = kube.run(STAY, base_image="localhost/pause:local").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert info.message == (
        "image 'localhost/pause:local' has no python3, which starts the worker: take an image "
        "with Python 3"
    )


def test_a_job_that_no_node_can_take_says_what_is_missing(kube: ClusterPlace) -> None:
    job = kube.job(STAY, instance_type="vast", n_workers=2)
    job.submit()
    says(job, "0/1 nodes have 500 cpu free; waits since")
    assert job.info().reason is Reason.UNSCHEDULABLE
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


@pytest.mark.parametrize(
    "other", [{"catalogue": f"{CATALOGUE}gang: {{timeout_s: 3}}\n"}], indirect=True
)
def test_a_gang_that_is_not_complete_in_time_is_taken_back_and_queued_again(
    other: ClusterPlace,
) -> None:
    job = other.job(STAY, instance_type="vast")
    job.submit()
    says(job, "0/1 nodes have 500 cpu free")
    first = other.workload(str(job.name))
    assert first is not None
    says(job, "tries again in")
    assert job.info().reason is Reason.UNSCHEDULABLE
    for _ in until(60, pause_s=0.2):
        again = other.workload(str(job.name))
        if again is not None and again["metadata"]["uid"] != first["metadata"]["uid"]:
            break
    else:
        raise AssertionError("it was not made anew")
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


def test_a_quota_that_refuses_the_pods_is_said_with_its_numbers(other: ClusterPlace) -> None:
    quotas = f"/api/v1/namespaces/{other.namespace}/resourcequotas"
    hard = {"requests.memory": "1Gi"}
    other.cluster.api.create(
        quotas,
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "team"},
            "spec": {"hard": hard},
        },
    )
    job = other.job(STAY, n_workers=3)
    job.submit()
    says(job, "quota 'team' allows 1 GiB of memory, 0 are used, this job wants 1.5 GiB of memory")
    assert job.info().reason is Reason.UNSCHEDULABLE
    other.cluster.api.delete(f"{quotas}/team")
    becomes(job, State.RUNNING, 150)
    job.cancel()
    ended(job)


@pytest.mark.parametrize(
    "other", [{"catalogue": f"{CATALOGUE}pod_security: privileged\n"}], indirect=True
)
def test_pods_that_the_namespace_does_not_admit_end_the_job_with_the_reason(
    other: ClusterPlace,
) -> None:
    info = other.run(STAY, n_workers=2).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert info.message.startswith(
        "the namespace's Pod Security level 'restricted' refuses the pods: "
    )


def test_an_object_of_that_name_that_is_there_already_is_left_alone(pytorch: ClusterPlace) -> None:
    theirs = pytorch_job("mine", ["sleep", "600"], workers=0)
    made = pytorch.cluster.api.create(pytorch.jobs, theirs)
    info = pytorch.run(STAY, name="mine").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert (
        info.message
        == "PyTorchJob mine is there already, and not of this job: give the job another name"
    )
    there = pytorch.workload("mine")
    assert there is not None
    assert there["metadata"]["uid"] == made["metadata"]["uid"]
    pytorch.cluster.api.delete(f"{pytorch.jobs}/mine")


def test_a_failed_job_is_removed_without_a_new_pod_and_its_name_is_free(kube: ClusterPlace) -> None:
    """Kubeflow Trainer makes the pods of a TrainJob again while it is deleted in the foreground."""
    for code in (3, 4):
        job = kube.run(
            f"raise SystemExit({code})",
            name="again",
            n_workers=2,
            env_variables={"TOKEN": "secret"},
        )
        failure = job.info().failure
        assert failure is not None
        assert failure.exit_code == code
        seen: set[str] = set()
        for _ in until(60, pause_s=0.2):
            seen |= {pod["metadata"]["uid"] for pod in kube.pods(job)}
            if not kube.leftovers():
                break
        assert len(seen) <= 2
        job.delete()


# --- what ends badly


EAT = """
import os
print("last words", flush=True)
if os.environ["RANK"] == "1":
    for pid in {victims}:  # the kernel takes these first
        open(f"/proc/{{pid}}/oom_score_adj", "w").write("1000")
    x = bytearray(1 << 30)
import time
time.sleep(600)
"""


def test_too_much_memory_is_said_whoever_is_killed_for_it(kube: ClusterPlace) -> None:
    """The rank, while its launcher lives; the launcher; the whole container."""
    jobs = [
        kube.job(EAT.format(victims=victims), instance_type="tiny", n_workers=2)
        for victims in ("[]", "[os.getppid()]", "[1]")
    ]
    for job in jobs:
        job.submit()
    for job in jobs:
        info = ended(job).info()
        assert (info.state, info.reason) == (State.FAILED, Reason.OUT_OF_MEMORY), info.message
        assert info.message == "worker 1 was killed for using more than its 0.25 GiB of memory"
        assert texts(job, stream=["stdout"]) == ["last words", "last words"]


def test_a_child_of_a_rank_that_is_killed_for_memory_is_the_reason(kube: ClusterPlace) -> None:
    """The message is another one where the kernel kills the whole container at once (cgroup 2,
    Kubernetes before 1.32).
    """
    script = """
import subprocess, sys
eats = "open('/proc/self/oom_score_adj', 'w').write('1000'); x = b'x' * (1 << 30)"
ended = subprocess.run([sys.executable, "-c", eats])
raise RuntimeError(f"the data loader ended with {ended.returncode}")
"""
    info = kube.run(script, instance_type="tiny").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.OUT_OF_MEMORY), info.message
    killed = "a process of its worker was killed because the memory limit was reached"
    at_once = "was killed for using more than"
    assert info.message.endswith("ended with -9; " + killed) or at_once in info.message


def test_a_launcher_that_is_killed_leaves_the_tail_of_its_log(kube: ClusterPlace) -> None:
    script = "import os, signal, time\nprint('last words', flush=True)\ntime.sleep(2)\n"
    script += (
        "for pid in [int(p) for p in os.listdir('/proc') if p.isdigit() and p != '1' and int(p) "
        "!= os.getpid()]:\n"
    )
    script += "    os.kill(pid, signal.SIGKILL)\ntime.sleep(600)\n"
    job = kube.run(script)
    info = job.info()
    assert info.state is State.FAILED
    assert info.reason in (Reason.LAUNCHER_LOST, Reason.SIGNAL), (info.reason, info.message)
    assert "last words" in texts(job, stream=["stdout"])


# --- the operator


def test_the_operator_away_for_a_while_is_waited_for(other: ClusterPlace) -> None:
    job = other.job(COUNT.format(seconds=4), n_workers=2)
    job.submit()
    prints(job, "line 5")
    other.cluster.kill("training-operator")
    waiting = other.job("print('ran')")
    waiting.submit()
    says(waiting, "does not answer: does the training operator run?")
    assert ended(job).info().state is State.SUCCEEDED, job.info().message
    other.cluster.start("training-operator")
    assert ended(waiting, 150).info().state is State.SUCCEEDED, waiting.info().message
    assert lines_of(job, 1) == [f"line {i}" for i in range(40)]


# --- a server that pods can't reach


@pytest.mark.parametrize("other", [{"WORKER_SERVER_URL": ""}], indirect=True)
def test_where_pods_reach_no_server_a_job_runs_and_its_log_comes_from_the_cluster(
    other: ClusterPlace,
) -> None:
    job = other.run(COUNT.format(seconds=2), n_workers=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    assert lines_of(job, 0) == lines_of(job, 1) == [f"line {i}" for i in range(20)]
    assert any("pods can't reach this server" in event.message for event in job.events())


@pytest.mark.parametrize("other", [{"WORKER_SERVER_URL": ""}], indirect=True)
def test_where_pods_reach_no_server_the_end_is_told_by_the_termination_message(
    other: ClusterPlace,
) -> None:
    info = other.run("import sys\nprint('last')\nsys.exit(7)\n").info()
    assert (info.state, info.reason) == (State.FAILED, Reason.EXIT_CODE)
    assert info.failure is not None
    assert (info.failure.rank, info.failure.exit_code) == (0, 7)


# --- submits


def test_two_submits_with_one_key_from_two_processes_are_one_job(
    kube: ClusterPlace, tmp_path: Path
) -> None:
    script = tmp_path / "code" / "once.py"
    script.parent.mkdir()
    script.write_text("print('once')\n")
    program = f"""
import sys
from client_lib import Client, Job
client = Client({kube.url!r}, {kube.token!r}, insecure=True)
script = {str(script)!r}
job = Job(script=script, code="snapshot", instance_type="small", name="once", client=client)
job._key = "0" * 32  # as a process that repeats its submit after a crash would have it
job.submit()
print(job.name)
"""
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    named = {process.communicate(timeout=60)[0].strip() for process in running}
    assert len(named) == 1
    job = ended(kube.client.get_job(named.pop()))
    assert job.info().state is State.SUCCEEDED, job.info().message
    assert texts(job, stream=["stdout"]) == ["once"]


def test_a_name_of_a_job_that_is_there_is_refused(kube: ClusterPlace) -> None:
    job = kube.job(STAY, name="taken")
    job.submit()
    with pytest.raises(Conflict):
        kube.job(STAY, name="taken").submit()
    job.cancel()
    ended(job)


def test_a_name_is_free_as_soon_as_its_job_is_deleted(kube: ClusterPlace) -> None:
    """Though the cluster still has pods of it."""
    for word in ("first", "second", "third"):
        job = kube.run(f"print('{word}')", name="again")
        assert job.info().state is State.SUCCEEDED, job.info().message
        assert texts(job, stream=["stdout"]) == [word]
        job.delete()


def test_many_jobs_at_once_all_succeed(kube: ClusterPlace) -> None:
    jobs = [kube.job("print('ran')", name=f"many-{number}") for number in range(6)]
    threads = [threading.Thread(target=job.submit) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        assert ended(job, 200).info().state is State.SUCCEEDED, job.info().message
