"""Up, up again, down, and down after the worst: with real programs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cluster import Cluster, builds
from tests.cluster.fixtures import own
from tests.cluster.layers import components
from tests.cluster.network import Network
from tests.cluster.node import Node
from tests.cluster.startup import new_node
from tests.cluster.tests.jobs import PATH, ends, pytorch_job
from tests.cluster.tests.machine import appeared, picture
from tests.cluster.waiting import until

pytestmark = pytest.mark.cluster
STEPS = ("node.json", "ready", "log/etcd.log", "log/kube-apiserver.log", "log/kubelet.log")


def command(cluster: Cluster, *words: str) -> Sequence[str]:
    return [sys.executable, "-m", "tests.cluster", "--name", cluster.name, *words]


def test_a_cluster_goes_without_a_trace(spare: Cluster) -> None:
    before = picture(spare)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), pytorch_job("sleeps", ["sleep", "600"], workers=0))
    _await_running(spare)
    assert appeared(spare, before)
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_the_control_plane_and_the_operator_are_ready_within_15_seconds(spare: Cluster) -> None:
    """Once built. A busy machine gets as much longer, and a second chance."""
    builds.build(spare.home, components(["api"]), [], print)
    for _ in range(3):
        begun = time.monotonic()
        spare.up({"api"})
        took = time.monotonic() - begun
        if took < 15 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)):
            return
        spare.down()
    raise AssertionError(f"ready after {took:.1f} s")


def test_up_again_leaves_what_runs_alone(control_plane: Cluster) -> None:
    before, started = (
        control_plane.node().pid,
        {each.started_at for each in control_plane.programs().values()},
    )
    control_plane.up({"api"})
    assert control_plane.node().pid == before
    assert {each.started_at for each in control_plane.programs().values()} == started


def test_up_again_brings_back_what_ended(control_plane: Cluster) -> None:
    control_plane.kill("training-operator")
    assert control_plane.layers() == set()
    control_plane.up({"api"})
    assert control_plane.layers() == {"api"}


def test_a_layer_is_added_to_a_cluster_with_objects(spare: Cluster) -> None:
    spare.up({"api"})
    spare.namespace("kept")
    spare.up({"kwok"})
    assert spare.layers() == {"api", "kwok"}
    assert spare.api.get("/api/v1/namespaces/kept")["metadata"]["name"] == "kept"


@pytest.mark.parametrize("step", STEPS)
def test_down_removes_what_an_up_left_that_was_killed(spare: Cluster, step: str) -> None:
    before = picture(spare)
    started = subprocess.Popen(
        command(spare, "up", "node"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    for _ in until(180, pause_s=0.005):
        if (spare.places.run / step).exists():
            break
    started.kill()
    started.wait()
    assert (spare.places.run / step).exists()
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_up_after_an_up_that_was_killed_is_whole(spare: Cluster) -> None:
    started = subprocess.Popen(
        command(spare, "up", "api"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    for _ in until(180, pause_s=0.005):
        if spare.places.record.exists():
            break
    started.kill()
    started.wait()
    spare.up({"api"})
    assert spare.layers() == {"api"}


def test_when_its_first_process_is_killed_all_of_it_ends_and_up_or_down_find_their_way(
    spare: Cluster,
) -> None:
    before = picture(spare)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), pytorch_job("first", ["sleep", "600"], workers=0))
    _await_running(spare)
    _kill_first_process(spare)
    spare.up({"node"})
    spare.api.create(PATH.format("jobs"), pytorch_job("second", ["true"], workers=0))
    assert ends(spare.api, "second") == "Succeeded"
    _kill_first_process(spare)
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_down_after_a_down_that_was_killed_leaves_nothing(spare: Cluster) -> None:
    before = picture(spare)
    spare.up({"api"})
    node = spare.node()
    ending = subprocess.Popen(
        command(spare, "down"), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    for _ in until(60, pause_s=0.001):
        if not node.is_alive():
            break
    ending.kill()
    ending.wait()
    spare.down()
    assert spare.leftovers() == []
    assert appeared(spare, before) == {}


def test_two_clusters_run_at_once(cluster: Cluster, control_plane: Cluster) -> None:
    assert cluster.network.number != control_plane.network.number
    cluster.namespace("here")
    there = {
        each["metadata"]["name"] for each in control_plane.api.get("/api/v1/namespaces")["items"]
    }
    assert "here" not in there


def test_the_addresses_of_a_killed_cluster_are_its_own_until_it_is_removed(spare: Cluster) -> None:
    """Or `down` would delete the link of the cluster that took them."""
    spare.places.root.mkdir(parents=True, exist_ok=True)
    first = Network(new_number(spare))
    spare.node().kill()
    for _ in until(30):
        if not Path("/sys/class/net", first.link).exists():
            break
    with own("tests-spare", {"node"}) as other:
        assert new_number(other) != first.number
        spare.down()
        assert other.is_up()
        assert Path("/sys/class/net", other.network.link).exists()


def new_number(cluster: Cluster) -> int:
    """Bring the node of a cluster up, without any program, and return the number of its network."""
    new_node(cluster.home, cluster.places, print)
    return cluster.network.number


def test_down_of_a_cluster_that_never_was_is_no_error(spare: Cluster) -> None:
    assert subprocess.run(command(spare, "down"), capture_output=True).returncode == 0


def test_a_record_of_another_process_with_the_same_number_is_not_believed(
    control_plane: Cluster,
) -> None:
    node = control_plane.node()
    other = Node(node.pid, node.start_time - 1, node.places)
    assert not other.is_alive()
    other.kill()
    assert control_plane.is_up()


def _kill_first_process(cluster: Cluster) -> None:
    os.kill(cluster.node().pid, signal.SIGKILL)
    for _ in until(60):
        if not cluster.is_up():
            return
    raise AssertionError("it is still up")


def _await_running(cluster: Cluster) -> None:
    for _ in until(120, pause_s=0.1):
        pods = cluster.api.get("/api/v1/namespaces/jobs/pods")["items"]
        if pods and all(pod["status"].get("phase") == "Running" for pod in pods):
            return
    raise AssertionError([pod["status"] for pod in pods])
