"""The manifests that k8s/ renders, and the answers of a real API server to them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from server_stub.runtimes.kube.catalogue import file as catalogue_file
from server_stub.runtimes.kube.observe.messages import quantity
from server_stub.settings import Settings
from tests.cluster import Cluster, programs
from tests.cluster.places import Home
from tests.deploy.conftest import ROOT, Kubectl

OVERLAYS = ("overlays/kind", "overlays/production")
FOLDERS = (*OVERLAYS, "third-party/training-operator")
OPERATOR = ROOT / "k8s" / "third-party" / "training-operator"
KIND_ITSELF = {"cpu": 0.95, "memory": 290 * 2**20}
"""Requests of the pods of kind's control plane: 850m of kubeadm's and CoreDNS, 100m of kindnet."""

UPSTREAM = {  # file of upstream/ -> of the release
    "kubeflow.org_pytorchjobs.yaml": "kubeflow.org_pytorchjobs.yaml",
    "role.yaml": "role.yaml",
}

Objects = list[dict[str, Any]]


def rendered(program: Path, folder: Path) -> Objects:
    done = subprocess.run(
        [program, "kustomize", folder], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(objects: Objects, kind: str) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(objects: Objects) -> Objects:
    """The pod of each Deployment, as an object of its own."""
    templates = [
        (each["metadata"], each["spec"]["template"])
        for each in objects
        if each["kind"] == "Deployment"
    ]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **template["metadata"],
                "name": meta["name"],
                "namespace": meta["namespace"],
            },
            "spec": template["spec"],
        }
        for meta, template in templates
    ]


@pytest.mark.cluster
@pytest.mark.parametrize("folder", OVERLAYS)
def test_a_real_api_server_takes_every_object_and_admits_the_pod(
    kubectl_program: Path, kubectl: Kubectl, control_plane: Cluster, manifests: Path, folder: str
) -> None:
    objects = rendered(kubectl_program, manifests / folder)
    control_plane.namespace(one(objects, "Namespace")["metadata"]["name"], "restricted")
    apply = ("apply", "-f", "-")  # the API server admits no pod of a class that isn't there
    made = kubectl(*apply, stdin=yaml.safe_dump(one(objects, "PriorityClass")))
    assert made.returncode == 0, made.stderr
    text = yaml.safe_dump_all(objects)
    done = kubectl(
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "--warnings-as-errors",
        "-f",
        "-",
        stdin=text,
    )
    assert done.returncode == 0, done.stderr
    admitted = kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(pods(objects))
    )
    assert admitted.returncode == 0, admitted.stderr


@pytest.mark.cluster
def test_a_real_api_server_takes_the_operator_and_a_restricted_namespace_its_pod(
    kubectl_program: Path, kubectl: Kubectl, control_plane: Cluster, manifests: Path
) -> None:
    """Into a namespace of another name: the cluster's own operator lives in this one."""
    folder = manifests / "third-party" / "training-operator"
    (folder / "kustomization.yaml").write_text(
        (folder / "kustomization.yaml")
        .read_text()
        .replace("namespace: kubeflow", "namespace: other")
    )
    control_plane.namespace("other", "restricted")
    objects = [each for each in rendered(kubectl_program, folder) if each["kind"] != "Namespace"]
    for each in objects:
        if not each["metadata"].get("namespace") and each["kind"] != "CustomResourceDefinition":
            each["metadata"]["name"] += "-other"
    how = (
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "--warnings-as-errors",
        "-f",
        "-",
    )
    done = kubectl(*how, "--field-manager=other", stdin=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr
    admitted = kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(pods(objects))
    )
    assert admitted.returncode == 0, admitted.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("folder", FOLDERS)
def test_rendering_is_the_same_twice_and_leaves_nothing_marked_for_another_namespace(
    kubectl_program: Path, manifests: Path, folder: str
) -> None:
    objects = rendered(kubectl_program, manifests / folder)
    assert rendered(kubectl_program, manifests / folder) == objects
    assert {each["metadata"].get("namespace") for each in objects} <= {
        None,
        "kubeflow" if "third" in folder else "client-lib",
    }


@pytest.mark.cluster
@pytest.mark.parametrize("folder", OVERLAYS)
def test_two_servers_of_a_cluster_do_not_share_what_belongs_to_no_namespace(
    kubectl_program: Path, manifests: Path, folder: str
) -> None:
    first = rendered(kubectl_program, manifests / folder)
    for name, old in {
        "kustomization.yaml": "namespace: client-lib",
        "namespace.yaml": "name: client-lib",
    }.items():
        path = manifests / folder / name
        path.write_text(path.read_text().replace(old, old.replace("client-lib", "other")))
    second = rendered(kubectl_program, manifests / folder)
    assert of_the_cluster(first) == names_with("client-lib")
    assert of_the_cluster(second) == names_with("other")
    pod = one(second, "Deployment")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == one(second, "PriorityClass")["metadata"]["name"]
    binding = one(second, "ClusterRoleBinding")
    assert [subject["namespace"] for subject in binding["subjects"]] == ["other"]
    assert binding["roleRef"]["name"] == one(second, "ClusterRole")["metadata"]["name"]


def names_with(namespace: str) -> set[tuple[str, str]]:
    return {
        ("ClusterRole", f"client-lib-nodes:{namespace}"),
        ("ClusterRoleBinding", f"client-lib-nodes:{namespace}"),
        ("PriorityClass", f"client-lib-server.{namespace}"),
    }


def of_the_cluster(objects: Objects) -> set[tuple[str, str]]:
    """Kind and name of what is in no namespace, without the namespaces themselves."""
    found = [
        each
        for each in objects
        if "namespace" not in each["metadata"] and each["kind"] != "Namespace"
    ]
    return {(each["kind"], each["metadata"]["name"]) for each in found}


@pytest.mark.cluster
def test_with_two_namespaces_the_rights_alone_are_in_that_of_the_jobs(
    kubectl_program: Path, kubectl: Kubectl, control_plane: Cluster, manifests: Path
) -> None:
    objects = rendered(kubectl_program, manifests / "overlays" / "two-namespaces")
    moved = {
        each["kind"] for each in objects if each["metadata"].get("namespace") == "client-lib-jobs"
    }
    assert moved == {"Role", "RoleBinding"}
    assert {each["metadata"]["namespace"] for each in objects if each["kind"] == "Secret"} == {
        "client-lib"
    }
    assert [each["namespace"] for each in one(objects, "RoleBinding")["subjects"]] == ["client-lib"]
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["CLIENT_LIB_SERVER_KUBE_NAMESPACE"] == "client-lib-jobs"
    for each in objects:
        if each["kind"] == "Namespace":
            control_plane.namespace(each["metadata"]["name"], "restricted")
    how = ("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
    done = kubectl(*how, stdin=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr


@pytest.mark.cluster
def test_monitoring_finds_the_service_and_names_the_namespace(
    kubectl_program: Path, manifests: Path
) -> None:
    """Edit the overlay as its comments say."""
    folder = manifests / "overlays" / "production"
    for path in (folder / "kustomization.yaml", folder / "namespace.yaml"):
        path.write_text(
            path.read_text()
            .replace("  # - ../../components", "  - ../../components")
            .replace(": client-lib #", ": other #")
        )
    objects = rendered(kubectl_program, folder)
    monitor, service = one(objects, "ServiceMonitor"), one(objects, "Service")
    assert {monitor["metadata"]["namespace"], service["metadata"]["namespace"]} == {"other"}
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    )
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    (down,) = [
        rule
        for rule in one(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
        if "absent" in rule["expr"]
    ]
    assert down["expr"] == 'absent(up{job="client-lib",namespace="other"} == 1)'
    assert service["metadata"]["name"] == "client-lib"


@pytest.mark.cluster
@pytest.mark.parametrize("folder", OVERLAYS)
def test_one_server_that_can_write_nowhere_but_to_its_volumes(
    kubectl_program: Path, manifests: Path, folder: str
) -> None:
    deployment = one(rendered(kubectl_program, manifests / folder), "Deployment")
    spec = deployment["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert not spec["template"]["spec"]["enableServiceLinks"]


@pytest.mark.cluster
def test_the_demo_of_make_kind_fits_two_cpus_and_four_gib(
    kubectl_program: Path, manifests: Path
) -> None:
    """With the pods of kind's own control plane. A machine of four GiB shows 3.8, of which the
    kubelet keeps 0.1.
    """
    ours = [
        pod
        for folder in ("overlays/kind", "third-party/training-operator")
        for pod in pods(rendered(kubectl_program, manifests / folder))
    ]
    catalogue = yaml.safe_load((manifests / "overlays/kind/catalogue.yaml").read_text())
    worker = next(each for each in catalogue["instance_types"] if each["name"] == "cpu.small")
    assert "cpu.small" in (ROOT / "k8s" / "kind.py").read_text()
    cpu = KIND_ITSELF["cpu"] + 2 * worker["cpu"] + sum(requested(pod, "cpu") for pod in ours)
    memory = (
        KIND_ITSELF["memory"]
        + 2 * worker["memory_gib"] * 2**30
        + sum(requested(pod, "memory") for pod in ours)
    )
    assert cpu <= 1.8
    assert memory <= 3.7 * 2**30


def requested(pod: dict[str, Any], resource: str) -> float:
    amounts = [each["resources"]["requests"][resource] for each in pod["spec"]["containers"]]
    return sum(quantity(amount) or 0 for amount in amounts)


@pytest.mark.cluster
@pytest.mark.parametrize("folder", OVERLAYS)
def test_every_variable_of_the_server_is_a_setting(
    kubectl_program: Path, manifests: Path, folder: str
) -> None:
    objects = rendered(kubectl_program, manifests / folder)
    (container,) = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    names = [each["name"] for each in container["env"]]
    names += [name for each in objects if each["kind"] == "Secret" for name in each.get("data", {})]
    ours = {
        name.removeprefix("CLIENT_LIB_SERVER_").lower()
        for name in names
        if name.startswith("CLIENT_LIB_")
    }
    assert ours <= set(Settings.model_fields)
    assert {"runtime", "catalogue", "worker_server_url"} <= ours


@pytest.mark.parametrize("path", ["base", "overlays/kind", "overlays/production"])
def test_the_catalogues_are_valid(path: str) -> None:
    assert catalogue_file.load(ROOT / "k8s" / path / "catalogue.yaml").shown()


@pytest.mark.cluster
def test_the_operators_files_are_those_of_its_release(control_plane: Cluster) -> None:
    for ours, theirs in UPSTREAM.items():
        released = programs.asset(Home.of_environment(), "training-operator", theirs)
        assert (OPERATOR / "upstream" / ours).read_text() == released, ours
    family = programs.FAMILY_OF["training-operator"]
    assert family.version in (OPERATOR / "README.md").read_text()
    patch = yaml.safe_load((OPERATOR / "deployment-patch.yaml").read_text())
    assert patch["metadata"]["labels"]["app.kubernetes.io/version"] == family.version


def test_the_license_of_the_operator_is_kept() -> None:
    assert "Apache License" in (OPERATOR / "upstream" / "LICENSE").read_text()
    assert "Apache License 2.0" in (OPERATOR / "README.md").read_text()


def test_rules_of_one_resource_stand_in_one_place() -> None:
    """So that what is granted can be read, and compared, line by line."""
    roles = [
        each
        for each in yaml.safe_load_all((ROOT / "k8s/base/role.yaml").read_text())
        if each["kind"] == "Role"
    ]
    named = [(rule["apiGroups"], rule["resources"]) for role in roles for rule in role["rules"]]
    assert all(len(groups) == len(resources) == 1 for groups, resources in named)
    assert len({json.dumps(each) for each in named}) == len(named)
