"""Jobs by a server with the oldest `kubernetes` package that it works with, on a real cluster: a
kubeconfig read, objects made and removed, watches, logs that are followed and broken off. What
needs no job is in tests/kube.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, becomes, ended, prints
from tests.contract.test_promises import MEET, STAY, texts
from tests.kit.environments import environment

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def older() -> Path:
    """Its interpreter; the project's other packages are those of this one."""
    return environment("kubernetes-35", ours_behind=True) / "bin" / "python"


@pytest.fixture(scope="module")
def reached(
    cluster: Cluster, older: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path_factory.mktemp("older"), cluster, "contract-older", python=older)
    yield place
    assert_nothing_is_left(place)
    place.close()


@pytest.fixture(scope="module")
def alone(
    cluster: Cluster, older: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    """Its pods can't reach it: it reads `pods/log`."""
    folder = tmp_path_factory.mktemp("older-alone")
    place = ClusterPlace(
        folder, cluster, "contract-older-alone", python=older, WORKER_SERVER_URL=""
    )
    yield place
    assert_nothing_is_left(place)
    place.close()


def test_jobs_run_are_cancelled_and_are_missed(reached: ClusterPlace, alone: ClusterPlace) -> None:
    runs = reached.job(MEET, n_workers=2)
    runs_alone = alone.job(MEET, n_workers=2)
    cancelled, deleted = reached.job(STAY, n_workers=2), reached.job(STAY)
    jobs = (runs, runs_alone, cancelled, deleted)
    for job in jobs:
        job.submit()
    prints(cancelled, "up", times=2)
    cancelled.cancel()
    becomes(deleted, State.RUNNING)
    reached.cluster.api.delete(f"{reached.jobs}/{deleted.name}")
    for job in (runs, runs_alone):
        assert ended(job).info().state is State.SUCCEEDED, job.info().message
        assert texts(job, rank=[0], stream=["stdout"]) == ["met rank 1"]
    assert ended(cancelled).info().state is State.CANCELLED
    assert texts(cancelled, stream=["stdout"]).count("asked to stop") == 2
    assert ended(deleted).info().reason is Reason.DELETED_EXTERNALLY


def test_it_finds_its_jobs_again_after_a_restart(reached: ClusterPlace) -> None:
    job = reached.job(STAY)
    job.submit()
    becomes(job, State.RUNNING)
    reached.restart(signal.SIGTERM)
    again = reached.client.get_job(str(job.name))
    again.cancel()
    assert ended(again).info().state is State.CANCELLED


def test_doctor_finds_nothing_wrong_with_the_cluster(reached: ClusterPlace) -> None:
    answer = requests.get(
        f"{reached.url}/api/v1/doctor",
        headers={"Authorization": f"Bearer {reached.token}"},
        timeout=60,
    )
    found = {check["name"]: (check["ok"], check["message"]) for check in answer.json()["checks"]}
    for name in (
        "cluster",
        "permissions",
        "training operator",
        "pod security",
        "worker connection",
    ):
        assert found[name][0], found[name]
    assert "vast" in found["catalogue"][1]  # which no node can take
