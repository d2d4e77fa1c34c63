"""The Kubernetes objects that a cluster begins with. Pure: (path, object) pairs for `Api.apply`."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

OPERATOR_NAMESPACE = "kubeflow"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEVELS = ("privileged", "baseline", "restricted")

Applied = tuple[str, dict[str, Any] | str]


def namespace(name: str, level: str) -> Applied:
    """With Pod Security enforced at `level`, which is one of LEVELS."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    return f"/api/v1/namespaces/{name}", {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": labels},
    }


def operator(crd: str, role: str, pki: Path) -> list[Applied]:
    """`crd` and `role`: the operator's own YAML."""
    return [
        namespace(OPERATOR_NAMESPACE, "privileged"),
        (f"{CRDS}/pytorchjobs.kubeflow.org", crd),
        (f"{RBAC}/clusterroles/training-operator", role),
        _binding("training-operator", "training-operator"),
        _webhook_certificate(pki),
        _webhook(pki),
    ]


def dns() -> list[Applied]:
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "coredns"},
        "rules": rules,
    }
    return [(f"{RBAC}/clusterroles/coredns", role), _binding("coredns", "coredns")]


def fake_node(name: str, capacity: dict[str, str]) -> dict[str, Any]:
    """A node that KWOK pretends to be. Its taint keeps real pods away; pods that want it tolerate `kwok`."""
    capacity = {"ephemeral-storage": "1Ti", **capacity}  # every kubelet says how large its disk is
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [{"key": "kwok", "effect": "NoSchedule"}]},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def probe_job() -> dict[str, Any]:
    """The smallest PyTorchJob that the webhook accepts, for a dry run."""
    template = {"spec": {"containers": [{"name": "pytorch", "image": "localhost/none"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "probe"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never", "template": template}}},
    }


def _binding(role: str, user: str) -> Applied:
    return f"{RBAC}/clusterrolebindings/{role}", {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }


def _webhook_certificate(pki: Path) -> Applied:
    """The operator's rotator leaves a Secret alone that holds a whole and valid pair."""
    name = "training-operator-webhook-cert"
    sources = {"ca.crt": "ca.crt", "ca.key": "ca.key", "tls.crt": "webhook.crt", "tls.key": "webhook.key"}
    return f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/{name}", {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {key: _base64(pki / source) for key, source in sources.items()},
    }


def _webhook(pki: Path) -> Applied:
    """By address instead of by Service, for the operator runs beside the API server and not in a pod."""
    url = "https://127.0.0.1:9443/validate-kubeflow-org-v1-pytorchjob"
    name = "validator.training-operator.kubeflow.org"
    rule = {
        "apiGroups": ["kubeflow.org"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pytorchjobs"],
    }
    return f"{WEBHOOKS}/{name}", {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "validator.pytorchjob.training-operator.kubeflow.org",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": url, "caBundle": _base64(pki / "ca.crt")},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "rules": [rule],
            }
        ],
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
