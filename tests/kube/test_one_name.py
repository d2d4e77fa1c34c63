"""Two users' jobs of one name in one namespace, made on a real API server, also by servers that are killed."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace

import pytest

from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.acts import Acts
from server_stub.runtimes.kube.api import connect
from server_stub.runtimes.kube.facts import TrainingJob
from server_stub.runtimes.kube.making import GivenUp, Making
from server_stub.runtimes.kube.record import Record
from server_stub.runtimes.kube.refusals import Refusal
from tests.cluster import Cluster
from tests.kube.cases import CLUSTER, Builder
from tests.kube.test_real_api import PATHS

NAMESPACE = "one-name"
JOBS = PATHS["PyTorchJob"].format(NAMESPACE)

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cluster(control_plane: Cluster) -> Cluster:
    control_plane.namespace(NAMESPACE)
    return control_plane


def attempt_of(owner: str, name: str, number: int = 1) -> Attempt:
    made = Builder(number=number).build(name).attempt
    return replace(made, job_id=uuid.uuid4().hex, owner=owner, fresh=True)


async def make(cluster: Cluster, attempt: Attempt, known: Record | None = None) -> tuple[GivenUp | None, Making]:
    async def take(_: TrainingJob) -> None: ...

    async def pause(_: float) -> None: ...

    def say(refusal: Refusal) -> None:
        raise AssertionError(refusal)

    acts = Acts(connect(cluster.kubeconfig, None), NAMESPACE)
    settings = replace(CLUSTER, namespace=NAMESPACE)
    making = Making(attempt, settings, Builder().build("x").catalogue, acts, take, say, pause)
    return await making.make("token", known or Record(), lambda: False), making


def job_ids(cluster: Cluster, prefix: str) -> dict[str, str]:
    found = [each["metadata"] for each in cluster.api.get(JOBS)["items"]]
    return {each["name"]: each["labels"][names.JOB_ID] for each in found if each["name"].startswith(prefix)}


@pytest.mark.parametrize("number", [1, 2])
async def test_the_second_has_its_owners_mark_and_a_third_its_own(cluster: Cluster, number: int) -> None:
    attempts = [attempt_of(owner, f"train-{number}", number) for owner in ("ann", "bob", "cid")]
    made = [(await make(cluster, attempt))[1].name for attempt in attempts]
    assert made[0] == names.object_name(f"train-{number}", number)
    assert all(re.fullmatch(rf"train-{number}-[0-9a-f]{{6}}(-r2)?", name) for name in made[1:])
    assert job_ids(cluster, f"train-{number}") == {
        name: attempt.job_id for name, attempt in zip(made, attempts, strict=True)
    }


async def test_one_whose_server_was_killed_finds_its_own_though_the_first_name_is_free(cluster: Cluster) -> None:
    first, second = attempt_of("ann", "again"), attempt_of("bob", "again")
    await make(cluster, first)
    marked = (await make(cluster, second))[1].name
    cluster.api.delete(f"{JOBS}/again")
    given_up, making = await make(cluster, replace(second, fresh=False))
    assert (given_up, making.name) == (None, marked)
    assert job_ids(cluster, "again") == {marked: second.job_id}


async def test_one_that_has_the_first_name_keeps_it(cluster: Cluster) -> None:
    first = attempt_of("ann", "keeps")
    for fresh in (True, False):
        given_up, making = await make(cluster, replace(first, fresh=fresh))
        assert (given_up, making.name) == (None, "keeps")
    assert job_ids(cluster, "keeps") == {"keeps": first.job_id}


async def test_where_both_names_are_taken_the_job_says_what_to_do(cluster: Cluster) -> None:
    await make(cluster, attempt_of("ann", "full"))
    await make(cluster, attempt_of("bob", "full"))
    given_up, making = await make(cluster, attempt_of("bob", "full"))  # as another server's bob would
    assert given_up is not None
    assert (given_up.reason, given_up.uid) == (Reason.START_FAILED, None)
    assert given_up.message == (
        f"PyTorchJob {making.name} is there already, and not of this job: give the job another name"
    )
