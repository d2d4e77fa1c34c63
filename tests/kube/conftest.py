"""A real API server with the operator's webhook, for the tests that ask it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster, builds, missing
from tests.cluster.layers import components
from tests.cluster.places import Home


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """Nothing runs pods there; or skips, with the one line that says what this machine lacks."""
    if lack := missing(["api"]):
        pytest.skip(lack)
    builds.build(Home.of_environment(), components(["api"]), [], print)
    cluster = Cluster("kube-render")
    cluster.down()
    cluster.up({"api"}, recipes=())
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def node() -> Iterator[Cluster]:
    """A cluster with a real kubelet and the image `python`; or skips, as above."""
    if lack := missing(["node"]):
        pytest.skip(lack)
    builds.build(Home.of_environment(), components(["node"]), ["pause", "python"], print)
    cluster = Cluster("kube-pods")
    cluster.down()
    cluster.up({"node"})
    yield cluster
    cluster.down()
