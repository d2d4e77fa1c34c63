"""Two users' jobs of one name in one namespace, made on a real API server, also
by servers that are killed.
"""

import asyncio
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from client_lib.spec.states import Reason
from server_stub.runtimes import Attempt
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.api import connect
from server_stub.runtimes.kube.cluster import Cluster
from server_stub.runtimes.kube.objects import AttemptObjects, Record
from server_stub.runtimes.kube.observe.messages import Blocker
from tests.cluster import Cluster as RealCluster
from tests.kube.cases import Builder
from tests.kube.test_real_api import PATHS

NAMESPACE = "one-name"
JOBS = PATHS["PyTorchJob"].format(NAMESPACE)

pytestmark = [pytest.mark.cluster, pytest.mark.anyio]


@pytest.fixture
def cluster(control_plane: RealCluster) -> RealCluster:
    control_plane.namespace(NAMESPACE)
    return control_plane


def attempt_of(owner: str, name: str, number: int = 1) -> Attempt:
    made = Builder(number=number).build(name).attempt
    return replace(made, job_id=uuid.uuid4().hex, owner=owner, never_started=True)


async def make(
    cluster: RealCluster, attempt: Attempt, ended: Sequence[Attempt] = (), goes: str | None = None
) -> tuple[Blocker | None, AttemptObjects]:
    """`ended`: of these something is left, which goes when the attempt waits for
    it: the PyTorchJob `goes`.
    """
    registry = cast(Any, SimpleNamespace(token=lambda *key: "token"))
    settings = replace(Builder().build("x").cluster, namespace=NAMESPACE)
    access = Cluster.of(connect(cluster.kubeconfig, None), settings, registry)
    access.ended.update(names.AttemptKey(each.job_id, each.number) for each in ended)
    making, said = (
        AttemptObjects(attempt, access, Record(), asyncio.Event()),
        list[tuple[Reason, str]](),
    )
    while (blocked := await making.try_to_create()) is not None and not blocked.permanent:
        said.append((blocked.reason, blocked.message))
        policies = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
        # nobody collects garbage here
        for path in (f"{JOBS}/{goes}", f"{policies}/{goes}{names.POLICY}"):
            cluster.api.delete(path)
    awaited = f"waits until PyTorchJob {goes}, of a job that has ended, is gone"
    assert said == ([(Reason.QUEUED, awaited)] if goes else [])
    return blocked, making


def job_ids(cluster: RealCluster, prefix: str) -> dict[str, str]:
    found = [each["metadata"] for each in cluster.api.get(JOBS)["items"]]
    return {
        each["name"]: each["labels"][names.JOB_ID]
        for each in found
        if each["name"].startswith(prefix)
    }


@pytest.mark.parametrize("number", [1, 2])
async def test_the_second_has_its_owners_mark_and_a_third_its_own(
    cluster: RealCluster, number: int
) -> None:
    attempts = [attempt_of(owner, f"train-{number}", number) for owner in ("ann", "bob", "cid")]
    made = [(await make(cluster, attempt))[1].name for attempt in attempts]
    assert made[0] == names.object_name(f"train-{number}", number)
    assert all(re.fullmatch(rf"train-{number}-[0-9a-f]{{6}}(-r2)?", name) for name in made[1:])
    assert job_ids(cluster, f"train-{number}") == {
        name: attempt.job_id for name, attempt in zip(made, attempts, strict=True)
    }


async def test_one_whose_server_was_killed_finds_its_own_though_the_first_name_is_free(
    cluster: RealCluster,
) -> None:
    first, second = attempt_of("ann", "again"), attempt_of("bob", "again")
    await make(cluster, first)
    marked = (await make(cluster, second))[1].name
    cluster.api.delete(f"{JOBS}/again")
    refused, making = await make(cluster, replace(second, never_started=False))
    assert (refused, making.name) == (None, marked)
    assert job_ids(cluster, "again") == {marked: second.job_id}


async def test_one_that_has_the_first_name_keeps_it(cluster: RealCluster) -> None:
    first = attempt_of("ann", "keeps")
    for fresh in (True, False):
        refused, making = await make(cluster, replace(first, never_started=fresh))
        assert (refused, making.name) == (None, "keeps")
    assert job_ids(cluster, "keeps") == {"keeps": first.job_id}


async def test_where_both_names_are_taken_the_job_says_what_to_do(cluster: RealCluster) -> None:
    await make(cluster, attempt_of("ann", "full"))
    await make(cluster, attempt_of("bob", "full"))
    # as another server's bob would
    refused, making = await make(cluster, attempt_of("bob", "full"))
    assert refused is not None
    assert (refused.reason, making.uid) == (Reason.START_FAILED, None)
    assert refused.message == (
        f"PyTorchJob {making.name} is there already, and not of this job: give the job another name"
    )


async def test_one_that_has_ended_is_awaited_where_both_names_are_taken(
    cluster: RealCluster,
) -> None:
    """A name that is given again and again, while a thousand jobs before it are being removed."""
    attempts = [attempt_of("ann", "repeated") for _ in range(3)]
    await make(cluster, attempts[0])
    marked = (await make(cluster, attempts[1], ended=attempts))[1].name
    assert marked != "repeated"
    refused, making = await make(cluster, attempts[2], ended=attempts, goes=marked)
    assert (refused, making.name) == (None, marked)
    assert job_ids(cluster, "repeated") == {
        "repeated": attempts[0].job_id,
        marked: attempts[2].job_id,
    }
