"""The server's image: what it installs, and what of it the Dockerfile
and the manifests say alike.
"""

import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.cluster import builds, missing
from tests.cluster.places import Home
from tests.deploy import image
from tests.deploy.conftest import ROOT

pytestmark = pytest.mark.process

REQUIREMENTS = ROOT / "requirements"


def pinned(lock: str) -> set[str]:
    return set(re.findall(r"^\S+==[^\s\\]+", (REQUIREMENTS / lock).read_text(), re.MULTILINE))


def test_it_has_the_versions_with_which_the_tests_run_and_nothing_of_the_tests() -> None:
    assert pinned("server.txt") <= pinned("dev.txt")
    assert not [each for each in pinned("server.txt") if re.match("torch|pytest|mypy|scikit", each)]


def test_the_demo_has_the_torch_of_the_tests_and_all_that_it_needs_on_a_cpu() -> None:
    (torch,) = re.findall(r"\btorch==[\w.]+", image.DOCKERFILE.read_text())
    assert torch in pinned("dev.txt")
    needed = [Requirement(line) for line in importlib.metadata.requires("torch") or ()]
    on_a_cpu = {
        each.name
        for each in needed
        if not re.search(r"extra|platform_system", str(each.marker or ""))
    }
    names = {line.partition("==")[0] for line in pinned("demo.txt")}
    assert on_a_cpu <= names
    assert pinned("demo.txt") <= pinned("dev.txt")


@pytest.mark.parametrize("lock", ["server.txt", "demo.txt"])
def test_every_package_is_built_for_arm_too(lock: str, tmp_path: Path) -> None:
    """Without a compiler, which the images lack."""
    uv = Path(sys.executable).with_name("uv")
    wanted = ["--python-platform=aarch64-manylinux_2_28", "--python-version=3.12"]
    wanted += ["--only-binary=:all:", "--require-hashes", "-r", str(REQUIREMENTS / lock)]
    subprocess.run([uv, "pip", "install", "--dry-run", "--target", tmp_path, *wanted], check=True)


def test_it_runs_as_the_user_of_the_manifest() -> None:
    _, user, entrypoint = image.settings()
    deployment = yaml.safe_load((ROOT / "k8s/base/deployment.yaml").read_text())
    security = deployment["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert entrypoint[-1] == "server_stub"


def test_a_change_of_the_sources_leaves_the_layer_of_the_packages_alone() -> None:
    words = [f"{word} {rest}" for word, rest in image.instructions()]
    packages = next(
        place for place, line in enumerate(words) if "requirements/server.txt --into" in line
    )
    before = [line for line in words[:packages] if line.startswith("COPY")]
    assert before == [
        (
            "COPY requirements/install.py requirements/bootstrap.txt requirements/server.txt "
            "requirements/"
        )
    ]


def test_what_docker_is_sent_is_what_the_dockerfile_copies() -> None:
    kept = {
        line[1:].rstrip("/")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = [
        rest
        for word, rest in image.instructions()
        if word == "COPY" and not rest.startswith("--from")
    ]
    assert {source.split("/")[0] for rest in copied for source in rest.split()[:-1]} == kept


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_the_server_starts_from_the_installed_copy_alone(tmp_path: Path) -> None:
    if lack := missing(["node"]):
        pytest.skip(lack)
    builds.build(Home.of_environment(), [], ["python"], print)
    image.build(Home.of_environment(), tmp_path, "localhost/client-lib-server:kind")
    env, _, entrypoint = image.settings()
    found = tmp_path / "opt" / "client-lib" / "packages"
    if not found.exists():  # the kept layer was taken
        with tarfile.open(image.packages_layer(Home.of_environment())) as tar:
            tar.extractall(tmp_path, filter="tar")
    moved = {name: value.replace("/opt/", f"{tmp_path}/opt/") for name, value in env.items()}
    command = [image.PYTHON, *entrypoint[1:], "--version"]
    done = subprocess.run(
        command, env=moved, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("client-lib ")
