"""`doctor` on a cluster: each thing that can be wrong, with its fix."""

from dataclasses import replace
from typing import Any

import pytest

from client_lib.spec.wire import Check
from server_stub.runtimes.kube import doctor
from server_stub.runtimes.kube.api import ApiError
from server_stub.runtimes.kube.catalogue import Gang, Network, PodSecurity, Volume
from server_stub.runtimes.kube.catalogue.file import read
from server_stub.runtimes.kube.doctor import OPTIONAL, needed
from server_stub.runtimes.kube.pytorchjob import DEPLOYMENT, PYTORCHJOB
from tests.kube.cases import CLUSTER, cluster_with, offering

CATALOGUE = read("instance_types: [{name: cpu.small, cpu: 1, memory_gib: 1}]")
NO = ApiError(403, "forbidden")
GONE = ApiError(404, "not found")
CLAIMS = "/api/v1/namespaces/jobs/persistentvolumeclaims"
NODE = {
    "metadata": {"name": "n1"},
    "status": {"allocatable": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "9Gi"}},
}


def operator(version: str = "v1.9.4", ready: int = 1, template: bool = True) -> dict[str, Any]:
    args = (
        ["--pytorch-init-container-template-file=/etc/config/initContainer.yaml"]
        if template
        else []
    )
    container = {"image": "registry/operator:v1-93c5489", "args": args}
    return {
        "metadata": {"labels": {"app.kubernetes.io/version": version} if version else {}},
        "spec": {"template": {"spec": {"containers": [container]}}},
        "status": {"readyReplicas": ready},
    }


class SmallApi:
    """A cluster where all is well, but for what a test says. An ApiError
    among the answers is raised.
    """

    host = "https://10.0.0.1"

    def __init__(self, **answers: Any) -> None:
        self.refused: set[str] = set(answers.pop("refused", ()))
        self.answers: dict[str, Any] = {
            "/version": {"gitVersion": "v1.36.4"},
            DEPLOYMENT: operator(),
            "/apis/kubeflow.org/v1": {"resources": [{"name": "pytorchjobs"}]},
            "/api/v1/namespaces/jobs": {"metadata": {"labels": {doctor.LEVEL: "restricted"}}},
            "/api/v1/nodes": {"items": [NODE]},
            "dry run": {"spec": {"runPolicy": {"suspend": False}}},
            doctor.KUEUE: GONE,
        } | answers
        self.dry: list[Any] = []

    def get(self, path: str) -> Any:
        return self._answer(path)

    def request(self, method: str, path: str, body: Any, query: Any = None) -> Any:
        assert method == "POST"
        if "selfsubjectaccessreviews" in path:
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            return {"status": {"allowed": f"{asked['verb']} {resource}" not in self.refused}}
        self.dry.append(query)
        return self._answer("dry run")

    def _answer(self, key: str) -> Any:
        answer = self.answers[key]
        if isinstance(answer, ApiError):
            raise answer
        return answer


def checked(api: SmallApi, **entries: Any) -> dict[str, Check]:
    """The checks with these entries in the catalogue."""
    cluster = offering(CATALOGUE, **entries)
    return {check.name: check for check in doctor.checks(api, cluster)}  # type: ignore[arg-type]  # the few calls of an API


def test_a_cluster_where_all_is_well() -> None:
    api = SmallApi()
    found = checked(api)
    assert all(check.ok and not check.fix for check in found.values())
    assert list(found) == [
        "cluster",
        "permissions",
        "training operator",
        "pod security",
        "catalogue",
        "network",
        "worker connection",
    ]
    assert "v1.36.4" in found["cluster"].message
    assert "v1.9.4 runs" in found["training operator"].message


def test_gang_scheduling_needs_pod_groups_and_an_operator_that_makes_them() -> None:
    groups = {"/apis/scheduling.volcano.sh/v1beta1": {"resources": [{"name": "podgroups"}]}}
    groups_of_others = "/apis/scheduling.x-k8s.io/v1alpha1"
    for scheduler, group, product in (
        ("volcano", *groups, "Volcano"),
        ("coscheduling", groups_of_others, "scheduler-plugins"),
    ):
        missing = checked(SmallApi(**{group: GONE}), gang=Gang(scheduler=scheduler))[
            "gang scheduling"
        ]
        assert (missing.ok, str(missing.fix).startswith(f"install {product} in the cluster")) == (
            False,
            True,
        )
    gang = checked(SmallApi(**groups), gang=Gang(scheduler="volcano"))["gang scheduling"]
    assert (gang.ok, gang.message) == (False, "the operator makes no PodGroups")
    deployed = operator()
    deployed["spec"]["template"]["spec"]["containers"][0]["args"] += [
        "--gang-scheduler-name=volcano"
    ]
    assert checked(SmallApi(**groups, **{DEPLOYMENT: deployed}), gang=Gang(scheduler="volcano"))[
        "gang scheduling"
    ].ok


def test_a_pod_template_that_the_cluster_refuses_is_named() -> None:
    template = "{spec: {hostIpc: true}}"
    text = f"instance_types: [{{name: near, cpu: 1, memory_gib: 1, pod_template: {template}}}]"
    types = read(text).instance_types
    assert checked(SmallApi(), instance_types=types)["pod templates"].ok
    error = ApiError(422, 'unknown field "hostIpc"')
    found = checked(SmallApi(**{"dry run": error}), instance_types=types)
    assert 'that of near is refused: unknown field "hostIpc"' in found["pod templates"].message


def test_nodes_without_the_label_of_an_instance_type_are_named() -> None:
    text = "instance_types: [{name: near, cpu: 1, memory_gib: 1, together: zone}]"
    (check,) = [
        each
        for each in doctor.checks(SmallApi(), replace(CLUSTER, catalogue=read(text)))  # type: ignore[arg-type]  # the few calls of an API
        if each.name == "catalogue"
    ]
    assert "near: no node has the labels zone" in check.message


def test_the_check_of_the_network_says_what_it_can_not_find_out() -> None:
    assert (
        "if the cluster's network plugin enforces NetworkPolicies"
        in checked(SmallApi())["network"].message
    )
    open_ = CATALOGUE.model_copy(update={"network": Network(isolated=False)})
    found = doctor.checks(SmallApi(), replace(CLUSTER, catalogue=open_))  # type: ignore[arg-type]  # the few calls of an API
    (check,) = [each for each in found if each.name == "network"]
    assert (
        check.message
        == "pods of other jobs reach those of a job: network.isolated is false in the catalogue"
    )


def test_the_volumes_that_users_share_are_named() -> None:
    volumes = [
        Volume(name=n, claim=n, **more) for n, more in (("home", {}), ("data", {"read_only": True}))
    ]
    api = SmallApi(**{f"{CLAIMS}/home": {}, f"{CLAIMS}/data": {}})
    assert (
        checked(api, volumes=volumes)["volumes"].message
        == "each user sees a folder of their own on home; all users see the same files on data"
    )


def test_a_claim_of_the_catalogue_that_is_not_there_is_named() -> None:
    volumes = [Volume(name=name, claim=f"{name}-claim") for name in ("b", "a", "c")]
    paths = [f"{CLAIMS}/{name}-claim" for name in "abc"]
    there = checked(SmallApi(**{path: {} for path in paths}), volumes=volumes)["claims"]
    assert (there.ok, there.message) == (True, "namespace jobs has a-claim, b-claim, c-claim")
    answers = dict(zip(paths, (GONE, {}, GONE), strict=True))
    missing = checked(SmallApi(**answers), volumes=volumes)["claims"]
    assert not missing.ok
    assert "namespace jobs has no PersistentVolumeClaim a-claim, c-claim" in missing.message
    hidden = checked(SmallApi(**dict.fromkeys(paths, NO)), volumes=volumes)["claims"]
    assert (hidden.ok, hidden.fix) == (True, None)


def test_nothing_but_a_dry_run_is_ever_asked_to_be_made() -> None:
    api = SmallApi()
    checked(api)
    assert api.dry == [{"dryRun": "All", "fieldValidation": "Strict"}]


def test_a_cluster_that_does_not_answer_is_one_line() -> None:
    (check,) = checked(SmallApi(**{"/version": ApiError(0, "connection refused")})).values()
    assert (check.name, check.ok) == ("cluster", False)
    assert "https://10.0.0.1: connection refused" in check.message


def test_a_cluster_that_goes_away_meanwhile_is_said_behind_what_was_seen_before() -> None:
    api = SmallApi(**{"/api/v1/nodes": ApiError(0, "broke off")})
    found = doctor.checks(api, replace(CLUSTER, catalogue=CATALOGUE))  # type: ignore[arg-type]  # the few calls of an API
    assert [check.name for check in found if check.ok] == [
        "cluster",
        "permissions",
        "training operator",
        "pod security",
    ]
    assert (found[-1].name, found[-1].ok) == ("cluster", False)


@pytest.mark.parametrize("permission", sorted(needed(PYTORCHJOB)), ids=str)
def test_each_missing_permission_is_named(permission: object) -> None:
    check = checked(SmallApi(refused={str(permission)}))["permissions"]
    assert not check.ok
    assert f"may not {permission} in namespace jobs" in check.message
    assert "role.yaml" in (check.fix or "")
    assert "kubectl apply -k" in (check.fix or "")


def test_the_namespaces_of_teams_are_checked_by_their_names() -> None:
    seen: dict[str, Any] = {
        f"/api/v1/namespaces/{name}": {"metadata": {"labels": {}}} for name in ("vision", "speech")
    }
    api = SmallApi(refused=set(map(str, needed(PYTORCHJOB))), **seen)
    others = [
        replace(CLUSTER, catalogue=CATALOGUE, namespace=name) for name in ("vision", "speech")
    ]
    found = doctor.checks(api, replace(CLUSTER, catalogue=CATALOGUE), others)  # type: ignore[arg-type]  # the few calls of an API
    wrong = {check.name: check.message for check in found if not check.ok}
    assert wrong == {
        "permissions": "the server may do nothing in namespace jobs",
        "permissions in vision": "the server may do nothing in namespace vision",
        "permissions in speech": "the server may do nothing in namespace speech",
    }


def test_what_only_the_doctor_lacks_is_no_failure() -> None:
    check = checked(SmallApi(refused=set(map(str, OPTIONAL))))["permissions"]
    assert check.ok
    assert "list nodes" in check.message


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"/apis/kubeflow.org/v1": GONE}, "no resource type PyTorchJob"),
        (
            {"/apis/kubeflow.org/v1": {"resources": [{"name": "tfjobs"}]}},
            "no resource type PyTorchJob",
        ),
        ({DEPLOYMENT: operator(version="v1.8.1")}, "v1.8.1 runs; 1.9 or newer is needed"),
        ({DEPLOYMENT: operator(ready=0)}, "none of its pods is ready"),
        (
            {"dry run": ApiError(500, "failed calling webhook: connection refused")},
            "connection refused",
        ),
    ],
)
def test_an_operator_that_can_not_serve(answers: dict[str, Any], said: str) -> None:
    check = checked(SmallApi(**answers))["training operator"]
    assert not check.ok
    assert said in check.message
    assert "kubectl" in (check.fix or "")


@pytest.mark.parametrize("deployment", [NO, GONE, operator(version="")])
def test_an_operator_whose_version_is_not_to_be_seen_is_good_if_it_answers(deployment: Any) -> None:
    check = checked(SmallApi(**{DEPLOYMENT: deployment}))["training operator"]
    assert check.ok
    assert "unknown version" in check.message


@pytest.mark.parametrize(
    ("enforced", "kept", "ok"),
    [
        ("restricted", "restricted", True),
        ("restricted", "baseline", False),
        ("baseline", "restricted", True),
        ("baseline", "privileged", False),
        (None, "privileged", True),
    ],
)
def test_pods_that_the_namespace_would_refuse_are_foretold(
    enforced: str | None, kept: PodSecurity, ok: bool
) -> None:
    labels = {doctor.LEVEL: enforced} if enforced else {}
    check = checked(
        SmallApi(**{"/api/v1/namespaces/jobs": {"metadata": {"labels": labels}}}), pod_security=kept
    )["pod security"]
    assert check.ok is ok
    assert ok or f"pod_security: {enforced} in the catalogue" in (check.fix or "")


def test_an_operator_whose_own_init_container_would_be_refused_is_told() -> None:
    check = checked(SmallApi(**{DEPLOYMENT: operator(template=False)}))["pod security"]
    assert not check.ok
    assert "init container" in check.message


def test_a_catalogue_that_promises_too_much() -> None:
    small = {
        "metadata": {"name": "n1"},
        "status": {"allocatable": {"cpu": "500m", "memory": "4Gi", "ephemeral-storage": "9Gi"}},
    }
    check = checked(SmallApi(**{"/api/v1/nodes": {"items": [small]}}))["catalogue"]
    assert not check.ok
    assert "cpu.small: it wants 1 cores, and n1 gives 0.5 cores" in check.message


def test_a_closed_node_takes_no_worker() -> None:
    closed = {**NODE, "spec": {"unschedulable": True}}
    check = checked(SmallApi(**{"/api/v1/nodes": {"items": [closed]}}))["catalogue"]
    assert (check.ok, "there is no node that takes pods" in check.message) == (False, True)


@pytest.mark.parametrize(
    ("path", "name"), [("/api/v1/nodes", "catalogue"), ("/api/v1/namespaces/jobs", "pod security")]
)
def test_what_it_may_not_see_is_said_and_is_no_failure(path: str, name: str) -> None:
    check = checked(SmallApi(**{path: NO}))[name]
    assert check.ok
    assert "may not" in check.message


@pytest.mark.parametrize(
    ("suspends", "said"),
    [
        (True, "jobs may name a queue"),
        (False, "a job that names a queue is refused; to change that, add kubeflow.org"),
    ],
)
def test_what_a_kueue_does_with_jobs_is_said_where_there_is_one(suspends: bool, said: str) -> None:
    dry = {"spec": {"runPolicy": {"suspend": suspends}}}
    check = checked(SmallApi(**{doctor.KUEUE: {}, "dry run": dry}))["queues"]
    assert check.ok
    assert said in check.message


def test_a_server_that_pods_can_not_reach_is_told_with_what_that_costs() -> None:
    found = doctor.checks(SmallApi(), cluster_with(worker_server_url=None))  # type: ignore[arg-type]  # the few calls of an API
    (check,) = [each for each in found if each.name == "worker connection"]
    assert not check.ok
    assert "loses lines" in check.message
    assert "CLIENT_LIB_SERVER_WORKER_SERVER_URL" in (check.fix or "")
