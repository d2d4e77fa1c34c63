"""The Helm chart makes what the overlays make, from the same files."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from client_lib import __version__
from tests.cluster import Cluster
from tests.deploy.conftest import ROOT, Kubectl
from tests.deploy.test_manifests import Objects, one, rendered

CHART = ROOT / "k8s" / "chart"
USERS = "users.file=[users.me]"
Template = Callable[..., "subprocess.CompletedProcess[str]"]

HTTP_ROUTE = {  # gateway-api v1: what the API server is told of HTTPRoutes here
    "parentRefs": [{"name": "public", "namespace": "gateways"}],
    "hostnames": ["client-lib.example.com"],
    "rules": [
        {"backendRefs": [{"name": "client-lib", "port": 8080}], "timeouts": {"request": "0s"}}
    ],
}


@pytest.fixture
def template(helm_program: Path) -> Template:
    def run(
        *options: str, values: dict[str, Any] | None = None
    ) -> subprocess.CompletedProcess[str]:
        words = ["--namespace", "client-lib", *options, "--values", "-"]
        command: list[str | Path] = [helm_program, "template", "mine", CHART, *words]
        return subprocess.run(
            command, input=json.dumps(values or {}), capture_output=True, text=True, timeout=60
        )

    return run


def objects_of(done: subprocess.CompletedProcess[str]) -> Objects:
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def comparable(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
    """The objects by kind and name, without Secrets, and without how either tool restarts pods."""
    plain = re.sub(
        r"\b(client-lib-(?:catalogue|server))-[a-z0-9]{10}\b", r"\1", json.dumps(objects)
    )
    found = {(each["kind"], each["metadata"]["name"]): each for each in json.loads(plain)}
    found["Deployment", "client-lib-server"]["spec"]["template"]["metadata"].pop(
        "annotations", None
    )
    # Helm keeps it
    found["PersistentVolumeClaim", "client-lib-data"]["metadata"].pop("annotations", None)
    if ("Ingress", "client-lib") in found:  # kustomize labels the objects of the base alone
        found["Ingress", "client-lib"]["metadata"].pop("labels", None)
    return {key: each for key, each in found.items() if key[0] not in ("Namespace", "Secret")}


@pytest.mark.cluster
def test_the_values_of_production_give_the_objects_of_the_overlay(
    kubectl_program: Path, manifests: Path, template: Template
) -> None:
    overlay = rendered(kubectl_program, manifests / "overlays" / "production")
    catalogue = yaml.safe_load(
        (manifests / "overlays" / "production" / "catalogue.yaml").read_text()
    )
    values = {
        "catalogue": catalogue,
        "database": {"url": "postgresql+psycopg://me@postgres.example.com/client_lib"},
        "storage": {"size": "200Gi"},
        "ingress": {"enabled": True},
        "resources": {
            "requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"memory": "4Gi", "ephemeral-storage": "2Gi"},
        },
    }
    wanted, found = (
        comparable(overlay),
        comparable(objects_of(template("--set", USERS, values=values))),
    )
    for objects in (wanted, found):
        text = objects["ConfigMap", "client-lib-catalogue"]["data"].pop("catalogue.yaml")
        assert yaml.safe_load(text) == catalogue
    assert found == wanted


@pytest.mark.cluster
def test_without_values_but_the_users_it_is_the_base(
    kubectl_program: Path, manifests: Path, template: Template
) -> None:
    base = comparable(rendered(kubectl_program, manifests / "base"))
    found = objects_of(template("--set", f"{USERS},priority.create=false"))
    assert "priorityClassName" not in one(found, "Deployment")["spec"]["template"]["spec"]
    assert comparable(found).keys() == {
        (kind, name.replace("NAMESPACE", "client-lib")) for kind, name in base
    }
    (container,) = one(found, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.com/client-lib-server:{__version__}"
    assert one(found, "Secret")["stringData"] == {"users.toml": "[users.me]"}
    (catalogue,) = one(found, "ConfigMap")["data"].values()
    assert catalogue == (ROOT / "k8s" / "base" / "catalogue.yaml").read_text()
    assert one(found, "PersistentVolumeClaim")["metadata"]["annotations"] == {
        "helm.sh/resource-policy": "keep"
    }


@pytest.mark.cluster
def test_every_value_is_in_the_objects(template: Template) -> None:
    values: dict[str, Any] = {
        "image": {"repository": "here/server", "tag": "1", "pullSecrets": ["registry"]},
        "jobsNamespace": "jobs",
        "namespaces": ["vision", "speech"],
        "users": {"secret": "people"},
        "settings": {
            "log_limit_bytes": 10737418240,
            "observe": False,
            "regions": ["A"],
            "log_level": "debug",
        },
        "database": {"secret": "postgres", "port": 6432},
        "storage": {"size": "5Gi", "className": "fast"},
        "service": {"type": "NodePort", "nodePort": 30081},
        "egress": [{"ports": [{"port": 8443}]}],
        "gateway": {
            "enabled": True,
            "parentRefs": HTTP_ROUTE["parentRefs"],
            "hosts": HTTP_ROUTE["hostnames"],
        },
        "monitoring": {"enabled": True, "labels": {"release": "mine"}},
        "priority": {"create": False, "name": "system-cluster-critical"},
        "nodeSelector": {"jobs": "none"},
        "tolerations": [{"key": "servers", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "podAnnotations": {"example.com/mesh": "off"},
        "serviceAccount": {"annotations": {"example.com/role": "server"}},
        "extraVolumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "home"}}],
        "extraVolumeMounts": [{"name": "home", "mountPath": "/home/jovyan", "readOnly": True}],
    }
    objects = objects_of(template(values=values))
    template_of_pod = one(objects, "Deployment")["spec"]["template"]
    pod = template_of_pod["spec"]
    (container,) = pod["containers"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert [each for each in objects if each["kind"] == "PriorityClass"] == []
    for field in ("nodeSelector", "tolerations", "affinity"):
        assert pod[field] == values[field]
    assert template_of_pod["metadata"]["annotations"].items() >= values["podAnnotations"].items()
    account = one(objects, "ServiceAccount")["metadata"]
    assert account["annotations"] == values["serviceAccount"]["annotations"]
    assert pod["volumes"][-1:] == values["extraVolumes"]
    assert container["volumeMounts"][-1:] == values["extraVolumeMounts"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert container["image"] == "here/server:1"
    assert one(objects, "ServiceAccount")["imagePullSecrets"] == [{"name": "registry"}]
    assert variables["CLIENT_LIB_SERVER_KUBE_NAMESPACE"] == "jobs"
    for kind in ("Role", "RoleBinding"):
        made = [each for each in objects if each["kind"] == kind]
        assert [each["metadata"]["namespace"] for each in made] == ["jobs", "vision", "speech"]
        assert all(
            each.get("subjects", made[0].get("subjects")) == made[0].get("subjects")
            for each in made
        )
        assert kind == "Role" or [each["namespace"] for each in made[0]["subjects"]] == [
            "client-lib"
        ]
    assert [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each] == [
        "people"
    ]
    assert [each for each in objects if each["kind"] == "Secret"] == []
    settings = {name: variables[f"CLIENT_LIB_SERVER_{name.upper()}"] for name in values["settings"]}
    assert settings == {
        "log_limit_bytes": "10737418240",
        "observe": "false",
        "regions": '["A"]',
        "log_level": "debug",
    }
    assert container["envFrom"] == [{"secretRef": {"name": "postgres"}}]
    assert one(objects, "NetworkPolicy")["spec"]["egress"][-2:] == [
        {"ports": [{"port": 6432}]},
        {"ports": [{"port": 8443}]},
    ]
    claim = one(objects, "PersistentVolumeClaim")["spec"]
    assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "5Gi")
    service = one(objects, "Service")["spec"]
    assert (service["type"], service["ports"][0]["nodePort"]) == ("NodePort", 30081)
    assert one(objects, "HTTPRoute")["spec"] == HTTP_ROUTE
    for kind in ("ServiceMonitor", "PrometheusRule"):
        assert one(objects, kind)["metadata"]["labels"]["release"] == "mine"
    (down,) = [
        rule
        for rule in one(objects, "PrometheusRule")["spec"]["groups"][0]["rules"]
        if "absent" in rule["expr"]
    ]
    assert down["expr"] == 'absent(up{job="client-lib",namespace="client-lib"} == 1)'


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "users.file=users.toml, or users.secret=NAME"),
        (["--set", f"{USERS},storage.sise=1Gi"], "additional properties 'sise' not allowed"),
        (["--set", f"{USERS},replicas=2"], "replicas=2: one server works on the data"),
        (["--set", f"{USERS},settings.database_url=x"], "invalid propertyName 'database_url'"),
        (
            ["--set", f"{USERS},gateway.enabled=true"],
            "at '/gateway/hosts': minItems: got 0, want 1",
        ),
        (
            ["--set", f"{USERS},service.type=Nodeport"],
            "at '/service/type': value must be one of 'ClusterIP', 'NodePort', 'LoadBalancer'",
        ),
    ],
)
def test_a_value_that_can_not_be_is_refused(
    template: Template, options: list[str], said: str
) -> None:
    done = template(*options)
    assert done.returncode != 0
    assert said in done.stderr


@pytest.mark.cluster
def test_an_issuer_in_the_file_needs_no_users(template: Template) -> None:
    file = "[oidc]\nissuer = 'https://issuer.example.com'\naudience = 'client-lib'\n"
    secret = one(objects_of(template(values={"users": {"file": file}})), "Secret")
    assert secret["stringData"] == {"users.toml": file}


@pytest.mark.cluster
def test_other_values_restart_the_server(template: Template) -> None:
    def annotations(**values: Any) -> object:
        deployment = one(objects_of(template("--set", USERS, values=values)), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    small = {"instance_types": [{"name": "cpu.1", "cpu": 1, "memory_gib": 1}]}
    assert annotations() == annotations()
    assert annotations() != annotations(catalogue=small)
    assert annotations() != annotations(database={"url": "postgresql+psycopg://me@here/x"})


@pytest.mark.cluster
def test_a_real_api_server_takes_every_object(
    template: Template, kubectl: Kubectl, control_plane: Cluster
) -> None:
    control_plane.namespace("client-lib", "restricted")
    done = template(
        "--set", f"{USERS},ingress.enabled=true,database.url=postgresql+psycopg://me@here/x"
    )
    how = ("apply", "--dry-run=server", "--validate=strict", "--warnings-as-errors", "-f", "-")
    applied = kubectl(*how, stdin=yaml.safe_dump_all(objects_of(done)))
    assert applied.returncode == 0, applied.stderr


def test_the_chart_has_no_manifest_of_its_own() -> None:
    """The files that it shares with the overlays are links to them."""
    links = {path.name: path.resolve() for path in CHART.iterdir() if path.is_symlink()}
    assert links == {
        "base": ROOT / "k8s" / "base",
        "monitoring": ROOT / "k8s" / "components" / "monitoring",
        "priority": ROOT / "k8s" / "components" / "priority",
        "ingress.yaml": ROOT / "k8s" / "overlays" / "production" / "ingress.yaml",
    }
