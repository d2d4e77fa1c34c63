"""Two users of one server on a real cluster: their files on volumes, and the network
of their pods, are apart.
"""

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from client_lib import Client, Job
from client_lib.errors import InvalidRequest
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.contract.conftest import looked_over
from tests.contract.places import CATALOGUE, ClusterPlace, becomes, ended, new_token, prints
from tests.contract.test_promises import STAY
from tests.contract.test_shared_folders import COUNTS, make_volume

pytestmark = pytest.mark.cluster

NAMESPACE = "volumes"
VOLUMES = """\
volumes:
  - {{name: models, claim: models{mount}}}
  - {{name: scratch, claim: scratch}}
  - {{name: team, claim: scratch, mount: whole, users: [tester]}}
checkpoints: {{volume: models, path: /models}}
"""
LEAVES = """
import os
found = sorted(name for name in os.listdir("/scratch"))
with open("/scratch/" + os.environ["WHO"], "w") as file:
    file.write("mine")
print("found", found, "checkpoints", os.listdir("/models"))
"""
CONTINUES = """
import os, time
path = os.path.join(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
with open(path, "w") as file:
    file.write(str(step + 1))
print("from", step, flush=True)
time.sleep(0 if step else 600)
"""


class Volumes(ClusterPlace):
    """A cluster with volumes whose files lie below `folder`."""

    def choose_mount(self, mount: str) -> None:
        """Write the catalogue; the server reads it at its start."""
        self.file.write_text(CATALOGUE + VOLUMES.format(mount=mount))

    def files(self, claim: str) -> list[str]:
        root = self.folder / claim
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def started(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volumes]:
    folder = tmp_path_factory.mktemp("volumes")
    cluster.namespace(NAMESPACE)
    for claim in ("models", "scratch"):
        (folder / claim).mkdir()
        (folder / claim).chmod(0o777)
        make_volume(cluster, folder / claim, NAMESPACE, claim)
    place = Volumes(folder, cluster, NAMESPACE, catalogue=CATALOGUE + VOLUMES.format(mount=""))
    yield place
    place.close()


@pytest.fixture
def place(started: Volumes) -> Iterator[Volumes]:
    yield from looked_over(started)


def printed(job: Job) -> list[str]:
    return [entry.text for entry in job.log_entries(follow=False, stream=["stdout"])]


def test_two_users_see_none_of_each_others_files(place: Volumes) -> None:
    other = Client(place.url, new_token(place.folder / "users.toml", "Other"), insecure=True)
    said = []
    for who, client in (("tester", place.client), ("other", other), ("tester", place.client)):
        job = place.run(
            LEAVES, client=client, volumes=["scratch:/scratch"], env_variables={"WHO": who}
        )
        assert job.info().state is State.SUCCEEDED, job.info().message
        said += printed(job)
    assert [each.partition(" checkpoints ")[0] for each in said] == [
        "found []",
        "found []",
        "found ['tester']",
    ]
    # of all checkpoint folders its own
    assert [each.count("script-") for each in said] == [1, 1, 1]
    assert place.files("scratch") == ["owners/%4fther/other", "owners/tester/tester"]


def test_a_volume_of_others_is_refused_when_the_job_is_submitted(place: Volumes) -> None:
    other = Client(place.url, new_token(place.folder / "users.toml", "another"), insecure=True)
    job = place.job(STAY, client=other, volumes=["team:/team"])
    with pytest.raises(
        InvalidRequest, match="volume 'team' can't be mounted by jobs of another: it is for tester"
    ):
        job.submit()


def test_a_job_that_is_submitted_again_begins_with_a_copy_of_the_checkpoints(
    place: Volumes,
) -> None:
    first = place.run(COUNTS)
    for step in (1, 1):  # neither writes into the first's
        again = ended(place.client.resubmit(str(first.name)))
        assert again.info().state is State.SUCCEEDED, again.info().message
        assert printed(again) == [f"from {step}"]


def test_checkpoints_of_a_version_that_mounted_the_whole_volume_are_found(place: Volumes) -> None:
    """A job that runs while the server is replaced finds them at its retry, and
    so does a resubmitted job.
    """
    place.restart(signal.SIGTERM, pause=lambda: place.choose_mount(", mount: whole"))
    job = place.job(CONTINUES, max_retry=1)
    job.submit()
    prints(job, "from 0")
    place.restart(signal.SIGTERM, pause=lambda: place.choose_mount(""))
    job = place.client.get_job(str(job.name))
    becomes(job, State.RUNNING)
    (pod,) = place.pods(job)
    place.cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod['metadata']['name']}")
    assert ended(job).info().state is State.SUCCEEDED, job.info().message
    assert printed(job)[-1] == "from 1"
    again = ended(place.client.resubmit(str(job.name)))
    assert printed(again) == ["from 2"], again.info().message


def test_a_volume_that_the_job_can_not_write_to_is_said_before_it_trains(place: Volumes) -> None:
    (place.folder / "models").chmod(0o755)
    try:
        info = place.run(COUNTS).info()
    finally:
        (place.folder / "models").chmod(0o777)
    assert (info.state, info.reason) == (State.FAILED, Reason.START_FAILED)
    assert "user 1000 can't write to the checkpoint folder /models/script-" in info.message


def test_each_job_has_a_policy_that_selects_its_pods_alone(place: Volumes) -> None:
    """The test cluster's network enforces none: what is selected is all that can be seen."""
    jobs = [place.job(STAY, name=name, n_workers=2) for name in ("one", "two")]
    for job in jobs:
        job.submit()
    for job in jobs:
        becomes(job, State.RUNNING)
    found = place.cluster.api.get(
        f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
    )["items"]
    policies: dict[str, dict[str, Any]] = {each["metadata"]["name"]: each for each in found}
    assert sorted(policies) == ["one-network", "two-network"]
    for job in jobs:
        spec = policies[f"{job.name}-network"]["spec"]
        chosen = place.cluster.api.get(
            f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector={selector(spec)}"
        )["items"]
        assert sorted(pod["metadata"]["name"] for pod in chosen) == [
            f"{job.name}-master-0",
            f"{job.name}-worker-0",
        ]
        own, *others = spec["ingress"][0]["from"]
        assert own == {"podSelector": spec["podSelector"]}
        # the server, which is on this machine
        assert [sorted(each) for each in others] == [["ipBlock"]]
        job.cancel()
        ended(job)


def selector(spec: dict[str, Any]) -> str:
    labels: dict[str, str] = spec["podSelector"]["matchLabels"]
    return "%2C".join(f"{name.replace('/', '%2F')}%3D{value}" for name, value in labels.items())
