"""Two teams of one server, with a namespace each, on a real cluster."""

import copy
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from client_lib import Client, Job, list_jobs
from client_lib.spec.states import Reason, State
from tests.cluster import Cluster
from tests.cluster.waiting import until
from tests.contract.conftest import assert_nothing_is_left
from tests.contract.places import ClusterPlace, becomes, ended, new_token, prints, says
from tests.contract.test_promises import STAY, texts
from tests.deploy.test_permissions import ACCOUNT, rules, server_api

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
COUNT = """
import time
for i in range(100):
    print("line", i, flush=True)
    time.sleep(0.1)
"""


KINDS = ["pytorchjob", "trainjob"]


@contextmanager
def place_of(kind: str, cluster: Cluster, folder: Path) -> Iterator[ClusterPlace]:
    """A place that nothing is left in at its end."""
    place = ClusterPlace(folder, cluster, f"teams-{kind}", kind=kind)
    yield place
    assert_nothing_is_left(place)
    place.close()


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> Iterator[ClusterPlace]:
    with place_of(request.param, cluster, tmp_path) as place:
        yield place


def with_team(place: ClusterPlace, user: str, namespace: str) -> ClusterPlace:
    """The place as it is for a user whose team has this namespace. It has the server of `place`."""
    token = new_token(place.folder / "users.toml", user)
    with (place.folder / "users.toml").open("a") as file:
        file.write(
            f'[[teams]]\nname = "team of {user}"\nusers = ["{user}"]\nnamespace = "{namespace}"\n'
        )
    view = copy.copy(place)
    view.folder, view.namespace, view.client = (
        place.folder / user,
        namespace,
        Client(place.url, token, insecure=True),
    )
    view.folder.mkdir()
    return view


def test_the_jobs_of_two_teams_run_and_end_in_two_namespaces(place: ClusterPlace) -> None:
    teams = [with_team(place, user, f"{place.namespace}-{user}") for user in ("ann", "ben")]
    for team in teams:
        team.cluster.namespace(team.namespace)
    jobs = [team.job(COUNT, n_workers=2, name="one-name") for team in teams]
    for job in jobs:
        job.submit()
    for team, job in zip(teams, jobs, strict=True):
        prints(job, "line 5", times=2)
        owners = {pod["metadata"]["labels"]["client-lib.io/job-id"] for pod in team.pods(job)}
        assert owners == {job.info().id}
        kinds = {name.partition("/")[0] for name in team.leftovers()}
        assert {
            place.kind.plural,
            "configmaps",
            "secrets",
            "services",
            "networkpolicies",
            "pods",
        } <= kinds
        assert [each.info().owner for each in list_jobs(client=team.client)] == [job.info().owner]
    assert place.leftovers() == []
    place.restart(signal.SIGKILL)
    for job in jobs:
        assert ended(job).info().state is State.SUCCEEDED, job.info().message
        assert job.info().attempt == 1
        for rank in (0, 1):
            lines = texts(job, rank=[rank], stream=["stdout"])
            assert [line for line in lines if line.startswith("line")] == [
                f"line {i}" for i in range(100)
            ]
    for team in teams:
        assert_nothing_is_left(team)

    jobs = [team.job(STAY, n_workers=2) for team in teams]
    for job in jobs:
        job.submit()
    for job in jobs:
        becomes(job, State.RUNNING)
        job.cancel()
    for team, job in zip(teams, jobs, strict=True):
        assert ended(job).info().state is State.CANCELLED
        job.delete()
        assert_nothing_is_left(team)


def team_at_work(place: ClusterPlace, name: str) -> tuple[ClusterPlace, Job]:
    """A team with a namespace of its own, and its running job."""
    team = with_team(place, "ann", f"{place.namespace}-{name}")
    team.cluster.namespace(team.namespace)
    job = team.job(STAY)
    job.submit()
    becomes(job, State.RUNNING)
    return team, job


def test_a_job_stays_in_its_namespace_when_its_team_moves(place: ClusterPlace) -> None:
    old, job = team_at_work(place, "old")
    new = copy.copy(old)
    new.namespace = f"{place.namespace}-new"
    new.cluster.namespace(new.namespace)
    users = place.folder / "users.toml"
    users.write_text(users.read_text().replace(old.namespace, new.namespace))
    place.restart(signal.SIGKILL)
    assert new.leftovers() == []
    other = new.job(STAY)
    other.submit()
    becomes(other, State.RUNNING)
    assert (len(old.pods(job)), len(old.pods(other)), len(new.pods(other))) == (1, 0, 1)
    for each in (job, other):
        each.cancel()
    for each in (job, other):
        assert ended(each).info().state is State.CANCELLED
    assert_nothing_is_left(old)
    assert_nothing_is_left(new)


def test_a_job_waits_for_a_namespace_that_is_missing(place: ClusterPlace) -> None:
    team = with_team(place, "ann", f"{place.namespace}-later")
    place.restart(signal.SIGTERM)
    job = team.job(STAY)
    job.submit()
    says(job, f"the namespace '{team.namespace}' does not exist")
    info = job.info()
    assert (info.state, info.reason) == (State.PENDING, Reason.QUEUED)
    assert "1 job waits because this server lacks something in the cluster" in ready(place)
    missing = f'namespaces "{team.namespace}" not found'
    wrong = [check.message for check in place.client.doctor().checks if not check.ok]
    assert any(missing in message for message in wrong), wrong
    team.cluster.namespace(team.namespace)
    becomes(job, State.RUNNING)
    assert ready(place) == "ok\n"
    job.cancel()
    assert ended(job).info().state is State.CANCELLED
    assert_nothing_is_left(team)


def ready(place: ClusterPlace) -> str:
    return requests.get(f"{place.url}/readyz", timeout=30).text


def test_a_job_whose_request_is_damaged_is_stopped_in_its_namespace(place: ClusterPlace) -> None:
    team, job = team_at_work(place, "damaged")

    def damage() -> None:
        for file in (place.folder / "state" / "data" / "submissions").iterdir():
            file.write_bytes(file.read_bytes().replace(b'"spec":', b'"spac":'))

    place.restart(signal.SIGKILL, damage)
    info = ended(job).info()
    assert (info.state, info.reason) == (State.FAILED, Reason.SERVER_ERROR), info.message
    assert f"what was submitted as {job.name} can't be read" in info.message
    assert_nothing_is_left(team)


def grant(cluster: Cluster, namespace: str, of: str) -> None:
    """Give the account of namespace `of` the server's Role in another one."""
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": of}],
    }
    for kind, more in (("Role", {"rules": rules("role.yaml", "Role")}), ("RoleBinding", binding)):
        made = {"apiVersion": f"{rbac}/v1", "kind": kind, "metadata": {"name": ACCOUNT}, **more}
        cluster.api.apply(f"/apis/{rbac}/v1/namespaces/{namespace}/{kind.lower()}s/{ACCOUNT}", made)


@pytest.mark.parametrize("kind", KINDS)
def test_an_account_with_a_role_in_each_namespace_runs_and_cancels_jobs(
    cluster: Cluster, tmp_path: Path, kind: str
) -> None:
    own, users = f"roles-{kind}", ("ann", "ben")
    for namespace in (own, *(f"{own}-{user}" for user in users)):
        cluster.namespace(namespace)
        grant(cluster, namespace, own)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    cluster.api.apply(f"/api/v1/namespaces/{own}/serviceaccounts/{ACCOUNT}", account)
    server_api(cluster, tmp_path, own)
    place = ClusterPlace(tmp_path, cluster, own, kind=kind, KUBECONFIG=str(tmp_path / "kubeconfig"))
    try:
        teams = [with_team(place, user, f"{own}-{user}") for user in users]
        jobs = [team.job(STAY, n_workers=2, name="one-name") for team in teams]
        for job in jobs:
            job.submit()
        for team, job in zip(teams, jobs, strict=True):
            prints(job, "up", times=2)
            assert [each.info().id for each in list_jobs(client=team.client)] == [job.info().id]
            assert job.explain()
            job.cancel()
        for team, job in zip(teams, jobs, strict=True):
            assert ended(job).info().state is State.CANCELLED, job.info().message
            assert_nothing_is_left(team)
        assert permissions(place) == {"permissions": True} | {
            f"permissions in {team.namespace}": True for team in teams
        }
        bindings = (
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{teams[1].namespace}/rolebindings"
        )
        cluster.api.delete(f"{bindings}/{ACCOUNT}")
        lacking = f"permissions in {teams[1].namespace}"
        for _ in until(60, pause_s=0.5):
            if not permissions(place)[lacking]:
                break
        (check,) = [check for check in place.client.doctor().checks if check.name == lacking]
        assert check.message == f"the server may do nothing in namespace {teams[1].namespace}"
        assert "apply k8s/base/role.yaml in it" in str(check.fix)
        assert [name for name, ok in permissions(place).items() if not ok] == [lacking]
        job = teams[1].job(STAY)
        job.submit()
        says(job, "this server may not make")
        grant(cluster, teams[1].namespace, own)
        becomes(job, State.RUNNING)
        job.cancel()
        assert ended(job).info().state is State.CANCELLED, job.info().message
    finally:
        place.close()


def permissions(place: ClusterPlace) -> dict[str, bool]:
    """The checks of the server's rights in each namespace."""
    return {
        each.name: each.ok
        for each in place.client.doctor().checks
        if each.name.startswith("permissions")
    }
