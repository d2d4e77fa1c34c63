"""A TrainJob over its TrainingRuntime gives the pods of a PyTorchJob; the webhooks of
Kubeflow Trainer accept both.
"""

import copy
from typing import Any

import pytest

from client_lib.spec.states import Reason
from server_stub.runtimes.kube import names, trainjob
from server_stub.runtimes.kube.api import Api, ApiError, connect
from server_stub.runtimes.kube.objects_api import ObjectsApi
from server_stub.runtimes.kube.observe import ClusterState, observe
from server_stub.runtimes.kube.observe.inventory import Event, Workload, parse_workload
from server_stub.runtimes.kube.queues import is_queued
from server_stub.runtimes.kube.render import Objects
from server_stub.runtimes.kube.trainjob import TRAINJOB
from server_stub.runtimes.kube.workload import SCHEDULERS, Object, is_missing
from server_stub.worker_gateway.worker import WorkerView
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.kube.cases import BUILDERS, Case, case

NAMESPACE = "trainjobs"


@pytest.fixture(params=sorted(BUILDERS))
def each(request: pytest.FixtureRequest) -> Case:
    return case(request.param)


# --- what is rendered


def job_of(base: Object) -> Object:
    (job,) = base["spec"]["template"]["spec"]["replicatedJobs"]
    return dict(job["template"]["spec"])


def pod_of(objects: Objects) -> Object:
    """The pod template that Kubeflow Trainer makes, by the rules of a strategic merge."""
    assert objects.base is not None
    spec = objects.workload["spec"]
    template: Object = copy.deepcopy(job_of(objects.base)["template"])
    (container,) = template["spec"]["containers"]
    for patch in spec["runtimePatches"]:
        (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        patched = copy.deepcopy(job["template"]["spec"]["template"])
        (of_container,) = patched["spec"].pop("containers")
        mounts = {mount["mountPath"]: mount for mount in container.get("volumeMounts", ())}
        mounts |= {mount["mountPath"]: mount for mount in of_container.pop("volumeMounts")}
        container |= {**of_container, "volumeMounts": list(mounts.values())}
        template["metadata"] = template.get("metadata", {}) | patched.get("metadata", {})
        template["spec"] |= patched["spec"]
    trainer = spec["trainer"]
    container |= {key: trainer[key] for key in ("image", "command", "env")} | {
        "resources": trainer["resourcesPerNode"]
    }
    return template


def test_its_pods_are_those_of_a_pytorch_job(each: Case) -> None:
    objects = each.objects(TRAINJOB)
    theirs, ours = each.objects().workload["spec"], pod_of(objects)
    expected: Object = next(iter(theirs["pytorchReplicaSpecs"].values()))["template"]
    gang = each.cluster.catalogue.gang.scheduler
    # which the training operator adds itself
    assert ours["spec"].pop("schedulerName", None) == SCHEDULERS.get(gang)
    assert ours["spec"].pop("restartPolicy") == (
        "OnFailure" if "elasticPolicy" in theirs else "Never"
    )
    one, other = ours["spec"]["containers"].pop(), expected["spec"]["containers"].pop()
    labels = expected["metadata"]["labels"]
    labels.pop("client-lib.io/elastic", None)
    assert ours == expected
    assert in_order(one.pop("volumeMounts")) == in_order(other.pop("volumeMounts"))
    assert variables(one) == variables(other, objects.own.get("environment"))
    assert {**one, "name": "pytorch"} == other


def in_order(mounts: list[Object]) -> list[Object]:
    return sorted(mounts, key=lambda mount: str(mount["mountPath"]))


def variables(container: Object, secret: Object | None = None) -> set[str]:
    """Names of all its variables but those that the training operator sets."""
    found = [each["name"] for each in container.pop("env")]
    assert len(found) == len(set(found))
    if container.pop("envFrom", None):
        found += secret["stringData"] if secret else ()
    return set(found) - {"RANK", "MASTER_ADDR", "MASTER_PORT"}


def test_every_worker_is_told_its_index_and_where_the_master_is(each: Case) -> None:
    objects = each.objects(TRAINJOB)
    given = {variable["name"]: variable for variable in objects.workload["spec"]["trainer"]["env"]}
    name = objects.workload["metadata"]["name"]
    assert trainjob.INDEX in given["RANK"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert given["MASTER_ADDR"]["value"] == f"{name}-node-0-0.{name}"
    assert given["MASTER_PORT"]["value"] == "23456"


def test_no_patch_mounts_a_volume_twice() -> None:
    """The key of a mount in a TrainJob is its volume."""
    patches = case("volumes-of-an-owner").objects(TRAINJOB).workload["spec"]["runtimePatches"]
    assert len(patches) > 1
    assert len({patch["manager"] for patch in patches}) == len(patches)
    for patch in patches:
        (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        (container,) = job["template"]["spec"]["template"]["spec"]["containers"]
        volumes = [mount["name"] for mount in container["volumeMounts"]]
        assert len(volumes) == len(set(volumes))


def test_jobs_share_a_runtime_if_its_content_is_the_same() -> None:
    one, other, elastic, gang = (
        case(name).objects(TRAINJOB).base for name in ("one-worker", "command", "elastic", "gang")
    )
    assert one == other
    assert len({base["metadata"]["name"] for base in (one, elastic, gang) if base}) == 3
    assert elastic is not None
    assert job_of(elastic)["backoffLimit"] == trainjob.REPLACED
    assert one is not None
    assert job_of(one)["backoffLimit"] == 0


# --- what is observed


def found(word: str, message: str = "") -> Workload:
    meta = {
        "name": "train",
        "uid": "u",
        "labels": names.labels("j", 1, "train"),
        "creationTimestamp": "2026-11-23",
    }
    conditions = [{"type": word, "status": "True", "message": message}]
    workload = parse_workload({"metadata": meta, "status": {"conditions": conditions}}, TRAINJOB)
    assert workload is not None
    return workload


@pytest.mark.parametrize(
    ("word", "reason", "permanent"),
    [
        ("Suspended", Reason.QUEUED, False),
        ("Complete", Reason.QUEUED, False),
        ("Failed", Reason.LAUNCHER_LOST, True),
    ],
)
def test_its_conditions_count_while_there_are_no_pods(
    word: str, reason: Reason, permanent: bool
) -> None:
    seen = observe(ClusterState(1, found(word, "x"), views=(WorkerView(0),)))
    assert (seen.blocker.reason, seen.blocker.permanent) == (reason, permanent)
    assert seen.unknown == ()


def test_pods_of_its_job_set_are_found_by_their_labels() -> None:
    labels = {trainjob.REPLICATED_JOB_LABEL: "node", trainjob.INDEX: "3"}
    assert TRAINJOB.worker_of(labels) == 3
    assert (
        TRAINJOB.worker_of(labels | {trainjob.REPLICATED_JOB_LABEL: "dataset-initializer"}) is None
    )
    assert TRAINJOB.worker_of({trainjob.INDEX: "3"}) is None


def test_an_event_of_its_job_says_why_there_are_no_pods() -> None:
    message = 'Error creating: pods "train-node-0-0-abcde" is forbidden: exceeded quota: small'
    event = Event("e", "u", "FailedCreate", message, "2026-11-23", "Job/train-node-0")
    assert event.part in found("Suspended").known_by
    workload = parse_workload(
        {"metadata": {"uid": "u", "labels": names.labels("j", 1, "train")}}, TRAINJOB
    )
    seen = observe(ClusterState(1, workload, events=(event,), views=(WorkerView(0),)))
    assert seen.blocker.reason is Reason.UNSCHEDULABLE
    assert "small" in seen.blocker.message


# --- on a cluster


@pytest.fixture
def api(cluster: Cluster) -> Api:
    cluster.namespace(NAMESPACE)
    return connect(cluster.kubeconfig, None)


@pytest.mark.cluster
def test_the_webhooks_accept_every_manifest(api: Api, each: Case) -> None:
    objects, place = each.objects(TRAINJOB), ObjectsApi(api, NAMESPACE, TRAINJOB)
    for made in (objects.base, objects.workload):
        assert made is not None
        made["metadata"]["namespace"] = NAMESPACE
    query = {"dryRun": "All", "fieldValidation": "Strict"}
    assert objects.base is not None
    place.create_base(objects.base)
    place.create_base(objects.base)  # it is there
    accepted: Any = None
    for _ in until(30, pause_s=0.1):
        try:
            accepted = api.request("POST", place.workloads, objects.workload, query)
            break
        except ApiError as error:  # its webhook knows the runtime a moment later
            if not is_missing(objects.base, error.message):
                raise
    assert accepted["spec"]["trainer"] == objects.workload["spec"]["trainer"]


@pytest.mark.cluster
def test_a_probe_makes_its_runtime_and_no_job(api: Api, cluster: Cluster) -> None:
    cluster.namespace("probes")
    before = TRAINJOB.check(api, "probes")
    assert (before.ok, before.fix) == (False, "start the server again, which makes it")
    assert not is_queued(api, TRAINJOB, "probes")
    assert TRAINJOB.check(api, "probes").ok
    assert cluster.api.get(TRAINJOB.collection("probes"))["items"] == []
