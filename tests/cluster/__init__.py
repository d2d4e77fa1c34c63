"""A real Kubernetes on this machine for tests: without Docker, without a registry, gone without a
trace.

For tests and for people at a prompt (`python -m tests.cluster --help`); README.md tells how it
works. It knows nothing of this project: the standard library and this folder are all it needs.

    cluster = Cluster("default")
    cluster.up({"node"})
    cluster.api.get("/api/v1/nodes")
    cluster.down()
"""

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError, Missing
from tests.cluster.layers import LAYERS
from tests.cluster.needs import missing

__all__ = ["LAYERS", "Cluster", "ClusterError", "Missing", "missing"]
