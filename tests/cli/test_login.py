"""`client-lib login` at a real server with a real issuer: kept, renewed once, forgotten,
and refused with a reason.
"""

import base64
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.client import Client
from client_lib.errors import Unauthorized
from client_lib.transport import logins
from tests.http.conftest import Running, start_server  # noqa: F401  # a fixture
from tests.kit.issuer import CLIENT_ID, Issuer, oidc_table, running_issuer
from tests.kit.small_server import SmallServer

from .conftest import Run


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def url(issuer: Issuer, start_server: Callable[..., Running], environment: dict[str, str]) -> str:  # noqa: F811
    """The server of the issuer, to which every command of this test talks."""
    environment["CLIENT_LIB_ENDPOINT"] = start_server(users_more=oidc_table(issuer.url)).url
    return environment["CLIENT_LIB_ENDPOINT"]


@pytest.fixture
def file(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of logins, also of the SDK in this test."""
    # the SDK reads the variables of its own process
    monkeypatch.setattr(os, "environ", environment)
    return Path(environment["CLIENT_LIB_CONFIG"]).with_name("logins.json")


def test_a_login_is_kept_for_commands_and_the_sdk_until_the_logout(
    issuer: Issuer, url: str, cli: Run, file: Path
) -> None:
    issuer.pending = 2
    done = cli("login")
    assert done.returncode == 0, done.stderr
    assert f"open {issuer.url}/activate and confirm the code WDJB-MJHT" in done.stderr
    assert f"logged in at {url} as zoe" in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert cli("list").returncode == 0
    assert Client().server_info().user == "zoe"
    assert "logged out" in cli("logout").stderr
    assert not issuer.refresh
    refused = cli("list")
    assert refused.returncode != 0
    assert "`client-lib login` gets one" in refused.stderr
    assert "there is no login" in cli("logout").stderr


def test_a_token_is_renewed_before_it_expires_by_one_of_many(
    issuer: Issuer, url: str, cli: Run, file: Path
) -> None:
    issuer.lifetime_s = 6
    cli("login")
    client = Client()
    client.server_info()
    time.sleep(3.2)
    issuer.lifetime_s = 300
    threads = [threading.Thread(target=lambda: Client().server_info()) for _ in range(8)]
    [thread.start() for thread in threads]
    client.server_info()  # a client that has a connection with the old token
    [thread.join() for thread in threads]
    # the login, and one renewal: a second one would end the login
    assert issuer.asked["/token"] == 2
    time.sleep(3)
    assert client.server_info().user == "zoe"


def test_a_token_is_used_to_its_end_while_the_issuer_is_away(
    cli: Run, environment: dict[str, str], file: Path
) -> None:
    now = time.time()
    login = {
        "token": "t",
        "renew_at": now - 1,
        "ends": now + 60,
        "refresh_token": "r",
        "kind": "id_token",
    }
    login |= {"issuer": "http://127.0.0.1:9", "client_id": CLIENT_ID}
    file.write_text(json.dumps({"https://lab": login, "https://late": login | {"ends": now - 1}}))
    assert logins.endpoint("https://lab").token == "t"
    failed = cli("list", "--endpoint", "https://late")
    assert "the issuer does not answer: http://127.0.0.1:9/.well-known" in failed.stderr
    file.write_text("{")
    assert f"{file} can't be read" in cli("list", "--endpoint", "https://lab").stderr


def test_an_issuer_that_is_busy_ends_no_login(issuer: Issuer, url: str, file: Path) -> None:
    offer = {"issuer": issuer.url, "client_id": CLIENT_ID, "token": "id_token"}

    def show(link: str, code: str) -> None:
        issuer.busy = 1

    logins.log_in(url, offer, Client().config, show, lambda pause: None)
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({url: kept[url] | {"renew_at": time.time() - 1}}))
    issuer.busy = 1
    assert logins.endpoint(url).token == kept[url]["token"]
    assert (issuer.busy, logins.endpoint(url).token == kept[url]["token"]) == (0, False)


def test_the_claims_of_a_token_count_whatever_the_answer_says_of_its_life() -> None:
    claims = (
        base64.urlsafe_b64encode(json.dumps({"iat": 1000, "exp": 1100}).encode())
        .decode()
        .rstrip("=")
    )
    for expires_in in (None, "soon", 5):
        login = logins._login(
            {"id_token": f"a.{claims}.b", "expires_in": expires_in}, "issuer", "client", "id_token"
        )
        assert 90 < login["ends"] - time.time() <= 100


def test_a_login_that_the_issuer_has_ended_says_so(
    issuer: Issuer, url: str, cli: Run, file: Path
) -> None:
    issuer.lifetime_s = 0.01
    cli("login")
    issuer.refresh.clear()
    ended = cli("list")
    assert f"the login at {url} has ended: the refresh token was used before" in ended.stderr
    assert "`client-lib login` logs in again" in ended.stderr
    issuer.lifetime_s = 300
    assert cli("login").returncode == 0


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"decision": "access_denied"}, "the login was refused: access_denied"),
        ({"decision": "expired_token"}, "the code WDJB-MJHT has expired"),
        ({"pending": 1000, "device_s": 0.1}, "the code WDJB-MJHT has expired"),
        ({"device_flow": False}, "has no device flow"),
        ({"claims": {}}, "claim 'preferred_username' of the token is None"),
    ],
)
def test_a_login_that_fails_says_why(
    attributes: dict[str, Any], says: str, issuer: Issuer, url: str, cli: Run
) -> None:
    vars(issuer).update(attributes)
    failed = cli("login")
    assert failed.returncode != 0
    assert says in failed.stderr


def test_an_issuer_that_asks_for_slower_polls_gets_them(
    issuer: Issuer, url: str, file: Path
) -> None:
    offer = {"issuer": issuer.url, "client_id": CLIENT_ID, "token": "id_token"}
    pauses: list[float] = []

    def sleep(pause: float) -> None:
        pauses.append(pause)
        issuer.decision = "slow_down" if len(pauses) == 1 else "allowed"

    logins.log_in(url, offer, Client().config, lambda link, code: None, sleep)
    assert pauses == [0.01, 5.01]


def test_a_server_without_an_issuer_or_with_a_token_says_so(
    cli: Run,
    environment: dict[str, str],
    start_server: Callable[..., Running],  # noqa: F811
) -> None:
    environment["CLIENT_LIB_ENDPOINT"] = start_server().url
    assert "this server has no login by an issuer" in cli("login").stderr
    assert "has a token, which is used instead" in cli("login", CLIENT_LIB_TOKEN="clt_x").stderr
    assert "the local server has no login" in cli("login", "--endpoint", "local").stderr


def test_an_older_server_has_no_login(small_server: SmallServer, cli: Run) -> None:
    small_server.every_answer = (401, {"code": "unauthorized", "message": "wants a token"})
    assert "this server's version has no login" in cli("login").stderr


def test_no_answer_of_the_issuer_is_the_issuers_failure(
    start_server: Callable[..., Running],  # noqa: F811
    cli: Run,
    environment: dict[str, str],
) -> None:
    environment["CLIENT_LIB_ENDPOINT"] = start_server(
        users_more=oidc_table("http://127.0.0.1:9")
    ).url
    assert "the issuer does not answer: http://127.0.0.1:9" in cli("login").stderr
    with pytest.raises(Unauthorized):
        Client(environment["CLIENT_LIB_ENDPOINT"]).server_info()
