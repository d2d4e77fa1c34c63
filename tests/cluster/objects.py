"""The Kubernetes objects that a cluster begins with. Pure: (path, object) pairs for `Api.apply`."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.settings import JOBSET_WEBHOOK, KUEUE_API, KUEUE_WEBHOOK, TRAINER_WEBHOOK

OPERATOR_NAMESPACE = "kubeflow"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LEVELS = ("privileged", "baseline", "restricted")
KUEUE_GROUP = "kueue.x-k8s.io"
KUEUE = f"/apis/{KUEUE_GROUP}/v1beta2"
QUEUES = "cluster.test/queues"
"""Label of the namespaces whose jobs Kueue takes."""

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


def trainer(
    crds: Sequence[str], role: str, jobset_crd: str, jobset_role: str, pki: Path
) -> list[Applied]:
    """`crds` are those of Kubeflow Trainer, in the order of their names. The webhooks of JobSet for
    pods are left out: they matter where a job has a node of its own."""
    names = ("clustertrainingruntimes", "trainingruntimes", "trainjobs")
    group, version = "trainer.kubeflow.org", "v1alpha1"
    check = f"/validate-trainer-kubeflow-org-{version}"
    own, jobset_group = f"https://127.0.0.1:{TRAINER_WEBHOOK}", "jobset.x-k8s.io"
    of_jobset = f"https://127.0.0.1:{JOBSET_WEBHOOK}"
    return [
        (f"{CRDS}/jobsets.{jobset_group}", jobset_crd),
        *((f"{CRDS}/{name}.{group}", crd) for name, crd in zip(names, crds, strict=True)),
        (f"{RBAC}/clusterroles/jobset", jobset_role.replace("name: manager-role", "name: jobset")),
        (f"{RBAC}/clusterroles/kubeflow-trainer-controller-manager", role),
        _binding("jobset", "jobset"),
        _binding("kubeflow-trainer-controller-manager", "trainer-controller-manager"),
        _hook(
            "Mutating",
            group,
            version,
            "trainjobs",
            f"{own}/mutate-trainer-kubeflow-org-{version}-trainjob",
            pki,
        ),
        *(
            _hook("Validating", group, version, name, f"{own}{check}-{name.rstrip('s')}", pki)
            for name in names
        ),
        _hook(
            "Mutating",
            jobset_group,
            "v1alpha2",
            "jobsets",
            f"{of_jobset}/mutate-jobset-x-k8s-io-v1alpha2-jobset",
            pki,
        ),
        _hook(
            "Validating",
            jobset_group,
            "v1alpha2",
            "jobsets",
            f"{of_jobset}/validate-jobset-x-k8s-io-v1alpha2-jobset",
            pki,
        ),
    ]


def kueue(crds: Mapping[str, str], node_ip: str, pki: Path) -> list[Applied]:
    """`crds` by plural. Its webhooks for jobs see the namespaces with the label QUEUES alone:
    everywhere else jobs that name a queue go past it, as in a cluster without Kueue."""
    own = (f"{KUEUE_GROUP}", "v1beta2")
    jobs = [
        ("kubeflow.org", "v1", "pytorchjobs"),
        ("trainer.kubeflow.org", "v1alpha1", "trainjobs"),
    ]
    changed = [(*own, plural) for plural in ("clusterqueues", "resourceflavors", "workloads")]
    hooks = []
    for group, version, plural in [*jobs, *changed, (*own, "cohorts")]:
        path = f"{group.replace('.', '-')}-{version}-{plural.rstrip('s')}"
        url, where = (
            f"https://127.0.0.1:{KUEUE_WEBHOOK}",
            {QUEUES: "true"} if group != KUEUE_GROUP else {},
        )
        name = f"{plural}.{KUEUE_GROUP}"
        hooks.append(
            _hook(
                "Validating",
                group,
                version,
                plural,
                f"{url}/validate-{path}",
                pki,
                name,
                where=where,
            )
        )
        if plural != "cohorts":
            made = _hook(
                "Mutating",
                group,
                version,
                plural,
                f"{url}/mutate-{path}",
                pki,
                name,
                ("CREATE",),
                where,
            )
            hooks.append(made)
    return [
        *((f"{CRDS}/{plural}.{KUEUE_GROUP}", crd) for plural, crd in crds.items()),
        namespace("kueue-system", "privileged"),
        *_visibility(node_ip),
        *hooks,
    ]


def _visibility(node_ip: str) -> list[Applied]:
    """Kueue's API of waiting jobs, served beside the API server and not by pods."""
    core, name = "/api/v1/namespaces/kueue-system", "visibility-server"
    slices = "/apis/discovery.k8s.io/v1/namespaces/kueue-system/endpointslices"
    group, version = f"visibility.{KUEUE_GROUP}", "v1beta2"
    service = {"ports": [{"name": "https", "port": 443, "targetPort": KUEUE_API}]}
    api = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": name, "namespace": "kueue-system"},
    }
    return [
        (
            f"{core}/services/{name}",
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": service},
        ),
        (
            f"{slices}/{name}",
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [node_ip], "conditions": {"ready": True}}],
                "ports": [{"name": "https", "port": KUEUE_API}],
            },
        ),
        (
            f"/apis/apiregistration.k8s.io/v1/apiservices/{version}.{group}",
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"{version}.{group}"},
                "spec": api,
            },
        ),
    ]


def flavor(name: str) -> Applied:
    """A flavor of any node: the smallest object that Kueue's webhook checks."""
    return _of_kueue("ResourceFlavor", "resourceflavors", name, {})


def queue(namespace: str, name: str, cpu: str, **more: Any) -> list[Applied]:
    """A LocalQueue of so many cores of the flavor `plain`, and its ClusterQueue,
    `<namespace>-<name>`. `more`: fields of the latter."""
    quota = {"cpu": cpu, "memory": "64Gi", "ephemeral-storage": "900Gi"}
    resources = [{"name": each, "nominalQuota": amount} for each, amount in quota.items()]
    covered = {
        "coveredResources": list(quota),
        "flavors": [{"name": "plain", "resources": resources}],
    }
    shared, spec = (
        f"{namespace}-{name}",
        {"namespaceSelector": {}, "resourceGroups": [covered], **more},
    )
    return [
        _of_kueue("ClusterQueue", "clusterqueues", shared, spec),
        _of_kueue(
            "LocalQueue", f"namespaces/{namespace}/localqueues", name, {"clusterQueue": shared}
        ),
    ]


def _of_kueue(kind: str, plural: str, name: str, spec: dict[str, Any]) -> Applied:
    made = {
        "apiVersion": f"{KUEUE_GROUP}/v1beta2",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    return f"{KUEUE}/{plural}/{name}", made


def dns() -> list[Applied]:
    rules = [
        {
            "apiGroups": [""],
            "resources": ["services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "coredns"},
        "rules": rules,
    }
    return [(f"{RBAC}/clusterroles/coredns", role), _binding("coredns", "coredns")]


def fake_node(name: str, capacity: dict[str, str]) -> dict[str, Any]:
    """A node that KWOK pretends to be. Its taint keeps real pods away; pods
    that want it tolerate `kwok`.
    """
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
        "spec": {
            "pytorchReplicaSpecs": {
                "Master": {"replicas": 1, "restartPolicy": "Never", "template": template}
            }
        },
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
    sources = {
        "ca.crt": "ca.crt",
        "ca.key": "ca.key",
        "tls.crt": "webhook.crt",
        "tls.key": "webhook.key",
    }
    return f"/api/v1/namespaces/{OPERATOR_NAMESPACE}/secrets/{name}", {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {key: _base64(pki / source) for key, source in sources.items()},
    }


def _webhook(pki: Path) -> Applied:
    url = "https://127.0.0.1:9443/validate-kubeflow-org-v1-pytorchjob"
    name = "validator.training-operator.kubeflow.org"
    return _hook("Validating", "kubeflow.org", "v1", "pytorchjobs", url, pki, name)


def _hook(
    does: str,
    group: str,
    version: str,
    plural: str,
    url: str,
    pki: Path,
    name: str = "",
    operations: Sequence[str] = ("CREATE", "UPDATE"),
    where: Mapping[str, str] | None = None,
) -> Applied:
    """By address instead of by Service, for an operator runs beside the API server and not in a
    pod. `where`: labels of the namespaces that it is asked about."""
    name = name or f"{does.lower()}.{plural}.{group}"
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": list(operations),
        "resources": [plural],
    }
    return f"{WEBHOOKS}/{does.lower()}webhookconfigurations/{name}", {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{does}WebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": f"{does.lower()}.{plural}.{group}",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": url, "caBundle": _base64(pki / "ca.crt")},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "rules": [rule],
                "namespaceSelector": {"matchLabels": dict(where or {})},
            }
        ],
    }


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
