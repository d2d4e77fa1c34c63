"""Queues of a real Kueue, with both kinds of job: quota, borrowing in a cohort,
preemption, what a waiting job says.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from client_lib.errors import NotSupported
from client_lib.spec.states import Reason, State
from server_stub.runtimes.kube.api import connect
from server_stub.runtimes.kube.queues import is_queued
from tests.cluster import Cluster, objects
from tests.cluster.needs import missing
from tests.cluster.waiting import until
from tests.contract.conftest import looked_over
from tests.contract.places import ClusterPlace, becomes, ended, prints, says
from tests.contract.test_promises import STAY, texts
from tests.contract.test_teams import with_team

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

ONCE = (
    "import os, time\nprint('up', flush=True)\nif os.environ['CLIENT_LIB_ATTEMPT'] == '1':\n    "
    "time.sleep(600)\n"
)


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Cluster:
    """The cluster with Kueue beside all else. Jobs outside the namespaces
    of these tests go past it.
    """
    if lack := missing({"kueue"}):
        pytest.skip(lack)
    cluster.up({"kueue"}, (), print)
    cluster.api.apply(*objects.flavor("plain"))
    return cluster


@pytest.fixture(scope="module", params=["pytorchjob", "trainjob"])
def queued(
    request: pytest.FixtureRequest, kueue: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterPlace]:
    namespace = f"queues-{request.param}"
    kueue.namespace(namespace)
    kueue.api.merge(
        f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {objects.QUEUES: "true"}}}
    )
    place = ClusterPlace(tmp_path_factory.mktemp(namespace), kueue, namespace, kind=request.param)
    yield place
    place.close()


@pytest.fixture
def place(queued: ClusterPlace) -> Iterator[ClusterPlace]:
    yield from looked_over(queued)


@pytest.fixture
def queue(place: ClusterPlace) -> Iterator[Callable[..., None]]:
    """Makes a queue of so many cores, with a ClusterQueue of its own."""
    made: list[str] = []

    def make(name: str, cpu: str, **more: Any) -> None:
        preemption = {"reclaimWithinCohort": "Any"}
        for path, body in objects.queue(place.namespace, name, cpu, preemption=preemption, **more):
            place.cluster.api.apply(path, body)
            made.append(path)

    yield make
    for path in reversed(made):
        place.cluster.api.delete(path)


def test_jobs_wait_for_the_quota_of_their_queue_in_turn(
    place: ClusterPlace, queue: Callable[..., None]
) -> None:
    queue("team-a", "300m")
    queue("team-b", "300m")
    first, second, third = (
        place.job(script, n_workers=workers, instance_type="tiny", queue_name="team-a")
        for script, workers in ((STAY, 2), (STAY, 1), ("print('ran')\n", 2))
    )
    first.submit()
    prints(first, "up", times=2)
    second.submit()
    says(second, "1st of 1 in queue team-a; 0.3 of 0.3 cores of the quota are in use; waits since")
    third.submit()
    says(third, "2nd of 2 in queue team-a; 0.3 of 0.3 cores of the quota are in use; waits since")
    assert third.info().reason is Reason.QUEUED
    assert place.pods(third) == []
    # its own quota is free
    other = place.run("print('ran')\n", instance_type="tiny", queue_name="team-b")
    assert other.info().state is State.SUCCEEDED, other.info().message
    first.cancel()
    prints(second, "up")
    says(third, "1st of 1 in queue team-a; 0.15 of 0.3 cores of the quota are in use; about ")
    second.cancel()
    info = ended(third).info()
    assert info.state is State.SUCCEEDED, info.message
    assert texts(third, stream=["stdout"]) == ["ran", "ran"]
    ended(first), ended(second)


def test_what_a_job_borrows_of_its_cohort_is_taken_back_and_it_runs_again(
    place: ClusterPlace, queue: Callable[..., None]
) -> None:
    for name in ("lender", "borrower"):
        queue(name, "150m", cohortName=place.namespace)
    borrows = place.job(ONCE, n_workers=2, instance_type="tiny", queue_name="borrower")
    borrows.submit()
    prints(borrows, "up", times=2)  # with 0.3 cores of a quota of 0.15
    lends = place.job(STAY, instance_type="tiny", queue_name="lender")
    lends.submit()
    prints(lends, "up")
    says(borrows, "1st of 1 in queue borrower")
    assert borrows.info().attempt == 2
    told = [event.message for event in borrows.events() if event.reason == "Preempted"]
    assert any("Kueue has taken its place in queue borrower back" in message for message in told), (
        told
    )
    lends.cancel()
    becomes(borrows, State.RUNNING)
    info = ended(borrows).info()
    assert (info.state, info.attempt) == (State.SUCCEEDED, 2), info.message
    ended(lends)


def test_a_queue_that_does_not_exist_is_named(place: ClusterPlace) -> None:
    job = place.job(STAY, queue_name="nowhere")
    job.submit()
    says(
        job,
        f"queue nowhere lets no job start: namespace {place.namespace} has no LocalQueue of this "
        "name",
    )
    assert job.info().reason is Reason.QUEUED
    job.cancel()
    assert ended(job).info().state is State.CANCELLED


def is_taken(place: ClusterPlace, namespace: str) -> bool:
    """True as soon as Kueue takes the place's kind of workload there."""
    api = connect(place.cluster.kubeconfig, None)
    return any(is_queued(api, place.kind, namespace) for _ in until(60, pause_s=0.2))


def test_a_kueue_is_found_by_what_it_does(place: ClusterPlace, kube: ClusterPlace) -> None:
    assert is_taken(place, place.namespace)
    api = connect(place.cluster.kubeconfig, None)
    assert not is_queued(api, place.kind, kube.namespace)
    with pytest.raises(NotSupported, match="queue_name='team': no Kueue of this cluster takes "):
        kube.job(STAY, queue_name="team").submit()


def test_the_namespace_of_a_team_decides_whether_its_jobs_may_name_a_queue(
    place: ClusterPlace,
) -> None:
    team = with_team(place, "ann", f"{place.namespace}-past-kueue")
    team.cluster.namespace(team.namespace)
    team.run("print('the server knows the namespace from now on')")

    def refusal() -> str:
        job = team.job(STAY, queue_name="team")
        try:
            job.submit()
        except NotSupported as error:
            return str(error)
        job.cancel()
        ended(job)
        return ""

    message = next(
        filter(None, (refusal() for _ in until(60, pause_s=0.5))), "it was never refused"
    )
    kind, namespace = place.kind.name, team.namespace
    assert message.startswith(
        f"queue_name='team': no Kueue of this cluster takes {kind}s of namespace {namespace}"
    )


def test_the_first_request_of_a_team_may_name_a_queue(kueue: Cluster, kube: ClusterPlace) -> None:
    """Also where Kueue ignores the namespace of the server, which looks at that of the
    team from this request on.
    """
    namespace = f"{kube.namespace}-queued"
    kueue.namespace(namespace)
    kueue.api.merge(
        f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {objects.QUEUES: "true"}}}
    )
    assert is_taken(kube, namespace)
    team = with_team(kube, "queued", namespace)
    assert team.job(STAY, queue_name="team").render()
