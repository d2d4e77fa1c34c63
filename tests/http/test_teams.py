"""Teams of the users file: what their users may ask for, and what a job
gets that asks for nothing.
"""

from collections.abc import Callable
from typing import Any

import pytest

from client_lib.spec import paths
from tests.http.conftest import Api, Running
from tests.kit.issuer import oidc_table, running_issuer
from tests.kit.waiting import until

TEAMS = """
[[teams]]
name = "vision"
users = ["ann"]
groups = ["researchers"]
instance_types = ["a100.1gpu", "a100.8gpu"]
queues = ["team-vision"]

[[teams]]
name = "others"
users = ["*"]
instance_types = ["cpu.2C.8G"]
"""


def with_teams(server: Running, teams: str = TEAMS) -> None:
    assert server.settings.users_file
    with server.settings.users_file.open("a") as file:
        file.write(teams)


def asked(api: Api, **spec: Any) -> tuple[str | None, str | None]:
    """Instance type and queue of a job that was accepted."""
    answer = api.submit(**spec)
    assert answer.status_code == 201, answer.text
    spec = answer.json()["spec"]
    return spec["instance_type"], spec["queue_name"]


def test_a_job_that_names_nothing_gets_the_first_of_its_team(server: Running) -> None:
    assert asked(server.as_user("ann")) == (None, None)
    with_teams(server)  # without a restart
    assert asked(server.as_user("ann")) == ("a100.1gpu", "team-vision")
    assert asked(server.as_user("ann"), instance_type="a100.8gpu") == ("a100.8gpu", "team-vision")
    assert asked(server.as_user("ben"), queue_name="any") == ("cpu.2C.8G", "any")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"instance_type": "cpu.2C.8G"}, "instance_type='cpu.2C.8G' is not for team vision"),
        ({"queue_name": "team-speech"}, "queue_name='team-speech' is not for team vision"),
    ],
)
def test_what_another_team_has_is_refused(spec: dict[str, str], says: str, server: Running) -> None:
    with_teams(server)
    body = {
        "spec": {"script": "echo hello", "type": "binary", **spec},
        "code": {"mode": "in_place"},
    }
    group = {"name": "scan", "request": body, "members": [{"args": [], "values": {}}]}
    for path, sent in ((paths.JOBS, body), (paths.RENDER, body), (paths.GROUPS, group)):
        answer = server.as_user("ann")("POST", path, json=sent)
        assert (answer.status_code, answer.json()["message"]) == (403, says)


def test_a_group_has_the_defaults_of_the_team_in_each_job(server: Running) -> None:
    with_teams(server)
    body = {"spec": {"script": "echo hello", "type": "binary"}, "code": {"mode": "in_place"}}
    members = [{"args": [], "values": {}}, {"args": ["x"], "values": {}}]
    assert server.as_user("ann")(
        "POST", paths.GROUPS, json={"name": "scan", "request": body, "members": members}
    ).ok
    jobs = server.as_user("ann")("GET", f"{paths.JOBS}?group=scan").json()["jobs"]
    assert [job["spec"]["queue_name"] for job in jobs] == ["team-vision"] * 2


def test_a_group_from_before_the_team_runs_again_with_its_defaults(server: Running) -> None:
    ann = server.as_user("ann")
    body = {"spec": {"script": "echo hello", "type": "binary"}, "code": {"mode": "in_place"}}
    members: list[dict[str, Any]] = [{"args": [], "values": {}}] * 2
    assert ann("POST", paths.GROUPS, json={"name": "scan", "request": body, "members": members}).ok
    assert ann("POST", paths.group("scan", "cancel")).ok
    until(
        lambda: (
            {job["state"] for job in ann("GET", f"{paths.JOBS}?group=scan").json()["jobs"]}
            == {"CANCELLED"}
        )
    )
    with_teams(server)
    assert ann("POST", paths.group("scan", "resubmit")).ok
    jobs = ann("GET", f"{paths.JOBS}?group=scan").json()["jobs"]
    assert [job["spec"]["queue_name"] for job in jobs] == ["team-vision"] * 2


def test_a_user_sees_the_types_of_the_team_alone(server: Running) -> None:
    def types(name: str) -> list[str]:
        return [
            each["name"]
            for each in server.as_user(name)("GET", paths.INSTANCE_TYPES).json()["instance_types"]
        ]

    with_teams(server)
    assert (types("ann"), types("ben")) == ([], ["cpu.2C.8G"])  # the one type of the runtime


def test_a_group_of_the_issuer_is_in_a_team(start_server: Callable[..., Running]) -> None:
    with running_issuer() as issuer:
        server = start_server(users_more=oidc_table(issuer.url))
        token = issuer.token(groups=["researchers", "more"])
        assert asked(Api(server.url, token)) == (None, None)
        with_teams(server)
        assert asked(Api(server.url, token)) == ("a100.1gpu", "team-vision")
        assert asked(Api(server.url, issuer.token(groups=[]))) == ("cpu.2C.8G", None)


def test_a_team_with_an_unknown_key_is_refused_with_its_place(server: Running) -> None:
    with_teams(server, "[[teams]]\nname = 'x'\nqueue = 'y'\n")
    assert asked(server.as_user("ann")) == (None, None)  # the users of before


def test_a_job_has_team_and_namespace_of_its_owner_and_no_client_chooses_them(
    server: Running,
) -> None:
    def place(api: Api, **sent: Any) -> tuple[object, ...]:
        body = {
            "spec": {"script": "echo hello", "type": "binary"},
            "code": {"mode": "in_place"},
            **sent,
        }
        answer = api("POST", paths.JOBS, json=body)
        assert answer.status_code == 201, answer.text
        attempt = server.runtime.attempts[answer.json()["id"]]
        return attempt.team, attempt.namespace, attempt.service_account, attempt.pull_secrets

    ann, ben = server.as_user("ann"), server.as_user("ben")
    of_cluster = "namespace = 'vision'\nservice_account = 'buckets'\npull_secrets = ['registry']\n"
    with_teams(server, f"[[teams]]\nname = 'v'\nusers = ['ann']\n{of_cluster}")
    expected = [("v", "vision", "buckets", ("registry",)), (None, None, None, ())]
    assert [place(each) for each in (ann, ben)] == expected
    sent = {"namespace": "kube-system", "team": "admins", "service_account": "admin"}
    assert [place(each, **sent) for each in (ann, ben)] == expected


def test_a_namespace_that_no_cluster_could_have_is_refused(server: Running) -> None:
    with_teams(server, "[[teams]]\nname = 'x'\nusers = ['*']\nnamespace = 'A/b'\nqueues = ['y']\n")
    assert asked(server.as_user("ann")) == (None, None)  # the users of before
