"""The manifests, and kubectl and helm built from their Go modules; tests skip with one
line where that can't be.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import Cluster, builds, programs
from tests.cluster.places import Home

ROOT = Path(__file__).parents[2]
Kubectl = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kubectl_program() -> Path:
    return built("kubectl")


@pytest.fixture(scope="session")
def helm_program() -> Path:
    return built("helm")


def built(program: str) -> Path:
    home = Home.of_environment()
    if not programs.is_there(home, program) and (lack := programs.lacks_go()):
        pytest.skip(lack)
    builds.build(home, [program], [], print)
    return programs.path(home, program)


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """A copy of k8s/ with the files that an operator makes: overlays read users.toml
    and server.env beside them.
    """
    folder = tmp_path / "k8s"
    shutil.copytree(ROOT / "k8s", folder)
    for overlay in ("kind", "production"):
        (folder / "overlays" / overlay / "users.toml").write_text("")
    example = folder / "overlays" / "production" / "server.env.example"
    example.rename(example.with_suffix(""))
    return folder


@pytest.fixture
def kubectl(kubectl_program: Path, control_plane: Cluster) -> Kubectl:
    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(kubectl_program), f"--kubeconfig={control_plane.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)

    return run
