"""Where the real schedulers put the workers of a job: near each other,
apart, and all of them or none.
"""

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server_stub.runtimes.kube import doctor
from server_stub.runtimes.kube.api import Api, connect
from server_stub.runtimes.kube.catalogue import Gang, GangScheduler
from server_stub.runtimes.kube.objects_api import ObjectsApi
from server_stub.runtimes.kube.observe import ClusterState, observe as interpreted
from server_stub.runtimes.kube.observe.inventory import parse_pod, parse_workload
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import POD_GROUPS, SCHEDULERS, WorkloadKind
from server_stub.worker_gateway.worker import WorkerView
from tests.cluster import Cluster, builds, programs
from tests.cluster.errors import ApiError
from tests.cluster.fixtures import running
from tests.cluster.waiting import until
from tests.kube.cases import CLUSTER, Builder, Case, offering

NODES = {"big": ("a", 64), "small-1": ("b", 8), "small-2": ("c", 8)}
"""Zone and cores."""
CATALOGUE = """
images: {default: "python:3.12"}
instance_types:
  - {name: free, cpu: 1, memory_gib: 1, PLACE}
  - {name: near, cpu: 1, memory_gib: 1, together: zone, PLACE}
  - {name: apart, cpu: 1, memory_gib: 1, spread: node, PLACE}
  - {name: large, cpu: 20, memory_gib: 1, PLACE}
""".replace(
    "PLACE",
    "node_selector: {type: kwok}, tolerations: [{key: kwok, operator: Exists}], annotations: "
    "{cluster.test/fate: hang}",
)
GANG: GangScheduler = "coscheduling"
WITH_GANGS = f"gang: {{scheduler: {GANG}}}\n"
kinds = pytest.mark.parametrize("kind", [PYTORCHJOB, TRAINJOB], ids=lambda kind: kind.name)

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running("tests-placement", {"kwok", "trainer"}) as cluster:
        for name, (zone, cores) in NODES.items():
            cluster.fake_nodes(1, {"cpu": str(cores), "memory": "64Gi", "pods": "110"}, name)
            cluster.api.merge(
                f"/api/v1/nodes/{name}-0", {"metadata": {"labels": {"zone": zone, "node": name}}}
            )
        yield cluster


@pytest.fixture(scope="module")
def gangs(cluster: Cluster) -> Cluster:
    """With the scheduler of scheduler-plugins, and a training operator that makes PodGroups."""
    builds.build(cluster.home, ["coscheduling"], [], print)
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/podgroups.scheduling.x-k8s.io"
    cluster.api.apply(
        crds, programs.asset(cluster.home, "coscheduling", "scheduling.x-k8s.io_podgroups.yaml")
    )
    _grant(cluster, "system:kube-scheduler")
    config = cluster.places.config / "coscheduling.json"
    plugin = {"enabled": [{"name": "Coscheduling"}]}
    profile = {
        "schedulerName": SCHEDULERS[GANG],
        "plugins": {"multiPoint": plugin, "queueSort": {**plugin, "disabled": [{"name": "*"}]}},
    }
    settings = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(cluster.places.config / "kube-scheduler.kubeconfig")
        },
        "profiles": [profile],
    }
    config.write_text(json.dumps(settings))
    argv = [
        str(programs.path(cluster.home, "coscheduling")),
        f"--config={config}",
        "--secure-port=0",
    ]
    cluster.node().start("coscheduling", argv, {})
    operator = cluster.programs()["training-operator"]
    cluster.stop("training-operator")
    flag = f" --gang-scheduler-name={SCHEDULERS[GANG]}"
    cluster.node().start(
        "training-operator", [*operator.argv[:-1], operator.argv[-1] + flag], operator.env
    )
    cluster.stop("trainer-controller-manager")  # it watches PodGroups that it finds at its start
    cluster.start("trainer-controller-manager")
    return cluster


def _grant(cluster: Cluster, user: str) -> None:
    rbac = "rbac.authorization.k8s.io"
    rule = {
        "apiGroups": ["scheduling.x-k8s.io"],
        "resources": ["podgroups", "podgroups/status"],
        "verbs": ["*"],
    }
    binding = {"roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "podgroups"}}
    binding["subjects"] = [{"apiGroup": rbac, "kind": "User", "name": user}]  # type: ignore[assignment]  # a JSON object
    for kind, more in (("ClusterRole", {"rules": [rule]}), ("ClusterRoleBinding", binding)):
        made = {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": "podgroups"}, **more}
        cluster.api.apply(f"/apis/{rbac}/v1/{kind.lower()}s/podgroups", made)


def case(
    kind: WorkloadKind, instance_type: str, workers: int, namespace: str = "jobs", more: str = ""
) -> Case:
    name = f"{instance_type}-{workers}-{kind.name.lower()}"
    spec = {"instance_type": instance_type, "n_workers": workers}
    made = Builder(
        CATALOGUE + more, cluster=replace(CLUSTER, namespace=namespace), spec=spec
    ).build(name)
    return replace(made, attempt=replace(made.attempt, job_id=uuid.uuid4().hex))


def create(cluster: Cluster, kind: WorkloadKind, made: Case) -> str:
    """Name of the job."""
    api, objects, namespace = (
        connect(cluster.kubeconfig, None),
        made.objects(kind),
        made.cluster.namespace,
    )
    place, name = ObjectsApi(api, namespace, kind), str(objects.workload["metadata"]["name"])
    if objects.base is not None:
        place.create_base(objects.base)
    for _ in until(30, pause_s=0.2):
        try:
            cluster.api.create(kind.collection(namespace), objects.workload)
            break
        except ApiError as error:  # the webhooks know the runtime a moment later, and restart
            if "not found" not in str(error) and error.status != 500:
                raise
    return name


def pods(cluster: Cluster, job: str, namespace: str = "jobs") -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=client-lib.io%2Fjob-name%3D{job}"
    found: list[dict[str, Any]] = cluster.api.get(path)["items"]
    return found


def placed(cluster: Cluster, job: str, count: int, namespace: str = "jobs") -> Counter[str]:
    """Numbers of pods by node, once so many have one."""
    nodes: list[str] = []
    for _ in until(60, pause_s=0.3):
        nodes = [
            pod["spec"]["nodeName"]
            for pod in pods(cluster, job, namespace)
            if "nodeName" in pod["spec"]
        ]
        if len(nodes) == count:
            break
    return Counter(nodes)


def remove(cluster: Cluster, kind: WorkloadKind, job: str, namespace: str = "jobs") -> None:
    cluster.api.delete(f"{kind.collection(namespace)}/{job}")
    for _ in until(60, pause_s=0.3):
        if not pods(cluster, job, namespace):
            return
    raise AssertionError(f"{job} has pods")


@kinds
def test_workers_are_placed_together_or_apart(cluster: Cluster, kind: WorkloadKind) -> None:
    near = create(cluster, kind, case(kind, "near", 7))
    apart = create(cluster, kind, case(kind, "apart", 6))
    assert sorted(placed(cluster, near, 7).values()) == [7]
    remove(cluster, kind, near)  # its pods may fill a node
    assert sorted(placed(cluster, apart, 6).values()) == [2, 2, 2]
    remove(cluster, kind, apart)


@kinds
@pytest.mark.parametrize("waiting_in", ["jobs", "team"])
def test_a_gang_gets_nodes_together_and_says_what_it_waits_for(
    gangs: Cluster, kind: WorkloadKind, waiting_in: str
) -> None:
    """Also if another team's gang, in a namespace of its own, waits or runs."""
    gangs.namespace("team")
    running_in = {"jobs": "team", "team": "jobs"}[waiting_in]
    waits = create(gangs, kind, case(kind, "large", 5, waiting_in, WITH_GANGS))
    message = ""
    for _ in until(60, pause_s=0.5):
        message = _seen(gangs, kind, waits, 5, waiting_in)
        if "PodGroup waits until coscheduling finds places" in message:
            break
    assert "its PodGroup waits until coscheduling finds places for all workers" in message
    group = gangs.api.get(f"/apis/{POD_GROUPS[GANG]}/namespaces/{waiting_in}/podgroups/{waits}")
    assert group["spec"]["minMember"] == 5
    fits = create(gangs, kind, case(kind, "large", 3, running_in, WITH_GANGS))
    assert placed(gangs, fits, 3, running_in) == {"big-0": 3}, _seen(
        gangs, kind, fits, 3, running_in
    )
    assert placed(gangs, waits, 0, waiting_in) == {}
    remove(gangs, kind, waits, waiting_in)
    remove(gangs, kind, fits, running_in)


def _seen(cluster: Cluster, kind: WorkloadKind, job: str, workers: int, namespace: str) -> str:
    """The message about what blocks the start of a job."""
    workload = parse_workload(cluster.api.get(f"{kind.collection(namespace)}/{job}"), kind)
    found = [parse_pod(each, (kind,)) for each in pods(cluster, job, namespace)]
    views = tuple(WorkerView(number) for number in range(workers))
    there = tuple(pod for pod in found if pod is not None)
    blocker = interpreted(
        ClusterState(workers, workload, there, views=views, gang_scheduler=GANG)
    ).blocker
    assert not blocker.counts_toward_timeout or "PodGroup" not in blocker.message
    return blocker.message


def test_doctor_looks_for_pod_groups(gangs: Cluster) -> None:
    def check(scheduler: GangScheduler) -> tuple[bool, str]:
        options = replace(offering(gang=Gang(scheduler=scheduler)), namespace="jobs")
        api: Api = connect(gangs.kubeconfig, None)
        (found,) = [each for each in doctor.checks(api, options) if each.name == "gang scheduling"]
        return found.ok, found.message

    assert check(GANG) == (
        True,
        "coscheduling: each job has a PodGroup, and its pods get nodes together",
    )
    assert check("volcano") == (
        False,
        "the cluster has no resource type PodGroup of scheduling.volcano.sh/v1beta1",
    )
