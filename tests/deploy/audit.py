"""The requests of pods to the API server, from its own audit log."""

import json

from server_stub.runtimes.kube.doctor import Permission
from tests.cluster import Cluster

READ_DEPLOYMENT = frozenset({Permission("apps", "deployments", "get")})
"""Right in the operator's namespace that k8s/third-party grants to everybody: `doctor`
shows the operator's version.
"""


def asked_by_pods(
    cluster: Cluster, namespace: str, account: str = "client-lib-server"
) -> set[Permission]:
    """Every verb on every kind of object, but for questions about its own
    rights; refused requests too.
    """
    user = f"system:serviceaccount:{namespace}:{account}"
    lines = (cluster.places.log / "audit.log").read_text().splitlines()
    found = [
        entry
        for entry in map(json.loads, lines)
        if entry["user"]["username"] == user and "objectRef" in entry
    ]
    return {
        _permission(entry)
        for entry in found
        if "review" not in entry["objectRef"].get("resource", "review")
    }


def _permission(entry: dict[str, dict[str, str]]) -> Permission:
    asked = entry["objectRef"]
    resource = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
    return Permission(asked.get("apiGroup", ""), resource, str(entry["verb"]))
