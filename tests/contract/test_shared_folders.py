"""Code that runs where it lies, and what ranks leave behind: the same on this machine and on a
cluster.

On the cluster the folder is a volume of the catalogue that every worker has at its own path, and
the server too.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib import Job
from client_lib.spec.states import State
from tests.cluster import Cluster
from tests.contract.conftest import looked_over
from tests.contract.places import CATALOGUE, ClusterPlace, Place, ended

pytestmark = pytest.mark.process

NAMESPACE = "shared"
BESIDE = """
import os, time
rank = os.environ["RANK"]
here = os.path.dirname(os.path.abspath(__file__))
assert os.getcwd() == here, os.getcwd()
with open(f"out-{rank}.txt", "w") as file:
    file.write(rank)
with open("train.log", "a") as log:
    log.write(f"trained {rank}\\n")
checkpoints = os.environ["CLIENT_LIB_CHECKPOINT_DIR"]
with open(os.path.join(checkpoints, f"{rank}.pt"), "w") as file:
    file.write("weights")
print(checkpoints)
until = time.monotonic() + 60
while rank == "0" and "trained 1" not in open("train.log").read() and time.monotonic() < until:
    time.sleep(0.1)  # the file is read for as long as worker 0 has ranks that run
"""
COUNTS = """
import os
path = os.path.join(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print("from", step)
if os.environ["WORLD_SIZE"] == "1":
    with open(path, "w") as file:
        file.write(str(step + 1))
"""
LEAVE = """
import os
os.makedirs("models", exist_ok=True)
with open(f"models/{os.environ['RANK']}.bin", "w") as file:
    file.write("weights of " + os.environ["RANK"])
"""


@pytest.fixture(scope="session")
def shared_local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("shared-local"))
    yield place
    place.close()


@pytest.fixture(scope="session")
def shared_cluster(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Its home is the volume of that name, which every pod has."""
    folder = tmp_path_factory.mktemp("shared-cluster")
    home = home_of(folder)
    cluster.namespace(NAMESPACE)
    make_volume(cluster, home)
    catalogue = (
        f"{CATALOGUE}volumes: [{{name: home, claim: home, always: {home}, mount: whole}}]\n"
        f"checkpoints: {{volume: home, path: {home}/checkpoints}}\n"
    )
    place = ClusterPlace(folder, cluster, NAMESPACE, catalogue=catalogue)
    yield place
    place.close()


def home_of(folder: Path) -> Path:
    """Where scripts of jobs in place lie; every user may write there."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    return home


def make_volume(
    cluster: Cluster, folder: Path, namespace: str = NAMESPACE, claim_name: str = "home"
) -> None:
    """A claim whose files are those of `folder` on this machine."""
    meta, name = {"name": claim_name, "namespace": namespace}, f"{claim_name}-{namespace}"
    shared: dict[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **shared,
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder)},
            "claimRef": meta,
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": meta,
        "spec": {**shared, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name},
    }
    cluster.api.apply(f"/api/v1/persistentvolumes/{name}", volume)
    cluster.api.apply(f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}", claim)


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def shared(request: pytest.FixtureRequest) -> Iterator[Place]:
    found: Place = request.getfixturevalue(
        "shared_local" if request.param == "local" else "shared_cluster"
    )
    yield from looked_over(found)


def in_place(place: Place, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> tuple[Job, Path]:
    """A job in place, submitted from the folder of its script."""
    folder = Path(tempfile.mkdtemp(dir=home_of(place.folder)))
    folder.chmod(0o777)
    (folder / "train.py").write_text(BESIDE)
    monkeypatch.chdir(folder)
    job = Job(
        script="train.py",
        code="in_place",
        client=place.client,
        instance_type=place.instance_type,
        **fields,
    )
    job.submit()
    return ended(job), folder


def test_a_job_in_place_runs_where_its_script_lies_and_leaves_its_files_there(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, folder = in_place(shared, monkeypatch, n_workers=2)
    info = job.info()
    assert info.state is State.SUCCEEDED, info.message
    assert info.code.mode == "in_place"
    assert sorted(path.name for path in folder.glob("out-*")) == ["out-0.txt", "out-1.txt"]
    lines = [entry.text for entry in job.log_entries(follow=False, stream=["train.log"])]
    assert sorted(lines) == ["trained 0", "trained 1"]  # one file of all ranks, tailed once


def test_checkpoints_are_one_folder_of_the_job_that_outlives_it(
    shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, _ = in_place(shared, monkeypatch, n_workers=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    (folder,) = {entry.text for entry in job.log_entries(follow=False, stream=["stdout"])}
    assert sorted(path.name for path in Path(folder).iterdir()) == ["0.pt", "1.pt"]


def test_a_job_that_is_submitted_again_goes_on_from_its_checkpoints(shared: Place) -> None:
    first = shared.run(COUNTS)
    second = ended(shared.client.resubmit(str(first.name)))
    assert second.info().state is State.SUCCEEDED, second.info().message
    # each goes on from the first's: a copy, so that neither writes into the other's
    for job in (first, second):
        again = ended(shared.client.resubmit(str(job.name), n_workers=2))
        printed = [entry.text for entry in again.log_entries(follow=False, stream=["stdout"])]
        assert printed == [f"from {1 if job is first else 2}"] * 2, again.info().message


def test_what_ranks_of_a_snapshot_leave_is_downloaded(shared: Place, tmp_path: Path) -> None:
    job = shared.run(LEAVE, n_workers=2)
    assert job.info().state is State.SUCCEEDED, job.info().message
    job.download(tmp_path)
    found = {path.name: path.read_text() for path in tmp_path.rglob("*.bin")}
    assert found == {"0.bin": "weights of 0", "1.bin": "weights of 1"}
