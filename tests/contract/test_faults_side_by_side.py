"""Faults that take a minute each and don't feel each other, side by side on one cluster.

Floods: five pods at once that print as fast as they can, where `pods/log` loses up to two thirds;
one job's server is away in the middle, the other's can't be reached by pods at all.

Agents that fall silent: stopped by a signal, as by a node that hangs, while their ranks run on.

Nodes that vanish: fake ones, whose heart stops with KWOK. To Kubernetes a pod there runs on for
ever, or ends for ever once it is deleted, for nobody is there who could end it.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client_lib.job import Job
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, becomes, ended, prints, says
from tests.contract.test_faults import COUNT, lines_of
from tests.contract.test_promises import STAY

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS, LINES = 5, 300_000
AWAY_S = 30.0
PATIENCE_S = 300.0
FLOOD = f"""
import sys
print("begun", flush=True)
for n in range({LINES}):
    sys.stdout.write(f"{{n:07d}} {{'x' * 92}}\\n")
"""
SHORT_LIMITS = """
import runpy, sys
import server_stub.runtimes.kube.runtime
for module in list(sys.modules.values()):
    for name, limit in {"NOTICED_S": 36.0, "SILENT_S": 54.0}.items():
        if hasattr(module, name):
            setattr(module, name, limit)
sys.argv[:] = sys.argv[sys.argv.index("server_stub"):]
runpy.run_module("server_stub", run_name="__main__", alter_sys=True)
"""
"""A server that waits for less than 2 and 10 minutes, and longer than 30 s, as agents ask for
orders so often.
"""
HANGS_ONCE = """
import os, time
print("begun", flush=True)
hangs = os.environ["CLIENT_LIB_ATTEMPT"] == "1" and os.environ["RANK"] == "1"
time.sleep(600 if hangs else 5)
"""


@dataclass
class Begun:
    """Jobs in the middle of what happens to them."""

    flood: Job
    flood_alone: Job
    """Of the server that pods can't reach."""
    nodes: ClusterPlace
    lost: Job
    again: Job
    cancelled: Job
    first_pods: set[str]
    """UIDs of those of `again`."""
    paused: Job
    paused_agent: int
    hung: Job
    """The agent of its worker 1 is stopped for good."""


@pytest.fixture(scope="module")
def begun(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    vanishing = cluster.fake_nodes(
        2, {"cpu": "2", "memory": "4Gi", "pods": "10"}, prefix="vanishing"
    )
    # a zone of their own: where most of a zone is gone, but not all, Kubernetes evicts nothing
    for name in vanishing:
        zone = {"topology.kubernetes.io/zone": "vanishing"}
        cluster.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": zone}})
    reached = ClusterPlace(tmp_path_factory.mktemp("reached"), cluster, "contract-flood")
    alone = ClusterPlace(
        tmp_path_factory.mktemp("alone"), cluster, "contract-alone", WORKER_SERVER_URL=""
    )
    nodes = ClusterPlace(
        tmp_path_factory.mktemp("nodes"), cluster, "contract-nodes", WORKER_SERVER_URL=""
    )
    short = (sys.executable, "-c", SHORT_LIMITS)
    silent = ClusterPlace(
        tmp_path_factory.mktemp("silent"), cluster, "contract-silent", before=short
    )
    places = [reached, alone, nodes, silent]
    try:
        yield _begin(reached, alone, nodes, silent, vanishing)
        for place in places:
            assert_nothing_is_left(place)
    finally:
        for place in places:
            place.close()
        for name in vanishing:
            cluster.api.delete(f"/api/v1/nodes/{name}")
        if not cluster.programs()["kwok"].running:
            cluster.start("kwok")


def _begin(
    reached: ClusterPlace,
    alone: ClusterPlace,
    nodes: ClusterPlace,
    silent: ClusterPlace,
    vanishing: list[str],
) -> Begun:
    def fake(node: str, **fields: int) -> Job:
        return nodes.job(STAY, instance_type="fake", include_nodes=[node], grace_s=1, **fields)

    lost, cancelled = fake(vanishing[0], max_infrastructure_retry=0), fake(vanishing[0])
    again = fake(vanishing[1], n_workers=2)
    paused = silent.job(COUNT.format(seconds=50), instance_type="tiny")
    hung = silent.job(HANGS_ONCE, instance_type="tiny", n_workers=2)
    for job in (paused, hung):
        job.submit()
    prints(paused, "line 5")
    prints(hung, "begun", times=2)
    paused_agent = stop_agent(silent, paused, 0)
    stop_agent(silent, hung, 1)
    flood, flood_alone = (
        place.job(FLOOD, instance_type="tiny", n_workers=PODS) for place in (reached, alone)
    )
    for job in (lost, cancelled, again, flood, flood_alone):
        job.submit()
    for job in (lost, cancelled, again):
        becomes(job, State.RUNNING)
    first_pods = {pod["metadata"]["uid"] for pod in nodes.pods(again)}
    nodes.cluster.kill("kwok")
    cancelled.cancel()
    prints(flood, "begun", times=PODS)
    reached.restart(signal.SIGTERM)
    reached.restart(signal.SIGKILL, pause=lambda: time.sleep(AWAY_S))
    flood = reached.client.get_job(str(flood.name))
    return Begun(
        flood, flood_alone, nodes, lost, again, cancelled, first_pods, paused, paused_agent, hung
    )


def test_a_flood_arrives_whole_though_the_server_is_away_in_the_middle(begun: Begun) -> None:
    job = ended(begun.flood, PATIENCE_S)
    assert (job.info().state, job.info().attempt) == (State.SUCCEEDED, 1), job.info().message
    for worker in range(PODS):
        assert numbers(job, worker) == list(range(LINES))
    assert not [event.message for event in job.events() if "lost" in event.message]


def test_of_a_flood_where_pods_reach_no_server_every_lost_line_is_counted(begun: Begun) -> None:
    job = ended(begun.flood_alone, PATIENCE_S)
    assert job.info().state is State.SUCCEEDED, job.info().message
    told = [event.message for event in job.events() if "lost" in event.message]
    for worker in range(PODS):
        came = numbers(job, worker)
        assert came, "something came"
        assert came == sorted(set(came))
        lost = [
            int(count)
            for count in re.findall(rf"(\d+) lines? of worker {worker} ", "\n".join(told))
        ]
        assert len(came) + (lost[-1] if lost else 0) == LINES, (worker, len(came), told)


def numbers(job: Job, worker: int) -> list[int]:
    """Of the lines of the flood that came, each looked at whole."""
    found = []
    for entry in job.log_entries(follow=False, rank=[worker], stream=["stdout"]):
        number, _, rest = entry.text.partition(" ")
        if number != "begun":
            assert (len(number), rest) == (7, "x" * 92), entry
            found.append(int(number))
    return found


def test_an_agent_that_is_silent_for_a_while_is_named_and_its_log_arrives_whole(
    begun: Begun,
) -> None:
    job = begun.paused
    try:
        says(job, "worker 0 has been silent for more than 0.6 min: its node or agent hangs")
        assert job.info().state is State.RUNNING
    finally:
        os.kill(begun.paused_agent, signal.SIGCONT)
    info = ended(job).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message
    assert lines_of(job, 0) == [f"line {i}" for i in range(500)]


def test_an_agent_that_stays_silent_is_lost_when_the_others_have_ended_and_the_gang_starts_again(
    begun: Begun,
) -> None:
    job = begun.hung
    info = ended(job, PATIENCE_S).info()
    assert (info.state, info.attempt, info.infrastructure_retries) == (State.SUCCEEDED, 2, 1), (
        info.message
    )
    told = [event.message for event in job.events() if event.reason is Reason.NODE_LOST]
    assert told[0].startswith(
        "attempt 1 failed: worker 1 has been silent for more than 0.9 min: its node"
    ), told
    assert told[0].endswith(" (1 of 3 infrastructure retries); the next starts in 1 s"), told


def stop_agent(place: ClusterPlace, job: Job, worker: int) -> int:
    """Stop the agent of a worker, which is process 1 of its container; its pid on this machine."""
    pid = process_1(place.pods(job)[worker])
    os.kill(pid, signal.SIGSTOP)
    for _ in until(10):
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return pid
    raise AssertionError(f"process {pid} goes on")


def process_1(pod: dict[str, Any]) -> int:
    """Pid of process 1 in the pod's Python container, not in its sandbox."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            of_pod = f"pod{pod['metadata']['uid']}" in (folder / "cgroup").read_text()
            if of_pod and b"python" in (folder / "cmdline").read_bytes():
                line = next(
                    line
                    for line in (folder / "status").read_text().splitlines()
                    if line.startswith("NSpid:")
                )
                if line.split()[-1] == "1":
                    return int(folder.name)
        except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            continue
    raise AssertionError(f"no process of {pod['metadata']['name']}")


def test_jobs_on_nodes_that_vanish_end_or_begin_anew_and_wait_for_no_node(begun: Begun) -> None:
    info = ended(begun.lost, PATIENCE_S).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.NODE_LOST), info.message
    assert info.message.startswith("worker 0 was taken away from node vanishing-0: "), info.message
    assert ended(begun.cancelled, PATIENCE_S).info().state is State.CANCELLED
    again, place = begun.again, begun.nodes
    for _ in until(PATIENCE_S, pause_s=0.2):
        if again.info().attempt == 2:
            break

    place.cluster.start("kwok")
    becomes(again, State.RUNNING, PATIENCE_S)
    running = [pod for pod in place.pods(again) if not pod["metadata"].get("deletionTimestamp")]
    assert len(running) == 2
    assert begun.first_pods.isdisjoint(pod["metadata"]["uid"] for pod in running)
    again.cancel()
    assert (ended(again).info().state, again.info().attempt) == (State.CANCELLED, 2), (
        again.info().message
    )
    told = [event.message for event in again.events()]
    retried = [message for message in told if "was taken away from node vanishing-1" in message]
    assert retried, told
    assert retried[0].endswith(" (1 of 3 infrastructure retries); the next starts in 1 s"), told
