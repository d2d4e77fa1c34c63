"""What is made on a real API server, whose it is, and what becomes of tries that are
repeated or come too late.
"""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import Api, connect
from server_stub.runtimes.kube.objects_api import BeingDeleted, NameTaken, ObjectsApi
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB, PyTorchJob
from server_stub.runtimes.kube.render import Objects, render
from server_stub.runtimes.kube.workload import Applied, Object
from tests.cluster import Cluster
from tests.cluster.errors import ApiError
from tests.kube import cases
from tests.kube.test_real_api import PATHS

NAMESPACE = "acts"

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Place:
    """One namespace: what is done there, and what is there."""

    connection: Api
    api: ObjectsApi
    cluster: Cluster

    def make(self, objects: Objects) -> Object:
        """All of an attempt, as `making` does it."""
        job = self.api.create_workload(objects.workload, objects.own.values())
        for make in self.api.creations(objects, job):
            make()
        return job

    def find(self, wanted: Object) -> Any:
        return self.cluster.api.get(path_of(wanted))

    def find_own(self, objects: Objects) -> Object | None:
        metadata = objects.workload["metadata"]
        key = names.attempt_of(metadata["labels"])
        assert key is not None
        return self.api.find_own(metadata["name"], key)

    def owners(self, wanted: Object) -> set[str]:
        return {each["uid"] for each in self.find(wanted)["metadata"].get("ownerReferences", ())}


def path_of(wanted: Object) -> str:
    return f"{PATHS[wanted['kind']].format(NAMESPACE)}/{wanted['metadata']['name']}"


@pytest.fixture(scope="module")
def objects_place(control_plane: Cluster) -> Place:
    control_plane.namespace(NAMESPACE)
    connection = connect(control_plane.kubeconfig, None)
    return Place(connection, ObjectsApi(connection, NAMESPACE, PYTORCHJOB), control_plane)


@pytest.fixture
def attempt(objects_place: Place) -> Iterator[Callable[..., Objects]]:
    """Renders one; of another job each time, but for what is given."""
    made: list[Objects] = []

    def new(**changes: Any) -> Objects:
        case = cases.case("gang")
        among_few = f"ab{uuid.uuid4().hex[2:]}"  # whose launcher is one object
        usual = {"job_id": among_few, "job_name": f"job-{uuid.uuid4().hex[:8]}"}
        cluster = replace(
            case.cluster, namespace=NAMESPACE, launcher=changes.pop("launcher", b"one")
        )
        made.append(render(replace(case.attempt, **(usual | changes)), cluster, "token"))
        return made[-1]

    yield new
    for objects in made:
        for each in objects.all():
            try:
                objects_place.cluster.api.merge(path_of(each), {"metadata": {"finalizers": None}})
                objects_place.cluster.api.delete(path_of(each))
            except ApiError as error:
                if error.status != 404:
                    raise


def test_everything_of_an_attempt_is_owned_by_its_job(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    objects = attempt()
    uid = objects_place.make(objects)["metadata"]["uid"]
    assert [each["kind"] for each in objects.own.values()] == [
        "ConfigMap",
        "Secret",
        "Secret",
        "NetworkPolicy",
    ]
    for each in objects.all():
        assert objects_place.owners(each) == (
            set() if each["kind"] == PYTORCHJOB.name else {uid}
        ), each["kind"]


def test_what_jobs_share_is_owned_by_each_of_them(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    one, other, third = attempt(), attempt(), attempt(launcher=b"of another version")
    uids = {
        objects_place.make(one)["metadata"]["uid"],
        objects_place.make(other)["metadata"]["uid"],
    }
    alone = objects_place.make(third)["metadata"]["uid"]
    assert objects_place.owners(one.launcher) == uids
    assert objects_place.owners(third.launcher) == {alone}
    assert objects_place.find(one.launcher)["immutable"]


def test_made_again_it_is_what_it_was(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    objects = attempt()
    first = objects_place.make(objects)
    versions = [
        objects_place.find(each)["metadata"]["resourceVersion"] for each in objects.own.values()
    ]
    assert objects_place.make(objects)["metadata"]["uid"] == first["metadata"]["uid"]
    assert [
        objects_place.find(each)["metadata"]["resourceVersion"] for each in objects.own.values()
    ] == versions
    assert objects_place.owners(objects.launcher) == {first["metadata"]["uid"]}


def test_what_is_made_is_not_sent_back(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    """The launcher has 150 kB."""
    made = objects_place.api.create_workload(attempt().workload)
    assert "spec" not in made
    assert made["metadata"]["uid"]


def test_what_is_of_somebody_else_is_left_alone(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    theirs, ours = attempt(job_name="wanted"), attempt(job_name="wanted")
    uid = objects_place.make(theirs)["metadata"]["uid"]
    with pytest.raises(NameTaken, match="PyTorchJob wanted"):
        objects_place.api.create_workload(ours.workload)
    assert objects_place.find_own(ours) is None
    assert objects_place.find_own(theirs) is not None
    assert objects_place.find(theirs.workload)["metadata"]["uid"] == uid


def test_what_is_being_deleted_is_waited_for(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    objects = attempt()
    job = objects_place.make(objects)
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    objects_place.cluster.api.merge(
        path_of(objects.workload), {"metadata": {"finalizers": ["example.com/stays"]}}
    )
    objects_place.api.delete_workload(name, uid)
    found = objects_place.find(objects.workload)["metadata"]
    assert found["deletionTimestamp"]
    assert "foregroundDeletion" in found["finalizers"]  # gone only when its pods are
    with pytest.raises(BeingDeleted, match=f"PyTorchJob {name}"):
        objects_place.api.create_workload(objects.workload)


def test_what_goes_with_a_gang_before_is_waited_for(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    objects = attempt()
    job = objects_place.make(objects)
    next_gang = {**job, "metadata": {**job["metadata"], "uid": str(uuid.uuid4())}}
    make, *_ = objects_place.api.creations(objects, next_gang)
    with pytest.raises(BeingDeleted, match="ConfigMap"):
        make()


def test_what_a_job_of_this_name_has_left_is_waited_for(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    """What its pods mount has other names."""
    before, after = attempt(job_name="again"), attempt(job_name="again")
    job = objects_place.make(before)
    objects_place.cluster.api.merge(
        path_of(before.own["policy"]), {"metadata": {"finalizers": ["example.com/stays"]}}
    )
    objects_place.api.delete_workload(
        job["metadata"]["name"], job["metadata"]["uid"], in_background=True
    )
    # at once; what it owns goes when the garbage collector comes
    assert objects_place.find_own(before) is None
    found = objects_place.api.create_workload(after.workload)
    makes = dict(zip(after.own, objects_place.api.creations(after, found), strict=False))
    makes["plan"]()
    with pytest.raises(BeingDeleted, match="NetworkPolicy"):
        makes["policy"]()


def test_a_kind_that_is_deleted_before_its_pods_waits_for_what_is_left_of_an_earlier_one(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    class Applying(PyTorchJob):
        # for JobSets, which are not there
        applied = Applied("coordination.k8s.io", "v1", "leases", label="of")

    kind = Applying()
    objects_place = replace(
        objects_place, api=ObjectsApi(objects_place.connection, NAMESPACE, kind)
    )
    before, after = attempt(job_name="renewed"), attempt(job_name="renewed")
    job = objects_place.make(before)
    assert objects_place.make(before)["metadata"]["uid"] == job["metadata"]["uid"]
    objects_place.api.delete_workload(job["metadata"]["name"], job["metadata"]["uid"])
    assert objects_place.find_own(before) is None
    with pytest.raises(BeingDeleted, match="NetworkPolicy renewed"):
        objects_place.make(after)
    name = after.workload["metadata"]["name"]
    pod = before.workload["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    del pod["priorityClassName"]  # which is not there
    applied = kind.applied_collection(NAMESPACE)
    assert applied
    for path, left in (
        (applied, {"metadata": {"name": name}}),
        (
            f"/api/v1/namespaces/{NAMESPACE}/pods",
            {"metadata": {"name": "left", "labels": {"of": name}}, "spec": pod},
        ),
    ):
        objects_place.cluster.api.create(path, left)
        with pytest.raises(BeingDeleted, match="what is left of an earlier PyTorchJob renewed"):
            objects_place.make(after)
        objects_place.cluster.api.delete(f"{path}/{left['metadata']['name']}")
    assert objects_place.find_own(after) is None


def test_only_the_job_that_is_meant_is_deleted(
    objects_place: Place, attempt: Callable[..., Objects]
) -> None:
    objects = attempt()
    job = objects_place.make(objects)
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    objects_place.api.delete_workload(name, str(uuid.uuid4()))
    objects_place.api.delete_workload("was-never", uid)
    assert objects_place.api.find_by_uid(name, uid) is not None
    assert objects_place.api.find_by_uid(name, str(uuid.uuid4())) is None
    assert objects_place.api.find_by_uid("was-never", uid) is None
