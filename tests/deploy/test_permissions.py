"""The Role of k8s/base against what the server asks for."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from client_lib.spec.wire import Check
from server_stub.runtimes.kube import doctor
from server_stub.runtimes.kube.api import Api, ApiError, connect
from server_stub.runtimes.kube.catalogue.file import load
from server_stub.runtimes.kube.doctor import OPTIONAL, Permission, needed
from server_stub.runtimes.kube.objects_api import ObjectsApi
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.runtimes.kube.render import render
from server_stub.runtimes.kube.trainjob import TRAINJOB
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.deploy.audit import READ_DEPLOYMENT, asked_by_pods
from tests.deploy.conftest import ROOT, Kubectl
from tests.deploy.test_manifests import rendered
from tests.kube import cases

BASE = ROOT / "k8s" / "base"
NAMESPACE = "permissions"
ACCOUNT = "client-lib-server"
ALONE = {"Namespace", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}


def rules(file: str, kind: str) -> list[dict[str, Any]]:
    (role,) = [
        each for each in yaml.safe_load_all((BASE / file).read_text()) if each["kind"] == kind
    ]
    found: list[dict[str, Any]] = role["rules"]
    return found


def granted() -> list[Permission]:
    return [
        Permission(group, resource, verb)
        for rule in [*rules("role.yaml", "Role"), *rules("nodes.yaml", "ClusterRole")]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def test_the_roles_grant_what_is_asked_for_and_nothing_else() -> None:
    assert set(granted()) == (needed(PYTORCHJOB) | needed(TRAINJOB) | OPTIONAL)


def test_whoever_is_known_to_the_cluster_may_read_the_operators_version() -> None:
    folder = ROOT / "k8s" / "third-party" / "training-operator"
    (role,) = [
        each
        for each in yaml.safe_load_all((folder / "version-reader.yaml").read_text())
        if "rules" in each
    ]
    (rule,) = role["rules"]
    assert {
        Permission(rule["apiGroups"][0], rule["resources"][0], rule["verbs"][0])
    } == READ_DEPLOYMENT


def test_it_may_neither_enter_pods_nor_list_secrets() -> None:
    assert not [
        each
        for each in granted()
        if each.resource == "pods/exec" or each.resource.startswith("roles")
    ]
    assert ("", "secrets", "list") not in granted()
    assert "*" not in json.dumps(granted())


def server_api(cluster: Cluster, tmp_path: Path, namespace: str = NAMESPACE) -> Api:
    """A client with the rights of the server's account."""
    answer = cluster.api.create(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{ACCOUNT}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": answer["status"]["token"]}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return connect(path, None)


@pytest.fixture
def account(control_plane: Cluster, kubectl: Kubectl, tmp_path: Path) -> Api:
    """The server's account with the Role of k8s/base in a namespace of its own."""
    control_plane.namespace(NAMESPACE, "restricted")
    for name in ("service-account.yaml", "role.yaml"):
        assert kubectl("-n", NAMESPACE, "apply", "-f", str(BASE / name)).returncode == 0
    nodes = (
        (BASE / "nodes.yaml")
        .read_text()
        .replace(f"name: {ACCOUNT}\n", f"name: {ACCOUNT}\n    namespace: {NAMESPACE}\n")
    )
    assert kubectl("apply", "-f", "-", stdin=nodes).returncode == 0
    role = current_role(kubectl)
    role["rules"] = rules("role.yaml", "Role")
    assert kubectl("replace", "-f", "-", stdin=json.dumps(role)).returncode == 0
    return server_api(control_plane, tmp_path)


def edit(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def current_role(kubectl: Kubectl) -> dict[str, Any]:
    """Without its version, so that it may replace whatever is there."""
    role: dict[str, Any] = json.loads(
        kubectl("-n", NAMESPACE, "get", "role", ACCOUNT, "-o", "json").stdout
    )
    del role["metadata"]["resourceVersion"]
    return role


def look(api: Api, namespace: str = NAMESPACE) -> dict[str, Any]:
    catalogue = load(BASE / "catalogue.yaml")
    options = replace(cases.CLUSTER, namespace=namespace, catalogue=catalogue)
    return {check.name: check for check in doctor.checks(api, options)}


def exercise(api: Api) -> None:
    """All that the runtime does, by its own modules: an attempt made twice over,
    watched, looked into, deleted.
    """
    objects_api, case = ObjectsApi(api, NAMESPACE, PYTORCHJOB), cases.case("gang")
    attempt = replace(case.attempt, job_name=f"job-{uuid.uuid4().hex[:8]}", job_id=uuid.uuid4().hex)
    objects = render(attempt, replace(case.cluster, namespace=NAMESPACE), "token")
    assert "policy" in objects.own
    for _ in range(2):
        job = objects_api.create_workload(objects.workload)
        for make in objects_api.creations(objects, job):
            make()
    try:
        api.text(
            f"/api/v1/namespaces/{NAMESPACE}/pods/nobody/log", {"container": PYTORCHJOB.container}
        )
    except ApiError as error:
        if error.status != 404:
            raise
    for path in (
        objects_api.workloads,
        f"/api/v1/namespaces/{NAMESPACE}/pods",
        f"/api/v1/namespaces/{NAMESPACE}/events",
    ):
        version = api.get(path)["metadata"]["resourceVersion"]
        api.stream(
            path, {"watch": "true", "timeoutSeconds": 5, "resourceVersion": version}, 30
        ).abort()
    objects_api.delete_workload(job["metadata"]["name"], job["metadata"]["uid"])


@pytest.mark.cluster
def test_what_an_attempt_asks_of_the_api_is_all_that_the_role_grants(
    account: Api, control_plane: Cluster
) -> None:
    settled(account, lambda check: check.message == "all there")
    exercise(account)
    assert asked_by_pods(control_plane, NAMESPACE) >= needed(PYTORCHJOB)
    assert (
        asked_by_pods(control_plane, NAMESPACE) <= needed(PYTORCHJOB) | OPTIONAL | READ_DEPLOYMENT
    )


def settled(api: Api, true: Callable[[Check], bool], namespace: str = NAMESPACE) -> Check:
    """The check of permissions, as soon as the API server has taken a change of the Role in."""
    for _ in until(90, pause_s=0.05):
        check = look(api, namespace)["permissions"]
        if true(check):
            break
    return check


@pytest.mark.cluster
def test_with_the_role_of_the_base_all_that_the_doctor_asks_of_a_real_cluster_is_well(
    account: Api,
) -> None:
    settled(account, lambda check: check.message == "all there")
    found = look(account)
    assert found["cluster"].ok
    assert found["permissions"].message == "all there"
    assert found["training operator"].ok, found["training operator"].message
    assert "enforces restricted" in found["pod security"].message
    assert "no node that takes pods" in found["catalogue"].message  # an API server alone has none


@pytest.mark.cluster
def test_one_verb_less_is_named_by_the_doctor(account: Api, kubectl: Kubectl) -> None:
    role = current_role(kubectl)
    for place, rule in enumerate(rules("role.yaml", "Role")):
        for verb in rule["verbs"]:
            lost = Permission(rule["apiGroups"][0], rule["resources"][0], verb)
            if lost not in needed(PYTORCHJOB) | OPTIONAL:
                continue  # a right for TrainJobs
            fewer = json.loads(json.dumps(role))
            fewer["rules"][place]["verbs"] = [each for each in rule["verbs"] if each != verb] or [
                "none"
            ]
            assert kubectl("replace", "-f", "-", stdin=json.dumps(fewer)).returncode == 0
            check = settled(account, lambda check, lost=lost: str(lost) in check.message)
            assert check.ok is (lost in OPTIONAL)
            if lost in needed(PYTORCHJOB):
                with pytest.raises(ApiError) as refused:
                    exercise(account)
                resource, _, part = lost.resource.partition("/")
                assert refused.value.status == 403
                assert (
                    f'cannot {verb} resource "{resource}{"/" if part else ""}{part}"'
                    in refused.value.message
                )


@pytest.mark.cluster
def test_in_two_namespaces_the_account_reads_no_secret_of_its_own_namespace(
    kubectl_program: Path, kubectl: Kubectl, control_plane: Cluster, manifests: Path, tmp_path: Path
) -> None:
    """A server with its jobs in one namespace can read Secrets, because
    the jobs have some there.
    """
    overlay = manifests / "overlays" / "two-namespaces"
    edit(overlay / "kustomization.yaml", "value: client-lib-jobs", "value: apart-jobs")
    edit(
        manifests / "overlays" / "production" / "kustomization.yaml",
        "namespace: client-lib #",
        "namespace: apart #",
    )
    edit(
        manifests / "overlays" / "production" / "namespace.yaml",
        "name: client-lib #",
        "name: apart #",
    )
    made = [each for each in rendered(kubectl_program, overlay) if each["kind"] in ALONE]
    done = kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(made))
    assert done.returncode == 0, done.stderr
    for namespace in ("apart", "apart-jobs"):
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "a-secret"},
            "stringData": {"a": "b"},
        }
        control_plane.api.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    api = server_api(control_plane, tmp_path, "apart")
    settled(api, lambda check: check.message == "all there", "apart-jobs")
    assert look(api, "apart-jobs")["permissions"].message == "all there"
    assert api.get("/api/v1/namespaces/apart-jobs/secrets/a-secret")["data"]
    with pytest.raises(ApiError, match="cannot get resource") as refused:
        api.get("/api/v1/namespaces/apart/secrets/a-secret")
    assert refused.value.status == 403
    assert not look(api, "apart")["permissions"].ok
