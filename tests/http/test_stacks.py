"""The stacks of a job over HTTP: the users who may see them, and the jobs that have any."""

from collections.abc import Callable
from typing import Any

import pytest

from client_lib import Client
from client_lib.errors import NotSupported
from client_lib.spec import paths
from client_lib.spec.stacks import RankStacks, groups
from tests.http.conftest import Api, Running
from tests.kit.small_server import SmallServer

STACKS = paths.job("train", "stacks")


@pytest.fixture
def running(server: Running, ann: Api) -> str:
    """A job of ann that runs."""
    return runs(server, ann)


def runs(server: Running, user: Api, **fields: Any) -> str:
    job = user.submit(name="train", **fields).json()
    server.call(lambda: server.runtime.runs(job["id"]))
    while job["state"] != "RUNNING":
        job = user("GET", paths.job("train"), params={"after_version": job["version"]}).json()
    name: str = job["id"]
    return name


def test_the_owner_and_admins_see_them(running: str, ann: Api, ben: Api, root: Api) -> None:
    for answer in (ann("GET", STACKS), root("GET", STACKS, params={"owner": "ann"})):
        assert answer.status_code == 200, answer.text
        (rank,) = answer.json()["ranks"]
        assert rank["processes"][0]["name"] == f"{running}.1"
        assert answer.json()["groups"] == groups([RankStacks.model_validate(rank)]) != []
    assert ben("GET", STACKS).status_code == 404
    assert ben("GET", STACKS, params={"owner": "ann"}).status_code == 404


def test_no_other_user_sees_them_where_the_server_shares_jobs(
    start_server: Callable[..., Running],
) -> None:
    server = start_server(share_jobs=True)
    runs(server, server.as_user("ann"))
    answer = server.as_user("ben")("GET", STACKS, params={"owner": "ann"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")


def test_a_job_that_does_not_run_has_none(server: Running, ann: Api) -> None:
    ann.submit(name="train")
    answer = ann("GET", STACKS)
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "PENDING" in answer.json()["message"]


def test_a_job_may_forbid_them(ann: Api, server: Running) -> None:
    runs(server, ann, observe=False)
    assert "observe=False" in ann("GET", STACKS).json()["message"]


def test_a_server_of_an_earlier_version_is_told_from_a_missing_job(ann: Api) -> None:
    # as this server answers for a path that it does not know
    unknown = ann("GET", f"{paths.JOBS}/train/unknown-to-this-one")
    with SmallServer() as earlier:
        earlier.every_answer = (unknown.status_code, unknown.json())
        with pytest.raises(NotSupported, match="version"):
            Client(earlier.url, ann.token).job_stacks("train")
