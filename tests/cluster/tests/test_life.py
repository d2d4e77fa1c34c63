"""Up, up again, down, and down after the worst: with real programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.cluster import Cluster
from tests.cluster.node import Node
from tests.cluster.tests.jobs import PATH, ends, job
from tests.cluster.tests.machine import appeared, picture
from tests.cluster.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
STEPS = ("node.json", "ready", "log/etcd.log", "log/kube-apiserver.log", "log/kubelet.log")


def command(cluster: Cluster, *words: str) -> Sequence[str]:
    return [sys.executable, "-m", "tests.cluster", "--name", cluster.name, *words]


def test_a_cluster_goes_without_a_trace(spare: Cluster) -> None:
    before = picture(spare)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), job("sleeps", ["sleep", "600"], workers=0))
    _await_running(spare)
    assert appeared(spare, before)
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_the_control_plane_and_the_operator_are_ready_within_15_seconds(spare: Cluster) -> None:
    spare.up({"api"})
    spare.down()  # once, so that nothing is built in what is timed
    begun = time.monotonic()
    spare.up({"api"})
    others = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # a busy machine gets as much longer
    assert time.monotonic() - begun < 15 * others


def test_up_again_leaves_what_runs_alone(spare: Cluster) -> None:
    spare.up({"api"})
    before, started = spare.node().pid, {each.name: each.started_at for each in spare.programs().values()}
    spare.up({"api"})
    assert spare.node().pid == before
    assert {each.name: each.started_at for each in spare.programs().values()} == started


def test_up_again_brings_back_what_ended(spare: Cluster) -> None:
    spare.up({"api"})
    spare.kill("training-operator")
    assert spare.layers() == set()
    spare.up({"api"})
    assert spare.layers() == {"api"}


def test_a_layer_is_added_to_a_cluster_with_objects(spare: Cluster) -> None:
    spare.up({"api"})
    spare.namespace("kept")
    spare.up({"kwok"})
    assert spare.layers() == {"api", "kwok"}
    assert spare.api.get("/api/v1/namespaces/kept")["metadata"]["name"] == "kept"


@pytest.mark.parametrize("step", STEPS)
def test_down_removes_what_an_up_left_that_was_killed(spare: Cluster, step: str) -> None:
    before = picture(spare)
    started = subprocess.Popen(command(spare, "up", "node"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in until(60, pause_s=0.005):
        if (spare.places.run / step).exists():
            break
    started.kill()
    started.wait()
    assert (spare.places.run / step).exists()
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_up_after_an_up_that_was_killed_is_whole(spare: Cluster) -> None:
    started = subprocess.Popen(command(spare, "up", "api"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    for _ in until(60, pause_s=0.005):
        if spare.places.record.exists():
            break
    started.kill()
    started.wait()
    spare.up({"api"})
    assert spare.layers() == {"api"}


def test_when_its_first_process_is_killed_all_of_it_ends(spare: Cluster) -> None:
    before = picture(spare)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), job("sleeps", ["sleep", "600"], workers=0))
    _await_running(spare)
    os.kill(spare.node().pid, signal.SIGKILL)
    for _ in until(10):
        if not spare.is_up():
            break
    assert not spare.is_up()
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_a_cluster_whose_first_process_was_killed_comes_up_again(spare: Cluster) -> None:
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), job("first", ["sleep", "600"], workers=0))
    _await_running(spare)
    os.kill(spare.node().pid, signal.SIGKILL)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), job("second", ["true"], workers=0))
    assert ends(spare.api, "second") == "Succeeded"


def test_two_clusters_run_at_once(cluster: Cluster, spare: Cluster) -> None:
    spare.up({"api"})
    assert cluster.network.number != spare.network.number
    cluster.namespace("here")
    assert "here" not in {each["metadata"]["name"] for each in spare.api.get("/api/v1/namespaces")["items"]}


def test_down_of_a_cluster_that_never_was_is_no_error(spare: Cluster) -> None:
    assert subprocess.run(command(spare, "down"), capture_output=True).returncode == 0


def test_a_record_of_another_process_with_the_same_number_is_not_believed(spare: Cluster) -> None:
    spare.up({"api"})
    node = spare.node()
    assert not Node(node.pid, node.start_time - 1, spare.places).is_alive()
    Node(node.pid, node.start_time - 1, spare.places).kill()
    assert spare.is_up()


def _await_running(cluster: Cluster) -> None:
    for _ in until(30, pause_s=0.1):
        pods = cluster.api.get("/api/v1/namespaces/jobs/pods")["items"]
        if pods and all(pod["status"].get("phase") == "Running" for pod in pods):
            return
    raise AssertionError([pod["status"] for pod in pods])
