"""`pytorch_elastic` on a real cluster, with torchrun's real agents: what its group survives, and
what it does not.

What is the same on this machine is in tests/runtimes/test_elastic.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from client_lib import Job
from client_lib.spec.states import State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import looked_over
from tests.contract.places import CATALOGUE, ClusterPlace, becomes, ended, prints
from tests.contract.test_shared_folders import home_of, make_volume
from tests.kit.elastic_training import TRAINS

PATIENCE_S = 120.0
FOR_TORCH = "instance_types:\n  - {name: trainer, cpu: 0.8, memory_gib: 1}\n"
ONCE = """
import os, time
print("attempt", os.environ["CLIENT_LIB_ATTEMPT"], flush=True)
time.sleep(600 if os.environ["CLIENT_LIB_ATTEMPT"] == "1" else 0)
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500)]


@pytest.fixture(scope="module", params=["pytorchjob", "trainjob"])
def elastic_place(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    """Checkpoints are on a volume; pods run Debian's torch."""
    namespace = f"elastic-{request.param}"
    cluster.load("torch")
    folder = tmp_path_factory.mktemp("elastic")
    home = home_of(folder)
    cluster.namespace(namespace)
    make_volume(cluster, home, namespace)
    catalogue = (
        CATALOGUE.replace("instance_types:\n", FOR_TORCH).replace(
            "localhost/python", "localhost/torch"
        )
        + f"volumes: [{{name: home, claim: home, always: {home}, mount: whole}}]\n"
        + f"checkpoints: {{volume: home, path: {home}/checkpoints}}\n"
    )
    place = ClusterPlace(folder, cluster, namespace, catalogue=catalogue, kind=request.param)
    yield place
    place.close()


@pytest.fixture
def place(elastic_place: ClusterPlace) -> Iterator[ClusterPlace]:
    yield from looked_over(elastic_place)


class Group:
    """An elastic job of two workers that trains until it is told to stop."""

    def __init__(self, place: ClusterPlace, script: str = TRAINS, **fields: Any) -> None:
        variables = {"OMP_NUM_THREADS": "1", "CLIENT_LIB_RDZV_CONF": "last_call_timeout=4"}
        given = {
            "type": "pytorch_elastic",
            "n_workers": 2,
            "elastic_min_workers": 1,
            "env_variables": variables,
        }
        self.place = place
        self.job: Job = place.job(script, **{**given, "instance_type": "trainer", **fields})
        self.job.submit()

    @property
    def checkpoints(self) -> Path:
        (found,) = (self.place.folder / "home" / "checkpoints").glob(f"{self.job.name}-*")
        return found

    def begun(self) -> list[list[str]]:
        """The words of the lines of ranks that began: 0 of 2 at 17 pid 4711. Each line
        has to carry its own rank.
        """
        found = []
        for entry in self.job.log_entries(follow=False, stream=["stdout"]):
            words = entry.text.split()
            if words[:1] == ["begin"]:
                assert str(entry.rank) == words[1], entry
                found.append(words[1:])
        return found

    def until(self, true: Callable[[], Any]) -> None:
        for _ in until(PATIENCE_S, pause_s=0.3):
            if true():
                return
            info = self.job.info()
            assert not info.state.final, (info.reason, info.message)
        lines = [entry.text for entry in self.job.log_entries(follow=False)][-40:]
        raise AssertionError((self.begun(), self.job.info().message, lines))

    def until_both_train(self) -> None:
        self.until(lambda: len(self.begun()) == 2 and self.step() > 3)

    def step(self) -> int:
        path = self.checkpoints / "step"
        return int(path.read_text()) if path.exists() else 0

    def resumed(self, size: str, step: int) -> set[str]:
        """The ranks of a group of that size that went on from a later step."""
        return {words[0] for words in self.begun() if words[2] == size and int(words[4]) > step}

    def pod(self, worker: int) -> dict[str, Any]:
        return self.place.pods(self.job)[worker]

    def uid(self, worker: int) -> str:
        return str(self.pod(worker)["metadata"]["uid"])

    def delete_pod(self, worker: int) -> None:
        name = self.pod(worker)["metadata"]["name"]
        self.place.cluster.api.delete(f"/api/v1/namespaces/{self.place.namespace}/pods/{name}")

    def stop_and_end(self) -> None:
        (self.checkpoints / "stop").touch()
        info = ended(self.job).info()
        assert (info.state, info.attempt) == (State.SUCCEEDED, 1), info.message

    def sequences_are_whole(self) -> bool:
        """No record of the log is lost or repeated, whichever pod wrote it."""
        folder = (
            self.place.folder
            / "state"
            / "data"
            / "jobs"
            / self.job.info().id
            / "attempts"
            / "1"
            / "workers"
        )
        for worker in range(2):
            files = sorted((folder / str(worker) / "log").glob("*.log"))
            numbers = [
                int(line.split(b" ", 1)[0])
                for path in files
                for line in path.read_bytes().splitlines()
            ]
            if numbers != list(range(len(numbers))):
                return False
        return True


@contextmanager
def cordoned(cluster: Cluster) -> Iterator[None]:
    """No pod is placed meanwhile."""
    nodes = [
        f"/api/v1/nodes/{node['metadata']['name']}"
        for node in cluster.api.get("/api/v1/nodes")["items"]
    ]

    def set_all(unschedulable: bool | None) -> None:
        for node in nodes:
            cluster.api.merge(node, {"spec": {"unschedulable": unschedulable}})

    set_all(True)
    try:
        yield
    finally:
        set_all(None)


def test_the_group_re_forms_around_a_killed_rank_a_lost_worker_and_one_that_comes_back(
    place: ClusterPlace,
) -> None:
    group = Group(place)
    group.until_both_train()
    (group.checkpoints / "kill-1").touch()
    group.until(lambda: group.resumed("2", 3) == {"0", "1"})

    first, at = group.uid(1), group.step()
    group.until(lambda: group.step() > at)
    with cordoned(place.cluster):
        group.delete_pod(1)
        group.until(lambda: group.resumed("1", at) == {"0"})
        assert group.job.info().message == "worker 1 was lost; 1 of 2 go on"
        assert group.job.info().state is State.RUNNING
        alone_at = group.step()
        group.until(lambda: group.step() > alone_at)
    group.until(lambda: group.resumed("2", alone_at) == {"0", "1"})
    assert group.uid(1) != first
    group.until(lambda: group.job.info().message == "")
    group.stop_and_end()
    assert group.sequences_are_whole()


def test_the_loss_of_worker_0_ends_the_attempt_and_the_next_is_a_whole_gang(
    place: ClusterPlace,
) -> None:
    group = Group(place, ONCE, max_retry=1)
    prints(group.job, "attempt 1", times=2)
    becomes(group.job, State.RUNNING)
    group.delete_pod(0)
    info = ended(group.job, 150).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2), info.message
    told = [event.message for event in group.job.events()]
    assert any("the pod of worker 0 was deleted by someone else" in message for message in told), (
        told
    )
