"""What the server asks of the Kubernetes API, as rules of a Role. Pure.

k8s/base/role.yaml and nodes.yaml grant exactly this (a test compares them); `doctor` asks the cluster for each line.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from server_stub.runtimes.kube.names import GROUP, PLURAL


class Permission(NamedTuple):
    """One verb on one kind of object. `resource` may be `pods/log`."""

    group: str
    resource: str
    verb: str

    @property
    def namespaced(self) -> bool:
        return self.resource != "nodes"

    def review(self, namespace: str) -> dict[str, Any]:
        """The SelfSubjectAccessReview that asks for it."""
        resource, _, part = self.resource.partition("/")
        asked = {"group": self.group, "resource": resource, "subresource": part, "verb": self.verb}
        where = {"namespace": namespace} if self.namespaced else {}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked | where},
        }

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


_VERBS = {
    (GROUP, PLURAL): ("create", "get", "list", "watch", "delete"),
    ("", "pods"): ("list", "watch"),
    ("", "pods/log"): ("get",),
    ("", "events"): ("list", "watch"),
    ("", "configmaps"): ("create", "get", "patch"),
    ("", "secrets"): ("create", "get"),
    ("networking.k8s.io", "networkpolicies"): ("create", "get"),
}
NEEDED = frozenset(Permission(group, resource, verb) for (group, resource), verbs in _VERBS.items() for verb in verbs)
"""Without one of these some job fails."""

FOR_DOCTOR = frozenset({Permission("", "namespaces", "get"), Permission("", "nodes", "list")})
"""Without one of these `doctor` sees less, and all else works."""

BESIDE_THE_OPERATOR = frozenset({Permission("apps", "deployments", "get")})
"""In the operator's namespace, where k8s/third-party grants it to everybody: `doctor` shows the operator's version."""
