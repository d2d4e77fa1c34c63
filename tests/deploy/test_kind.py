"""`make kind`, with programs in the place of docker, kind and kubectl that write
down how they were called.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the script works on: it writes a token beside the overlay."""
    for name in ("k8s", "examples"):
        shutil.copytree(ROOT / name, tmp_path / "project" / name)
    return tmp_path / "project"


def tool(folder: Path, name: str, script: str = "exit 0") -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{folder}/calls"\n{script}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run_kind(project: Path, tools: Path, *steps: str) -> subprocess.CompletedProcess[str]:
    tools.mkdir(exist_ok=True)
    command = [sys.executable, str(project / "k8s" / "kind.py"), *steps]
    variables = {**os.environ, "PATH": str(tools), "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)


def calls(tools: Path) -> list[str]:
    path = tools / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_missing_is_said_before_anything_is_done(project: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "docker")
    ended = run_kind(project, tmp_path / "bin", "up", "demo")
    assert ended.returncode == 1
    assert "kind is missing: https://" in ended.stderr
    assert "kubectl is missing: https://" in ended.stderr
    assert "docker is missing" not in ended.stderr
    assert calls(tmp_path / "bin") == []


def test_a_docker_without_its_daemon_is_told_from_none(project: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "docker", "exit 1")
    for name in ("kind", "kubectl"):
        tool(tmp_path / "bin", name)
    ended = run_kind(project, tmp_path / "bin", "check")
    assert ended.returncode == 1
    assert "its daemon doesn't answer" in ended.stderr
    assert calls(tmp_path / "bin") == ["docker info"]


@pytest.mark.parametrize("there", ["", "client-lib"])
def test_it_makes_the_cluster_once_and_then_images_operator_and_server(
    project: Path, tmp_path: Path, there: str
) -> None:
    tool(tmp_path / "bin", "docker")
    tool(tmp_path / "bin", "kind", f"echo {there}")
    tool(tmp_path / "bin", "kubectl")
    ended = run_kind(project, tmp_path / "bin", "up")
    assert ended.returncode == 0, ended.stderr
    made = [
        re.sub(rf"{project}/|--context kind-client-lib ", "", call)
        for call in calls(tmp_path / "bin")
    ]
    expected = [
        "docker info",
        "kind get clusters",
        *([] if there else ["kind create cluster --config k8s/kind.yaml"]),
        f"docker build --tag localhost/client-lib-server:kind --target server {project}",
        f"docker build --tag localhost/client-lib-demo:kind --target demo {project}",
        (
            "kind load docker-image --name client-lib localhost/client-lib-server:kind "
            "localhost/client-lib-demo:kind"
        ),
        "kubectl apply --server-side -k k8s/third-party/training-operator",
        "kubectl -n kubeflow rollout status deployment/training-operator --timeout=600s",
        "kubectl apply -k k8s/overlays/kind",
        "kubectl -n client-lib rollout status deployment/client-lib-server --timeout=600s",
    ]
    assert made == expected


def test_the_token_is_made_once_and_for_this_user_alone(project: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "kubectl")
    overlay = project / "k8s" / "overlays" / "kind"
    run_kind(project, tmp_path / "bin", "server")
    token, users = (overlay / "token").read_text(), (overlay / "users.toml").read_text()
    run_kind(project, tmp_path / "bin", "server")
    assert ((overlay / "token").read_text(), (overlay / "users.toml").read_text()) == (token, users)
    assert stat.S_IMODE((overlay / "token").stat().st_mode) == 0o600
    assert token.strip() not in users
    assert 'name = "demo"' in users


def test_a_step_that_fails_ends_it_with_the_command_shown(project: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "kubectl", "exit 3")
    ended = run_kind(project, tmp_path / "bin", "operator", "server")
    assert ended.returncode == 1
    assert "== kubectl --context kind-client-lib apply --server-side -k" in ended.stderr
    assert ended.stderr.endswith("kubectl failed with exit code 3\n")
    assert len(calls(tmp_path / "bin")) == 1


def test_make_looks_for_the_tools_before_it_installs_anything() -> None:
    made = subprocess.run(
        ["make", "-n", "kind", "MAKE=make"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    commands = [line for line in made.stdout.splitlines() if not line.startswith(("make", "#"))]
    assert commands[0].endswith("k8s/kind.py check")
    assert commands[-1].endswith("k8s/kind.py up demo")
