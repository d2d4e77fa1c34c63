"""For pytest: clusters that tests of all folders share. Each starts with the first test that wants
it, once in a run.

A conftest at the top loads them: `pytest_plugins = ["tests.cluster.fixtures"]`. A test that breaks
what others use takes a cluster of its own, by `running`. Where the machine lacks something, tests
skip with the line that says what.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.locks import first_free
from tests.cluster.needs import missing
from tests.cluster.places import Home


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one worker of pytest-xdist, and on one all tests that share
    `control_plane`, which then starts once.
    """
    for item in items:
        if item.get_closest_marker("cluster"):
            shares = "control_plane" in getattr(item, "fixturenames", ())
            group = "control plane" if shares else ".".join(item.path.with_suffix("").parts[-2:])
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Pods run on its real node, and on fake ones once a test makes some."""
    with running("tests", {"node", "kwok", "trainer"}) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Cluster]:
    """The API server with the operator: objects are checked and kept, and no pod ever runs."""
    with running("tests-api", {"api"}) as cluster:
        yield cluster


@contextmanager
def running(
    name: str, layers: Collection[str], recipes: Iterable[str] = ("python",)
) -> Iterator[Cluster]:
    """A cluster of these layers that is up; or the test skips."""
    with own(name, layers) as cluster:
        cluster.up(layers, recipes, print)
        yield cluster


@contextmanager
def own(name: str, layers: Collection[str]) -> Iterator[Cluster]:
    """A cluster that is not up and that no other run of tests has; whatever is made of it is gone
    afterwards.

    Two runs at once have two: `name` and `name-2`. A later run takes a name over, with its store of
    images.
    """
    if lack := missing(layers):
        pytest.skip(lack)
    home = Home.of_environment()
    clusters = (Cluster(f"{name}-{number}" if number > 1 else name, home) for number in count(1))
    with first_free(clusters, lambda cluster: cluster.places.taken) as cluster:
        cluster.down()  # a run that was killed may have left it
        try:
            yield cluster
        finally:
            cluster.down()
