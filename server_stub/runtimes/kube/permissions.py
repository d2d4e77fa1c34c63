"""The rights that the server needs in the Kubernetes API, as rules of a Role. Pure.

k8s/base/role.yaml and nodes.yaml grant exactly these (a test compares them), and `doctor` checks each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from server_stub.runtimes.kube.workload import WorkloadKind


class Permission(NamedTuple):
    """One verb on one kind of object. `resource` may be a part of an object, such as `pods/log`."""

    group: str
    resource: str
    verb: str

    @property
    def namespaced(self) -> bool:
        return self.resource != "nodes"

    def review(self, namespace: str) -> dict[str, Any]:
        """The SelfSubjectAccessReview that checks this right."""
        resource, _, part = self.resource.partition("/")
        attributes = {"group": self.group, "resource": resource, "subresource": part, "verb": self.verb}
        where = {"namespace": namespace} if self.namespaced else {}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes | where},
        }

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


_VERBS = {
    ("", "pods"): ("list", "watch"),
    ("", "pods/log"): ("get",),
    ("", "events"): ("list", "watch"),
    ("", "configmaps"): ("create", "get", "patch"),
    ("", "secrets"): ("create", "get"),
    ("networking.k8s.io", "networkpolicies"): ("create", "get"),
}


def needed(kind: WorkloadKind) -> frozenset[Permission]:
    """The rights without which jobs of this kind fail."""
    verbs = {**_VERBS, (kind.group, kind.plural): ("create", "get", "list", "watch", "delete")}
    return frozenset(Permission(group, resource, verb) for (group, resource), each in verbs.items() for verb in each)


FOR_DOCTOR = frozenset({Permission("", "namespaces", "get"), Permission("", "nodes", "list")})
"""Rights of `doctor` alone: without them it checks less, and everything else works."""
