"""Checks of the cluster and of the server's rights in it, each with its fix. Nothing is changed.

The checks block. A check that the server may not make is reported, and is no failure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.wire import Check
from server_stub.runtimes.checks import checked
from server_stub.runtimes.kube import pod_templates
from server_stub.runtimes.kube.api import Api, ApiError, find, serves
from server_stub.runtimes.kube.catalogue import (
    ClusterCatalogue,
    InstanceType,
    Placement,
    Toleration,
)
from server_stub.runtimes.kube.observe.messages import amount, quantity
from server_stub.runtimes.kube.options import ClusterOptions
from server_stub.runtimes.kube.queues import is_queued
from server_stub.runtimes.kube.render import storage
from server_stub.runtimes.kube.workload import POD_GROUPS, WorkloadKind

KUEUE = "/apis/kueue.x-k8s.io"
LEVEL = "pod-security.kubernetes.io/enforce"
LEVELS = ("privileged", "baseline", "restricted")  # each level admits less than the previous level
Json = Mapping[str, Any]
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


def checks(api: Api, cluster: ClusterOptions, others: Iterable[ClusterOptions] = ()) -> list[Check]:
    """One result per check, good or bad. `others`: the namespaces of teams."""
    found: list[Check] = []
    try:
        for check in _checks(api, cluster):
            found.append(check)  # checks before an error are kept
        for other in others:
            for check in _in_namespace(api, other):
                found.append(replaced(check, name=f"{check.name} in {other.namespace}"))
    except ApiError as error:
        fix = "check the kubeconfig, and whether the cluster is up"
        found.append(checked("cluster", f"{api.host}: {error.message}", fix))
    return found


def _checks(api: Api, cluster: ClusterOptions) -> Iterator[Check]:
    catalogue = cluster.catalogue
    url = cluster.settings.worker_server_url
    version = api.get("/version").get("gitVersion", "?")
    yield checked(
        "cluster", f"{api.host} answers, Kubernetes {version}, namespace {cluster.namespace}"
    )
    yield from _in_namespace(api, cluster)
    if catalogue.gang.scheduler != "none":
        yield _gangs(api, cluster)
    yield _catalogue(api, catalogue)
    if pod_templates.templated(catalogue):
        yield _pod_templates(api, cluster)
    apart = [volume.name for volume in catalogue.volumes if not volume.whole]
    shared = [volume.name for volume in catalogue.volumes if volume.whole]
    parts = [f"each user sees a folder of their own on {', '.join(apart)}"] if apart else []
    parts += [f"all users see the same files on {', '.join(shared)}"] if shared else []
    if parts:
        yield checked("volumes", "; ".join(parts))
    open_ = "pods of other jobs reach those of a job: network.isolated is false in the catalogue"
    isolated = (
        "the pods of a job are reached by each other and this server alone, if the cluster's "
        "network plugin enforces NetworkPolicies, which this check can't find out"
    )
    yield checked("network", isolated if catalogue.network.isolated else open_)
    unreached = (
        "workers can't reach this server: their logs come from the cluster, which loses lines of "
        "fast output"
    )
    fix = None if url else "CLIENT_LIB_SERVER_WORKER_SERVER_URL, the URL of this server for pods"
    yield checked(
        "worker connection", f"workers send their logs to {url}" if url else unreached, fix
    )


def _in_namespace(api: Api, cluster: ClusterOptions) -> Iterator[Check]:
    """The checks of what differs between namespaces."""
    yield _permissions(api, cluster)
    yield cluster.kind.check(api, cluster.namespace)
    yield _pod_security(api, cluster)
    if cluster.catalogue.volumes:
        yield _claims(api, cluster)
    if find(api, KUEUE, may_be_hidden=True) is None:  # as on most clusters
        return
    kind = cluster.kind
    try:
        queued = is_queued(api, kind, cluster.namespace)
    except ApiError:
        return  # the check of the operator reports it
    message = f"Kueue takes {kind.name}s: jobs may name a queue"
    if not queued:
        message = (
            f"Kueue takes no {kind.name}s: a job that names a queue is refused; to change that, "
            "add "
        )
        message += f"{kind.kueue_framework} to integrations.frameworks of its configuration"
    yield checked("queues", message)


def _permissions(api: Api, cluster: ClusterOptions) -> Check:
    required = needed(cluster.kind)
    answers = {
        each: api.request("POST", _REVIEWS, each.review(cluster.namespace))
        for each in required | OPTIONAL
    }
    lacking = sorted(
        each for each, answer in answers.items() if not answer.get("status", {}).get("allowed")
    )
    missing = [str(each) for each in lacking if each in required]
    if not missing:
        optional = f", but for what is optional: {', '.join(map(str, lacking))}" if lacking else ""
        return checked("permissions", f"all there{optional}")
    if len(missing) == len(required):
        may_not = "may do nothing"
        fix = (
            "create the namespace if it is missing, and apply k8s/base/role.yaml in it, as "
            "docs/kubernetes.md shows"
        )
    else:
        may_not = f"may not {', '.join(missing)}"
        fix = (
            "grant what k8s/base/role.yaml has: `kubectl apply -k` of the server's overlay, or to "
            "its user by hand"
        )
    return checked("permissions", f"the server {may_not} in namespace {cluster.namespace}", fix)


def _claims(api: Api, cluster: ClusterOptions) -> Check:
    """The claims of the catalogue's volumes, of which a missing one keeps its jobs waiting."""
    folder = f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims"
    claims = sorted({volume.claim for volume in cluster.catalogue.volumes})
    try:
        missing = [claim for claim in claims if find(api, f"{folder}/{claim}") is None]
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return checked("claims", "not known: this server may not get persistentvolumeclaims")
    if missing:
        message = f"namespace {cluster.namespace} has no PersistentVolumeClaim {', '.join(missing)}"
        fix = "create what is missing, or correct `claim` of the catalogue's volumes"
        return checked("claims", f"{message}: jobs that mount it don't start", fix)
    return checked("claims", f"namespace {cluster.namespace} has {', '.join(claims)}")


def _gangs(api: Api, cluster: ClusterOptions) -> Check:
    gang = cluster.catalogue.gang.scheduler
    if not serves(api, POD_GROUPS[gang], "podgroups"):
        product = "Volcano" if gang == "volcano" else "scheduler-plugins"
        fix = f"install {product} in the cluster, or remove gang.scheduler from the catalogue"
        return checked(
            "gang scheduling",
            f"the cluster has no resource type PodGroup of {POD_GROUPS[gang]}",
            fix,
        )
    if problem := cluster.kind.gang_problem(api):
        return checked("gang scheduling", *problem)
    return checked(
        "gang scheduling", f"{gang}: each job has a PodGroup, and its pods get nodes together"
    )


def _pod_security(api: Api, cluster: ClusterOptions) -> Check:
    level = cluster.catalogue.pod_security
    namespace = find(api, f"/api/v1/namespaces/{cluster.namespace}", may_be_hidden=True)
    if namespace is None:
        message = f"pods keep to {level}; the server may not see the level that is enforced"
        return checked("pod security", message)
    enforced = (namespace["metadata"].get("labels") or {}).get(LEVEL, "privileged")
    message = f"namespace {cluster.namespace} enforces {enforced}, pods keep to {level}"
    if LEVELS.index(enforced) > LEVELS.index(level):
        fix = f"pod_security: {enforced} in the catalogue, or a namespace that admits more"
        return checked("pod security", f"{message}: they will be refused", fix)
    if enforced == "restricted" and (problem := cluster.kind.restricted_problem(api)):
        return checked("pod security", *problem)
    return checked("pod security", message)


def _catalogue(api: Api, catalogue: ClusterCatalogue) -> Check:
    listed = find(api, "/api/v1/nodes", may_be_hidden=True)
    if listed is None:
        return checked(
            "catalogue",
            "not compared with the nodes: the server may not list them (k8s/base/nodes.yaml)",
        )
    nodes = [node for node in listed["items"] if not (node.get("spec") or {}).get("unschedulable")]
    misfits = {each.name: misfit(each, catalogue, nodes) for each in catalogue.instance_types}
    wrong = [f"{name}: {why}" for name, why in misfits.items() if why]
    if wrong:
        fix = (
            "correct the catalogue; or ignore this if an autoscaler adds such nodes when they are "
            "needed"
        )
        return checked("catalogue", f"no node could take a worker of {'; '.join(wrong)}", fix)
    return checked(
        "catalogue", f"each of {len(misfits)} instance types fits one of {len(nodes)} nodes"
    )


def _pod_templates(api: Api, cluster: ClusterOptions) -> Check:
    wrong = pod_templates.refused(api, cluster)
    if wrong:
        message = "; ".join(f"that of {name} is refused: {why}" for name, why in wrong.items())
        fix = "correct them until `client-lib server check FILE` finds no error"
        return checked("pod templates", message, fix)
    names = ", ".join(each.name for each in pod_templates.templated(cluster.catalogue))
    return checked("pod templates", f"the cluster takes those of {names}")


# --- rights: k8s/base/role.yaml and nodes.yaml grant exactly these (a test compares them)


class Permission(NamedTuple):
    """One verb on one kind of object. `resource` may be a part of an object, such as `pods/log`."""

    group: str
    resource: str
    verb: str

    def review(self, namespace: str) -> dict[str, Any]:
        """The SelfSubjectAccessReview that checks this right."""
        resource, _, part = self.resource.partition("/")
        attributes = {
            "group": self.group,
            "resource": resource,
            "subresource": part,
            "verb": self.verb,
        }
        if resource not in ("nodes", "clusterqueues"):
            attributes["namespace"] = namespace
        spec = {"resourceAttributes": attributes}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": spec,
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
    verbs |= {(kind.group, plural): ("create",) for plural in kind.bases.values()}
    if kind.applied:
        verbs[kind.applied.group, kind.applied.plural] = ("get",)
    return frozenset(
        Permission(group, resource, verb)
        for (group, resource), each in verbs.items()
        for verb in each
    )


OPTIONAL = frozenset(
    {
        Permission("", "namespaces", "get"),
        Permission("", "nodes", "list"),
        Permission("", "persistentvolumeclaims", "get"),
        Permission("kueue.x-k8s.io", "localqueues", "get"),
        Permission("kueue.x-k8s.io", "clusterqueues", "get"),
        Permission("visibility.kueue.x-k8s.io", "localqueues/pendingworkloads", "get"),
    }
)
"""Rights without which `doctor` checks less, or a job does not tell its place in a
queue; everything else works.
"""


# --- nodes: entries of the catalogue that no node fits, even if the node were idle. Affinity,
# quotas and volumes are not looked at.


def misfit(
    instance: InstanceType, catalogue: ClusterCatalogue, nodes: Sequence[Json]
) -> str | None:
    """Message why no node could take a worker of this type; None: some node could."""
    place = catalogue.placement(instance)
    keys = {key for key in (instance.together, instance.spread) if key is not None}
    labels = [(node, node["metadata"].get("labels") or {}) for node in nodes]
    labelled = [
        node
        for node, has in labels
        if place.node_selector.items() <= has.items() and keys <= has.keys()
    ]
    if not labelled:
        listed = ", ".join(
            [*(f"{key}={value}" for key, value in place.node_selector.items()), *sorted(keys)]
        )
        return f"no node has the labels {listed}" if listed else "there is no node that takes pods"
    untainted = [node for node in labelled if not _refusing_taints(node, place)]
    if not untainted:
        taints = {
            taint.get("key", "") for node in labelled for taint in _refusing_taints(node, place)
        }
        return f"its nodes have taints that it does not tolerate: {', '.join(sorted(taints))}"
    need = catalogue.needs(JobSpec(script="x.py", instance_type=instance.name))
    # in cores, bytes and devices
    wanted = {"cpu": need.cpu_m / 1000, "memory": float(need.memory_mib * 2**20)}
    wanted["ephemeral-storage"] = float(storage.disk_request_mib(need) * 2**20)
    if need.gpus:
        wanted[instance.gpu_resource] = float(need.gpus)
    wanted |= {name: quantity(text) or 0.0 for name, text in instance.extra_resources.items()}

    def lacks(node: Json) -> dict[str, float]:
        """The resources of which the node has too little, and how much it has."""
        there = (node.get("status") or {}).get("allocatable") or {}
        has = {name: quantity(str(there.get(name, 0))) or 0.0 for name in wanted}
        return {name: size for name, size in has.items() if size < wanted[name]}

    nearest = min(untainted, key=lambda node: len(lacks(node)))
    gives = f"{nearest['metadata']['name']} gives"
    why = [
        f"{amount(name, wanted[name])}, and {gives} {amount(name, has)}"
        for name, has in lacks(nearest).items()
    ]
    return f"it wants {'; '.join(why)}" if why else None


def _refusing_taints(node: Json, place: Placement) -> list[Json]:
    taints = (node.get("spec") or {}).get("taints") or ()
    refusing = [taint for taint in taints if taint.get("effect") in ("NoSchedule", "NoExecute")]
    return [
        taint
        for taint in refusing
        if not any(_tolerates(each, taint) for each in place.tolerations)
    ]


def _tolerates(toleration: Toleration, taint: Json) -> bool:
    if toleration.effect not in (None, taint.get("effect")) or toleration.key not in (
        None,
        taint.get("key"),
    ):
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == taint.get("value", "")
