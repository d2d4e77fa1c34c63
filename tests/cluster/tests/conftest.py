"""Beside the cluster that all tests share, one for what is done to whole clusters."""

from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.cluster.fixtures import own


@pytest.fixture
def spare() -> Iterator[Cluster]:
    """Not up; whatever the test leaves of it is removed."""
    with own("tests-spare", {"node", "kwok"}) as cluster:
        yield cluster
