"""One real cluster for all tests of this folder that want one, under a name of its own, and gone at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, builds, missing
from tests.cluster.layers import components
from tests.cluster.places import Home


@pytest.fixture(scope="session")
def name() -> str:
    return "tool-tests"


@pytest.fixture(scope="session")
def able() -> None:
    """Everything is built; or skips, with the one line that says what the machine lacks."""
    if lack := missing(["node", "kwok"]):
        pytest.skip(lack)
    builds.build(Home.of_environment(), components(["node", "kwok"]), ["pause", "python"], print)


@pytest.fixture(scope="session")
def cluster(able: None, name: str) -> Iterator[Cluster]:
    """All layers."""
    cluster = Cluster(name)
    cluster.down()
    cluster.up({"node", "kwok"})
    yield cluster
    cluster.down()


@pytest.fixture
def spare(able: None) -> Iterator[Cluster]:
    """A second cluster, not up; whatever the test leaves of it is removed."""
    cluster = Cluster("tool-spare")
    cluster.down()
    yield cluster
    cluster.down()
