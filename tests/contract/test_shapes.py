"""Scripts written for other launchers, unmodified, in pods: the same loss as on this machine in the
same run.

With the image that has Debian's torch, in a namespace that is `restricted`. tests/script_shapes
shows, of the local runtime, that it is the loss of the launcher that each script was written for.
"""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from client_lib import Job
from client_lib.spec.states import State
from tests.cluster import Cluster
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, Place, ended

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parents[1] / "script_shapes" / "scripts"
AT_ONCE = 3  # jobs whose pods fit on two cores
LIMIT_S = 300.0
CATALOGUE = """\
instance_types:
  - {name: torch, cpu: 0.3, memory_gib: 1.25}
images:
  default: localhost/torch:local
  pull_policy: Never
defaults:
  instance_type: torch
"""


class Shape(NamedTuple):
    """A job of two workers. `file`: where the script of tests/script_shapes lies,
    below the working directory.
    """

    file: str
    script: str
    processes: int = 2
    args: tuple[str, ...] = ()
    changes: tuple[str, str] = ("", "")

    def fields(self) -> dict[str, Any]:
        return {"processes_per_worker": self.processes, "args": list(self.args), "n_workers": 2}


SHAPES = {
    "setup and cleanup on the environment": Shape("native_ddp.py", "native_ddp.py"),
    "written for torchrun": Shape("torchrun_env.py", "torchrun_env.py"),
    "spawns its own processes": Shape("spawned.py", "spawned.py", processes=1),
    "--local-rank": Shape(
        "local_rank_argument.py", "local_rank_argument.py", args=("--lr", "0.05")
    ),
}
VARIANTS = {
    "--local_rank": SHAPES["--local-rank"]._replace(changes=("--local-rank", "--local_rank")),
    "a module": Shape("package/torchrun_env.py", "python -m package.torchrun_env"),
}
"""Of a shape, with the same loss."""


@pytest.fixture(scope="module")
def with_torch(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    cluster.up({"node"}, ["python", "torch"])
    place = ClusterPlace(
        tmp_path_factory.mktemp("with-torch"), cluster, "shapes", catalogue=CATALOGUE
    )
    yield place
    assert_nothing_is_left(place)
    place.close()


Losses = dict[str, str]


@pytest.fixture(scope="module")
def in_pods(with_torch: Place, tmp_path_factory: pytest.TempPathFactory) -> Losses:
    return losses(with_torch, SHAPES | VARIANTS, tmp_path_factory.mktemp("in-pods"))


@pytest.fixture(scope="module")
def here(local_place: Place, tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Of each script."""
    found = losses(local_place, SHAPES, tmp_path_factory.mktemp("here"))
    return {SHAPES[name].file: line for name, line in found.items()}


def losses(place: Place, shapes: dict[str, Shape], folder: Path) -> Losses:
    """What rank 0 of each shape printed; where one failed, why."""
    found: Losses = {}
    for begin in range(0, len(shapes), AT_ONCE):
        some = list(shapes.items())[begin : begin + AT_ONCE]
        jobs = {
            name: submitted(place, Path(tempfile.mkdtemp(dir=folder)), shape)
            for name, shape in some
        }
        found |= {name: loss(ended(job, LIMIT_S)) for name, job in jobs.items()}
    return found


def submitted(place: Place, work: Path, shape: Shape) -> Job:
    script = work / shape.file
    script.parent.mkdir(exist_ok=True)
    (work / "pyproject.toml").touch()  # the snapshot's root
    (script.parent / "__init__.py").touch()
    script.write_text((SCRIPTS / script.name).read_text().replace(*shape.changes))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        job = Job(
            script=shape.script, code="snapshot", client=place.client, grace_s=5, **shape.fields()
        )
        job.submit()
    return job


def loss(job: Job) -> str:
    lines = [entry.text for entry in job.log_entries(follow=False)]
    found = [line for line in lines if re.fullmatch(r"loss [\d.]+ of 4 ranks", line)]
    if job.info().state is State.SUCCEEDED and len(found) == 1:
        return found[0]
    return "\n".join([job.info().message, *lines])


@pytest.mark.parametrize("name", SHAPES | VARIANTS)
def test_a_script_has_the_same_loss_in_pods_as_on_this_machine(
    name: str, in_pods: Losses, here: Losses
) -> None:
    shape = (SHAPES | VARIANTS)[name]
    theirs = here[Path(shape.file).name]
    assert number(in_pods[name]) == pytest.approx(number(theirs), abs=2e-5)  # two versions of torch


def number(line: str) -> float:
    found = re.fullmatch(r"loss ([\d.]+) of 4 ranks", line)
    assert found, line
    return float(found[1])
