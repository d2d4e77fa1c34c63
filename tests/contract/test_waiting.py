"""Why a job waits for its image on a real cluster, in words; and that it
goes on when that is over.
"""

import base64
import json
import uuid
from collections.abc import Iterator

import pytest

from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import CATALOGUE, ClusterPlace, ended, says
from tests.contract.registry import HOST, Registry, python_archive, registry
from tests.contract.test_promises import STAY, texts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

NAMESPACE = "waiting"


@pytest.fixture(scope="module")
def images(cluster: Cluster) -> Iterator[Registry]:
    with registry(cluster) as found:
        yield found


@pytest.fixture(scope="module")
def waiting(
    cluster: Cluster, images: Registry, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    """Pulls for itself, some images under another name, with a password."""
    folder = tmp_path_factory.mktemp("waiting")
    pulling = f"  pull_secrets: [registry]\n  aliases: {{example.com/: {HOST}/private/}}\n"
    catalogue = CATALOGUE.replace("  pull_policy: Never\n", pulling)
    place = ClusterPlace(folder, cluster, NAMESPACE, catalogue=catalogue)
    yield place
    place.close()


@pytest.fixture(autouse=True)
def left(waiting: ClusterPlace) -> Iterator[None]:
    yield
    assert_nothing_is_left(waiting)


@pytest.fixture
def password(waiting: ClusterPlace) -> Iterator[None]:
    """What the catalogue's `pull_secrets` names."""
    known = {"auths": {HOST: {"auth": base64.b64encode(b"me:mine").decode()}}}
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "registry"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": json.dumps(known)},
    }
    waiting.cluster.api.create(secrets, made)
    yield
    waiting.cluster.api.delete(f"{secrets}/registry")


@pytest.mark.parametrize(
    ("image", "whys"),
    [
        (f"{HOST}/none:1", ["not found"]),
        (
            f"{HOST}/private/python:1",
            ["the registry refuses it", "there is no pull secret registry"],
        ),
    ],
)
def test_an_image_that_can_not_be_pulled_says_why(
    waiting: ClusterPlace, image: str, whys: list[str]
) -> None:
    job = waiting.job(STAY, base_image=image)
    job.submit()
    says(job, f"image '{image}' can't be pulled: ")
    for why in whys:
        says(job, why)
    info = job.info()
    assert (info.state, info.reason) == (State.PENDING, Reason.IMAGE_PULL)
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


def test_an_image_of_a_private_registry_under_another_name_is_pulled(
    waiting: ClusterPlace, images: Registry, password: None
) -> None:
    tag = uuid.uuid4().hex  # a node keeps its images from one run of the tests to the next
    images.add("private/python", tag, python_archive(waiting.cluster))
    job = waiting.job("print('ran')\n", base_image=f"example.com/python:{tag}")
    job.submit()
    says(job, f"image '{HOST}/private/python:{tag}' is being pulled on node node1; waits since")
    assert job.info().reason is Reason.IMAGE_PULL
    images.let_go.set()
    info = ended(job).info()
    assert info.state is State.SUCCEEDED, info.message
    assert texts(job, stream=["stdout"]) == ["ran"]
