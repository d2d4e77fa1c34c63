"""Logins of browsers: links, tokens, cookies, and who may change
something with them. Plain HTTP.
"""

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.errors import Forbidden, Unauthorized
from client_lib.spec import paths
from server_stub.http import auth as logins_module, users_file
from server_stub.http.auth import KEPT, LINK_S, LOGIN_S, Logins, csrf_token
from server_stub.http.users_file import UserTokens
from server_stub.users import User
from tests.http.conftest import DEADLINE_S, Running
from tests.page.conftest import Visitor, login_path, new_job

Visit = Callable[[Any, str], Visitor]


def test_a_link_logs_in_once(server: Running) -> None:
    path, first, second = login_path(server, "ann"), Visitor(server.url), Visitor(server.url)
    assert "Logged in" in first.get(path).text
    again = second.get(path)
    assert (again.status_code, "used before" in again.text) == (401, True)
    assert (first.get("/").status_code, second.get("/").status_code) == (200, 401)


def test_a_link_leads_to_a_job(server: Running) -> None:
    assert (
        'content="0;url=jobs/a%2Fb"'
        in Visitor(server.url).get(login_path(server, "ann") + "&job=a/b").text
    )


def test_a_link_leads_to_a_group(server: Running) -> None:
    entered = Visitor(server.url).get(login_path(server, "ann") + "&group=ann/a%26b")
    assert 'content="0;url=./?open=ann%2Fa%26b"' in entered.text


def test_a_token_in_the_form_logs_in(server: Running) -> None:
    visitor = Visitor(server.url)
    wrong = visitor.post("/login", {"token": "clt_wrong"})
    assert (wrong.status_code, "this token is not valid" in wrong.text) == (401, True)
    assert visitor.post("/login", {"token": server.tokens["ann"]}).status_code == 200
    assert visitor.get("/").status_code == 200


def test_a_page_of_another_site_cannot_send_the_form(server: Running) -> None:
    visitor = Visitor(server.url)
    sent = visitor.post(
        "/login", {"token": server.tokens["ann"]}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert sent.status_code == 403
    assert not visitor.session.cookies


def test_the_cookie_is_kept_from_scripts_and_other_sites(server: Running) -> None:
    sent = Visitor(server.url).get(
        login_path(server, "ann"), headers={"X-Forwarded-Proto": "https"}
    )
    cookie = sent.headers["Set-Cookie"]
    assert cookie.startswith(f"client_lib_{server.url.rsplit(':', 1)[1]}=")
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Secure"))
    assert not any(part in cookie for part in ("Path=", "Domain="))


def test_a_login_cannot_make_another_one(server: Running, visit: Visit) -> None:
    visitor = visit(server, "ann")
    refused = visitor.post(paths.LOGIN_LINKS, {}, headers={"X-CSRF-Token": visitor.csrf()})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_the_api_takes_the_cookie_and_for_changes_the_token_of_a_page(
    server: Running, visit: Visit
) -> None:
    name, visitor = new_job(server, "ann")["name"], visit(server, "ann")
    assert visitor.get(paths.job(name)).json()["owner"] == "ann"
    assert visitor.post(paths.job(name, "cancel"), {}).status_code == 403
    # it has no forms
    assert visitor.post(paths.job(name, "cancel"), {"csrf": visitor.csrf()}).status_code == 403
    assert (
        visitor.post(
            paths.job(name, "cancel"), {}, headers={"X-CSRF-Token": "ü".encode()}
        ).status_code
        == 403
    )
    assert (
        visitor.post(
            paths.job(name, "cancel"), {}, headers={"X-CSRF-Token": visitor.csrf()}
        ).status_code
        == 200
    )


def test_a_bearer_token_needs_no_token_of_a_page(server: Running, visit: Visit) -> None:
    name, visitor = new_job(server, "ann")["name"], visit(server, "ben")
    bearer = {"Authorization": f"Bearer {server.tokens['ann']}"}
    assert visitor.post(paths.job(name, "cancel"), {}, headers=bearer).status_code == 200


@pytest.mark.parametrize("action", ["cancel", "resubmit", "delete"])
def test_a_form_needs_the_token_of_its_own_login(
    server: Running, visit: Visit, action: str
) -> None:
    name, visitor, other = (
        new_job(server, "ann")["name"],
        visit(server, "ann"),
        visit(server, "ann"),
    )
    for fields in ({}, {"csrf": ""}, {"csrf": other.csrf()}):
        assert visitor.post(f"/jobs/{name}/{action}", fields).status_code == 403
    assert visitor.post("/logout", {}).status_code == 403
    assert [job["state"] for job in server.as_user("ann")("GET", paths.JOBS).json()["jobs"]] == [
        "PENDING"
    ]
    assert visitor.post(f"/jobs/{name}/{action}", {"csrf": visitor.csrf()}).status_code == 303


def test_a_logout_ends_the_login_on_the_server_too(server: Running, visit: Visit) -> None:
    visitor = visit(server, "ann")
    stolen = dict(visitor.session.cookies)
    assert visitor.post("/logout", {"csrf": visitor.csrf()}).headers["Location"] == "login"
    assert not visitor.session.cookies
    assert visitor.get("/", cookies=stolen).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.evil"]
)
def test_a_loopback_server_has_no_pages_under_other_names(
    server: Running, visit: Visit, host: str
) -> None:
    visitor = visit(server, "ann")
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.session.cookies.items())
    for path in ("/", paths.JOBS):
        assert visitor.get(path, headers={"Host": host, "Cookie": cookie}).status_code == 403
        assert (
            visitor.get(path, headers={"Host": "localhost:1", "Cookie": cookie}).status_code == 200
        )
    # by its token
    assert (
        server.as_user("ann")("GET", paths.JOBS, headers={"Host": host or "x"}).status_code == 200
    )


def test_a_name_that_cannot_be_parsed_is_another_name(server: Running) -> None:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=DEADLINE_S)
    for path in ("/", paths.JOBS):
        connection.request("GET", path, headers={"Host": "[::1", "Cookie": "a=b"})
        answer = connection.getresponse()
        assert (answer.status, answer.read() != b"") == (403, True)


def test_a_login_survives_a_restart_and_ends_with_its_token(
    start_server: Callable[..., Running], tmp_path: Path, visit: Visit
) -> None:
    server = start_server()
    visitor = visit(server, "ann")
    file = server.settings.data_dir / "logins.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert all(
        value not in file.read_text()
        for value in [*visitor.session.cookies.values(), server.tokens["ann"]]
    )
    users = server.settings.users_file
    assert users
    tokens = users_file.read(users)
    scope = scope_of(next(iter(visitor.session.cookies.values())))
    assert Logins(file, lambda: tokens, loopback=False).user(scope, None) == User("ann")
    users.write_text(
        users.read_text().replace(users_file.digest(server.tokens["ann"]).hex(), "0" * 64)
    )
    assert visitor.get("/").status_code == 401


def test_logins_and_logouts_need_no_disk(server: Running, visit: Visit) -> None:
    first, file = visit(server, "ann"), server.settings.data_dir / "logins.json"
    kept = file.read_text()
    file.with_name("logins.json.new").mkdir()  # every write fails
    second = visit(server, "ann")
    assert (second.get("/").status_code, file.read_text()) == (200, kept)
    assert first.post("/logout", {"csrf": first.csrf()}).status_code == 303
    # no restart brings the first one back
    assert (second.get("/").status_code, file.exists()) == (200, False)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"a": 1}', '{"a": ["x", 1]}', '{"a": ["00", null]}', "null", "\xff"]
)
def test_a_damaged_file_ends_all_logins(tmp_path: Path, text: str) -> None:
    file = tmp_path / "logins.json"
    file.write_text(text, encoding="latin-1")
    assert Logins(file, UserTokens, loopback=False).user(scope_of("x"), None) is None


class Moved:
    """The clock of the module, moved by hand."""

    def __init__(self) -> None:
        self.now = 1e9

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Moved:
    moved = Moved()
    # logins take no clock: sessions last for days
    monkeypatch.setattr(logins_module, "time", moved)
    return moved


def scope_of(value: str, method: str = "GET") -> dict[str, Any]:
    headers = [(b"cookie", f"client_lib_1={value}".encode()), (b"host", b"127.0.0.1")]
    return {
        "type": "http",
        "method": method,
        "headers": headers,
        "server": ("", 1),
        "scheme": "http",
    }


def test_links_and_logins_end_with_their_time(tmp_path: Path, clock: Moved) -> None:
    logins = Logins(
        tmp_path / "logins",
        lambda: UserTokens({users_file.digest("t"): User("ann")}),
        loopback=True,
    )
    link, late = logins.new_link("t", User("ann")), logins.new_link("t", User("ann"))
    value = logins.log_in(None, link)
    clock.now += LINK_S + 1
    with pytest.raises(Unauthorized, match="too old"):
        logins.log_in(None, late)
    assert logins.user(scope_of(value), None) == User("ann")
    clock.now += LOGIN_S
    assert logins.user(scope_of(value), None) is None


def test_a_token_has_a_bounded_number_of_logins_and_pushes_out_none_of_others(
    tmp_path: Path, clock: Moved
) -> None:
    known = UserTokens(
        {users_file.digest("t"): User("ann"), users_file.digest("other"): User("ben")}
    )
    logins = Logins(tmp_path / "logins", lambda: known, loopback=True)
    of_ben = logins.log_in("other")
    values = [logins.log_in("t") for _ in range(KEPT + 5)]
    valid = [logins.user(scope_of(value), None) is not None for value in values]
    assert valid == [False] * 5 + [True] * KEPT
    assert logins.user(scope_of(of_ben), None) == User("ben")
    assert len(json.loads((tmp_path / "logins").read_text())) == KEPT + 1
    links = [logins.new_link("t", User("ann")) for _ in range(KEPT + 1)]
    with pytest.raises(Unauthorized):
        logins.log_in(None, links[0])


def test_every_changing_method_needs_the_token_of_a_page(tmp_path: Path) -> None:
    logins = Logins(
        tmp_path / "logins",
        lambda: UserTokens({users_file.digest("t"): User("ann")}),
        loopback=True,
    )
    value = logins.log_in("t")
    for method in ("POST", "PUT", "PATCH", "DELETE", "ANYTHING"):
        scope = scope_of(value, method)
        assert logins.user(scope, csrf_token(scope)) == User("ann")
        for wrong in (None, "", "x" * 64, csrf_token(scope_of("other"))):
            with pytest.raises(Forbidden):
                logins.user(scope, wrong)
