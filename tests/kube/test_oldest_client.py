"""The oldest client of the Kubernetes API that the project admits does all that is asked of it, as
the newest does.

Each test runs others in an environment that has it and is otherwise ours.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.deploy.test_permissions import NAMESPACE
from tests.kit.environments import ROOT, environment

NAME = "kubernetes-35"
EXERCISE = """
import sys
from pathlib import Path
import kubernetes
from server_stub.runtimes.kube.api import connect
from tests.deploy.test_permissions import exercise
exercise(connect(Path(sys.argv[1]), None))
print(kubernetes.__version__)
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return environment(NAME, ours_behind=True) / "bin" / "python"


def run_command(python: Path, *arguments: str) -> str:
    done = subprocess.run(
        [python, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_the_oldest_that_the_project_admits() -> None:
    (pinned,) = re.findall(
        r"^kubernetes==(\S+)", (ROOT / "requirements" / f"{NAME}.txt").read_text(), re.MULTILINE
    )
    assert f'"kubernetes>={pinned.partition(".")[0]},' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.process
def test_it_reads_kubeconfigs_and_its_connections_are_watched(python: Path) -> None:
    tests = ("tests/kube/test_connect.py", "tests/kube/test_watch.py")
    assert (
        "passed"
        in run_command(python, "-m", "pytest", "-v", "-p", "no:cacheprovider", *tests).splitlines()[
            -1
        ]
    )


@pytest.mark.cluster
def test_it_does_all_that_an_attempt_asks_of_a_real_api_server(
    python: Path, control_plane: Cluster
) -> None:
    control_plane.namespace(NAMESPACE)
    assert run_command(python, "-c", EXERCISE, str(control_plane.kubeconfig)).startswith("35.")
