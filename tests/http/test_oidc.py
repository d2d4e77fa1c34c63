"""Tokens of an OpenID Connect issuer: their users, refusals and their reasons, and an
issuer that does not answer.
"""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
import requests

from client_lib.errors import InvalidRequest, Unauthorized, Unavailable
from client_lib.spec import paths
from server_stub import serve
from server_stub.http import issuer_keys, users_file
from server_stub.http.oidc import Oidc, fetch_keys
from server_stub.http.users_file import OidcEntry
from server_stub.runtimes.local import accounts
from server_stub.settings import Settings
from tests.http.conftest import Api, Running
from tests.kit.bounds import Bounds
from tests.kit.issuer import CLIENT_ID, Issuer, oidc_table, running_issuer
from tests.mlspace.rest.conftest import AUTH, JOBS, Platform, platform


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def server(issuer: Issuer, start_server: Callable[..., Running]) -> Running:
    return start_server(users_more=oidc_table(issuer.url, admin_groups=["platform"]))


def test_a_token_of_the_issuer_is_its_user_beside_those_of_the_file(
    issuer: Issuer, server: Running
) -> None:
    zoe = Api(server.url, issuer.token())
    job = zoe.submit().json()
    assert job["owner"] == "zoe"
    assert not zoe("GET", paths.INFO).json()["admin"]
    assert Api(server.url, issuer.token(groups=["platform"]))("GET", paths.INFO).json()["admin"]
    assert server.as_user("ann")("GET", paths.INFO).json()["user"] == "ann"
    assert server.as_user("ann")("GET", paths.job(job["name"])).status_code == 404
    assert issuer.asked["/keys"] == 1


def test_the_platform_s_api_takes_tokens_of_the_issuer(issuer: Issuer, server: Running) -> None:
    pair = {"client_id": "zoe", "client_secret": issuer.token()}
    answer = platform(server, None)("POST", AUTH, json=pair)
    token = answer.json()["token"]["access_token"]
    name = Platform(server.url, token).created()
    assert Api(server.url, token)("GET", paths.job(name)).json()["owner"] == "zoe"
    assert platform(server, None)("POST", AUTH, json=pair | {"client_id": "ann"}).status_code == 401
    assert Platform(server.url, issuer.token(exp=time.time() - 60))("GET", JOBS).status_code == 401


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": time.time() - 60}, "the token has expired"),
        ({"exp": None}, "exp"),
        ({"aud": "another"}, f"another audience than '{CLIENT_ID}'"),
        ({"aud": None}, "aud"),
        ({"iss": "https://evil.example"}, "of another issuer than http://127.0.0.1"),
        ({"preferred_username": None}, "claim 'preferred_username' of the token is None"),
        ({"preferred_username": "../x"}, "'../x', which is no user name"),
    ],
)
def test_a_token_that_is_refused_says_why(
    claims: dict[str, Any], says: str, issuer: Issuer, server: Running
) -> None:
    answer = Api(server.url, issuer.token(**claims))("GET", paths.INFO)
    assert answer.status_code == 401
    assert says in answer.json()["message"]


def test_a_token_that_the_issuer_did_not_sign_is_refused(issuer: Issuer, server: Running) -> None:
    good = issuer.token()
    kid = jwt.get_unverified_header(good)["kid"]
    claims = jwt.decode(good, options={"verify_signature": False})
    other = jwt.encode(claims, "k" * 32, "HS256", {"kid": kid})
    unsigned = jwt.encode(claims, "", "none", {"kid": kid})
    changed = ".".join([good.split(".")[0], unsigned.split(".")[1][:-2] + "xx", good.split(".")[2]])
    for token in (other, unsigned, changed, "a.b.c"):
        assert Api(server.url, token)("GET", paths.INFO).status_code == 401


def test_an_address_that_the_issuer_has_not_verified_is_no_name(issuer: Issuer) -> None:
    issuer.claims = {"email": "ann@lab.example", "email_verified": False}
    oidc = Oidc(OidcEntry(issuer=issuer.url, audience=CLIENT_ID, name_claim="email"))
    with pytest.raises(Unauthorized, match="not verified"):
        asyncio.run(oidc.accept(issuer.token()))
    assert asyncio.run(oidc.accept(issuer.token(email_verified=True)))[0].name == "ann@lab.example"


def test_a_token_is_refused_once_it_has_expired_though_it_was_accepted(
    issuer: Issuer, server: Running
) -> None:
    issuer.lifetime_s = -25.0  # expires within the allowed difference of the clocks
    zoe = Api(server.url, issuer.token())
    assert zoe("GET", paths.INFO).status_code == 200
    time.sleep(5.2)
    assert zoe("GET", paths.INFO).json()["message"] == "the token has expired"


def test_a_new_key_is_fetched_and_invented_ones_are_not_each_time(issuer: Issuer) -> None:
    oidc = Oidc(OidcEntry(issuer=issuer.url, audience=CLIENT_ID), pause_s=60)

    async def scenario() -> None:
        await oidc.accept(issuer.token())
        issuer.rotate()
        token = issuer.token()
        for _ in range(20):
            with pytest.raises(Unauthorized, match="publishes no key"):
                await oidc.accept(token)
        assert issuer.asked["/keys"] == 1
        oidc.pause_s = 0
        await asyncio.gather(*(oidc.accept(token) for _ in range(20)))
        assert issuer.asked["/keys"] == 2

    asyncio.run(scenario())


def test_an_issuer_that_does_not_answer_is_503_and_stalls_nobody_else(
    start_server: Callable[..., Running],
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running_issuer() as other,
        ThreadPoolExecutor(1) as pool,
    ):
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        server = start_server(users_more=oidc_table(url))
        zoe = pool.submit(Api(server.url, other.token(iss=url)), "GET", paths.INFO)
        with silent.accept()[0]:  # the server asks for the metadata
            assert server.as_user("ann")("GET", paths.INFO).status_code == 200
            assert not zoe.done()
        assert zoe.result().status_code == 503
        assert url in zoe.result().json()["message"]


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def drip(head: bytes) -> Iterator[bytes]:
    """The head at once, and then a byte ten times a second, for ever."""
    yield head
    while True:
        time.sleep(0.1)
        yield b"x"


def flood() -> Iterator[bytes]:
    """An answer of a gigabyte."""
    yield HEAD + b"Content-Length: 1073741824\r\n\r\n"
    for _ in range(1024):
        yield b" " * 2**20


@contextmanager
def answering(answer: Iterator[bytes]) -> Iterator[str]:
    """The URL of an issuer with this answer to its first request."""

    def serve_one() -> None:
        with suppress(OSError), listening.accept()[0] as connection:
            connection.recv(65536)
            for piece in answer:
                connection.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve_one)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive(), "the answer is still read"


@pytest.mark.parametrize(
    "head", [HEAD + b"X: ", HEAD + b"Content-Length: 10000\r\n\r\n"], ids=["head", "body"]
)
def test_an_answer_that_drips_is_given_up(head: bytes, bounds: Bounds) -> None:
    bounds(issuer_keys, LIMIT_S=2.0)
    began = time.monotonic()
    with answering(drip(head)) as url, pytest.raises(Unavailable, match="not within 2 s"):
        fetch_keys(url)
    assert time.monotonic() - began < 10


def test_the_process_that_asks_ends_by_itself() -> None:
    """The server that waits for it may be killed."""
    code = "from server_stub.http import issuer_keys as it; it.LIMIT_S = 0.5; it.main()"
    with answering(drip(b"")) as url:
        ran = subprocess.run([sys.executable, "-c", code, url], timeout=30, check=False)
    assert ran.returncode == -signal.SIGALRM


def test_a_very_large_answer_is_given_up() -> None:
    with answering(flood()) as url, pytest.raises(Unavailable, match="larger than 262144 bytes"):
        fetch_keys(url)


def test_known_keys_are_used_while_the_issuer_is_away() -> None:
    with running_issuer() as issuer:
        oidc = Oidc(OidcEntry(issuer=issuer.url, audience=CLIENT_ID), pause_s=0)
        asyncio.run(oidc.accept(issuer.token()))
    assert asyncio.run(oidc.accept(issuer.token()))[0].name == "zoe"
    issuer.rotate()
    with pytest.raises(Unavailable, match="gives no keys"):
        asyncio.run(oidc.accept(issuer.token()))


def test_the_way_to_a_token_needs_none(
    issuer: Issuer, server: Running, start_server: Callable[..., Running]
) -> None:
    answer = server.anonymous()("GET", paths.LOGIN).json()
    assert answer == {"issuer": issuer.url, "client_id": CLIENT_ID, "token": "id_token"}
    assert "client-lib login" in server.anonymous()("GET", paths.INFO).json()["hint"]
    refused = start_server().anonymous()("GET", paths.LOGIN)
    assert refused.json()["code"] == "not_supported"


def test_doctor_checks_the_issuer(issuer: Issuer, start_server: Callable[..., Running]) -> None:
    def check(url: str) -> dict[str, Any]:
        server = start_server(users_more=oidc_table(url))
        checks = server.as_user("root")("GET", paths.DOCTOR).json()["checks"]
        (found,) = [each for each in checks if each["name"] == "issuer"]
        return dict(found)

    good = check(issuer.url)
    assert (good["ok"], good["message"]) == (
        True,
        f"{issuer.url} answers, and has 1 key for tokens",
    )
    other = check(f"{issuer.url}/")
    assert not other["ok"]
    assert f"its metadata name '{issuer.url}'" in other["message"]
    assert "give `issuer` in the users file the text" in other["fix"]
    issuer.keys = {"": next(iter(issuer.keys.values()))}
    without_ids = check(issuer.url)
    assert "has an id (`kid`)" in without_ids["message"]
    assert "have a `kid`" in without_ids["fix"]
    issuer.keys = {}
    assert "gives no keys" in check(issuer.url)["message"]
    with socket.create_server(("127.0.0.1", 0)) as closed:
        away = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert "ConnectionError" in check(away)["message"]


def test_a_browser_stays_logged_in_when_the_token_of_its_link_has_expired(
    issuer: Issuer, server: Running
) -> None:
    issuer.lifetime_s = -25.0
    link = Api(server.url, issuer.token())("POST", paths.LOGIN_LINKS).json()["path"]
    browser = Api(server.url, None)
    browser("GET", f"/{link}")
    time.sleep(5.2)
    assert browser("GET", paths.JOBS).status_code == 200


def test_a_login_by_the_issuer_ends_when_the_users_file_names_it_no_more(
    issuer: Issuer, server: Running
) -> None:
    assert server.settings.users_file
    text = server.settings.users_file.read_text()
    link = Api(server.url, issuer.token())("POST", paths.LOGIN_LINKS).json()["path"]
    browser = Api(server.url, None)
    browser("GET", f"/{link}")
    assert browser("GET", paths.JOBS).status_code == 200
    for more in ("", oidc_table("https://another.example")):
        server.settings.users_file.write_text(text.partition("[oidc]")[0] + more)
        assert browser("GET", paths.JOBS).status_code == 401


def test_a_token_that_has_expired_makes_no_new_login(issuer: Issuer, server: Running) -> None:
    """It has made a link while it was valid."""
    issuer.lifetime_s = -25.0
    token = issuer.token()
    assert Api(server.url, token)("POST", paths.LOGIN_LINKS).ok
    time.sleep(5.2)
    assert (
        requests.post(
            f"{server.url}/login", {"token": token}, allow_redirects=False, timeout=10
        ).status_code
        == 401
    )


def test_a_token_is_refused_when_its_key_was_withdrawn(issuer: Issuer, bounds: Bounds) -> None:
    oidc = Oidc(OidcEntry(issuer=issuer.url, audience=CLIENT_ID), pause_s=0)
    token = issuer.token()
    asyncio.run(oidc.accept(token))
    issuer.rotate()
    asyncio.run(oidc.accept(token))
    # an hour later
    bounds("server_stub.http.oidc", KEYS_S=0.0)
    with pytest.raises(Unauthorized, match="publishes no key"):
        asyncio.run(oidc.accept(token))


def test_another_issuer_in_the_users_file_holds_without_a_restart(
    issuer: Issuer, server: Running
) -> None:
    assert server.settings.users_file
    text = server.settings.users_file.read_text()
    with running_issuer() as other:
        server.settings.users_file.write_text(text.replace(issuer.url, other.url))
        assert Api(server.url, other.token())("GET", paths.INFO).json()["user"] == "zoe"
        assert (
            "of another issuer"
            in Api(server.url, issuer.token())("GET", paths.INFO).json()["message"]
        )
    server.settings.users_file.write_text(text.partition("[oidc]")[0])
    assert (
        "does not know this token"
        in Api(server.url, issuer.token())("GET", paths.INFO).json()["message"]
    )


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (
            "issuer = 'http://lab.example'\naudience = 'x'",
            "oidc.issuer='http://lab.example': must be an https address",
        ),
        ("issuer = 'https://lab.example'", "oidc.audience is missing"),
        ("issuer = 'https://lab.example'\naudience = ''", "oidc.audience=''"),
        (
            "issuer = 'https://lab.example'\naudiense = 'x'",
            "unknown field 'oidc.audiense'; did you mean 'audience'?",
        ),
        (
            "issuer = 'https://lab.example'\naudience = 'x'\nadmin_groups = 'a'",
            "oidc.admin_groups='a'",
        ),
    ],
)
def test_half_an_issuer_is_refused_with_file_key_and_way_out(
    table: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "users.toml"
    path.write_text(f"[oidc]\n{table}\n")
    with pytest.raises(InvalidRequest, match=re.escape(says)) as refused:
        users_file.read(path)
    assert str(path) in refused.value.message
    assert "docs/reference.md" in str(refused.value.hint)


def test_users_of_an_issuer_have_no_accounts_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as where root starts the server
    monkeypatch.setattr(accounts, "are_possible", lambda: True)
    path = tmp_path / "users.toml"
    path.write_text(oidc_table("https://lab.example"))
    with pytest.raises(InvalidRequest, match="no accounts on this machine"):
        serve.serve(Settings(state_dir=tmp_path, users_file=path))
