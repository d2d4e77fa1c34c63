"""The commands and settings that README.md and docs/kubernetes.md name exist."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from server_stub.runtimes.kube.doctor import needed
from server_stub.runtimes.kube.pytorchjob import PYTORCHJOB
from server_stub.settings import Settings
from tests.deploy.conftest import ROOT

README = (ROOT / "README.md").read_text()
GUIDE = (ROOT / "docs" / "kubernetes.md").read_text()
CHAPTER = README.split("## On a Kubernetes cluster")[1].split("\n## ")[0]
BLOCK = re.compile(r"(?:^    \S.*\n)+", re.MULTILINE)
OWN = "overlays/mine"  # made by the reader


def test_a_job_takes_five_commands_on_kind_and_five_on_a_cluster_that_is_there() -> None:
    on_kind, on_another = BLOCK.findall(CHAPTER)
    assert len(on_kind.splitlines()) <= 5
    assert len(on_another.splitlines()) <= 5
    for block in (on_kind, on_another):
        assert "client-lib submit -f" in block.splitlines()[-1]


@pytest.mark.parametrize("text", [CHAPTER, GUIDE], ids=["readme", "guide"])
def test_every_path_that_is_named_exists(text: str) -> None:
    named = set(re.findall(r"\b(?:k8s|docs|examples|requirements)/[\w./-]*\w", text))
    made = {"k8s/overlays/kind/token"}  # by `make kind`
    assert len(named) > 3
    assert [path for path in named - made if OWN not in path and not (ROOT / path).exists()] == []


def test_no_command_has_an_option_that_the_oldest_python_lacks() -> None:
    """`-P` is of Python 3.11."""
    documents = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    assert [
        path.name for path in documents if re.search(r"python3? (-\w+ )*-\w*P", path.read_text())
    ] == []


def test_every_setting_that_is_named_is_one() -> None:
    full = re.findall(r"CLIENT_LIB_SERVER_(\w+)", GUIDE)
    short = re.findall(r"`_(\w+)`", GUIDE)
    assert {name.lower() for name in full + short} <= Settings.model_fields.keys()


def test_what_the_server_may_do_is_told_verb_by_verb() -> None:
    told = " ".join(GUIDE.split("## What the server may do")[1].split(". It never")[0].split())
    for resource in sorted({each.resource for each in needed(PYTORCHJOB)}):
        verbs = [each.verb for each in needed(PYTORCHJOB) if each.resource == resource]
        spelled = {
            "pytorchjobs": "PyTorchJobs",
            "configmaps": "ConfigMaps",
            "secrets": "Secrets",
        }.get(resource, resource)
        said = next(
            part
            for part in re.split("[;:]", told)
            if spelled.replace("networkpolicies", "NetworkPolicies") in part
        )
        assert all(verb in said for verb in verbs), (resource, said)


def test_the_overlay_marks_what_is_the_operators_own() -> None:
    folder = ROOT / "k8s" / "overlays" / "production"
    marked = {path.name for path in folder.glob("*.yaml") if "HERE" in path.read_text()}
    assert marked == {"kustomization.yaml", "ingress.yaml", "namespace.yaml", "catalogue.yaml"}
    assert [name for name in marked if f"`{name}`" not in GUIDE] == []


@pytest.mark.cluster
def test_a_copy_of_the_overlay_serves_without_a_database_and_with_a_shared_home(
    kubectl_program: Path, manifests: Path
) -> None:
    """As the guide says: a copy beside it, an empty server.env, no ingress,
    its patch for a shared home.
    """
    mine = shutil.copytree(manifests / "overlays" / "production", manifests / OWN)
    (mine / "server.env").write_text("")
    (patches,) = re.findall(r"```yaml\npatches:\n(.*?)```", GUIDE, re.DOTALL)
    text = (mine / "kustomization.yaml").read_text().replace("  - ingress.yaml\n", "")
    (mine / "kustomization.yaml").write_text(text.replace("patches:\n", f"patches:\n{patches}"))
    done = subprocess.run(
        [kubectl_program, "kustomize", mine], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "/home/jovyan" in [mount["mountPath"] for mount in container["volumeMounts"]]
    secrets = [each["metadata"]["name"] for each in objects if each["kind"] == "Secret"]
    assert container["envFrom"][0]["secretRef"]["name"] in secrets
    assert [each for each in objects if each["kind"] == "Ingress"] == []


def test_files_that_hold_secrets_are_kept_out_of_git_in_any_overlay() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"k8s/overlays/*/users.toml", "k8s/overlays/*/server.env"} <= set(ignored)


def test_the_ingress_lets_snapshots_and_streams_through() -> None:
    """For both controllers of nginx. An annotation with a snippet would have one
    of them refuse the whole.
    """
    ingress = yaml.safe_load((ROOT / "k8s/overlays/production/ingress.yaml").read_text())
    said = ingress["metadata"]["annotations"]
    kubernetes, f5 = "nginx.ingress.kubernetes.io/", "nginx.org/"
    assert said[kubernetes + "proxy-body-size"] == said[f5 + "client-max-body-size"] == "2g"
    assert Settings.model_fields["max_snapshot_bytes"].default <= 2 * 2**30
    for direction in ("read", "send"):
        assert int(said[f"{kubernetes}proxy-{direction}-timeout"]) >= 3600
        assert (
            said[f"{f5}proxy-{direction}-timeout"]
            == said[f"{kubernetes}proxy-{direction}-timeout"] + "s"
        )
    assert (said[kubernetes + "proxy-buffering"], said[kubernetes + "proxy-request-buffering"]) == (
        "off",
        "off",
    )
    assert said[f5 + "proxy-buffering"] == "false"
    assert [name for name in said if "snippet" in name] == []
    (tls,) = ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"] for rule in ingress["spec"]["rules"]]
