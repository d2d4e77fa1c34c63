"""Both places; that of the cluster starts with the first test that wants it, and
is looked over after each.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.places import ClusterPlace, Place

GONE_S = 60.0


@pytest.fixture(scope="session")
def local_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("local"))
    yield place
    place.close()


@pytest.fixture(scope="session")
def cluster_place(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    place = ClusterPlace(tmp_path_factory.mktemp("cluster"), cluster)
    yield place
    place.close()


@pytest.fixture(scope="session")
def trainjob_place(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    """The same cluster with a server that makes TrainJobs."""
    place = ClusterPlace(
        tmp_path_factory.mktemp("trainjob"), cluster, "contract-trainjob", kind="trainjob"
    )
    yield place
    place.close()


PLACES = {"local": "local_place", "kubernetes": "cluster_place", "trainjob": "trainjob_place"}


@pytest.fixture(
    params=[
        "local",
        *(pytest.param(name, marks=pytest.mark.cluster) for name in ("kubernetes", "trainjob")),
    ]
)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    found: Place = request.getfixturevalue(PLACES[request.param])
    yield from looked_over(found)


@pytest.fixture(params=["kubernetes", "trainjob"])
def kube(request: pytest.FixtureRequest) -> Iterator[ClusterPlace]:
    """The cluster's places, for what only a cluster can do."""
    found: ClusterPlace = request.getfixturevalue(PLACES[request.param])
    yield from looked_over(found)


@pytest.fixture
def pytorch(cluster_place: ClusterPlace) -> Iterator[ClusterPlace]:
    """The place with PyTorchJobs, for what concerns their operator alone."""
    yield from looked_over(cluster_place)


P = TypeVar("P", bound=Place)


def looked_over(place: P) -> Iterator[P]:
    """Give the place to a test, which may leave nothing there."""
    yield place
    assert_nothing_is_left(place)


def assert_nothing_is_left(place: Place, limit_s: float = GONE_S) -> None:
    left: list[str] = []
    for _ in until(limit_s, pause_s=0.3):
        left = place.leftovers()
        if not left:
            return
    raise AssertionError(f"left over: {left}")


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test finds this user's own server or configuration."""
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path / "own-state"))
    monkeypatch.setenv("CLIENT_LIB_CONFIG", str(tmp_path / "config.toml"))
