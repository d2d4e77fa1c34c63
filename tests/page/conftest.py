"""Browsers in front of a real server: plain HTTP with a cookie, and Debian's Chromium."""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import requests

from tests.http.conftest import (
    DEADLINE_S,
    Running,
    ann,
    ben,
    root,
    server,
    shared_server,
    start_server,
)

__all__ = ["ann", "ben", "root", "server", "shared_server", "start_server"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def login_path(server: Any, user: str) -> str:
    """A link that logs this user in, once."""
    made = server.as_user(user)("POST", "/api/v1/login-links")
    assert made.status_code == 201, made.text
    return f"/{made.json()['path']}"


class Visitor:
    """A browser without scripts: keeps the cookie, and sends the forms of pages."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.trust_env = False

    def get(self, path: str, **options: Any) -> requests.Response:
        return self.session.get(self.url + path, timeout=DEADLINE_S, **options)

    def post(self, path: str, fields: dict[str, str], **options: Any) -> requests.Response:
        return self.session.post(
            self.url + path,
            data=fields,
            timeout=DEADLINE_S,
            **{"allow_redirects": False, **options},
        )

    def csrf(self) -> str:
        """The token of this login's pages."""
        found = re.search(r'data-csrf="([0-9a-f]{64})"', self.get("/").text)
        assert found
        return found[1]


@pytest.fixture
def visit() -> Callable[[Any, str], Visitor]:
    """Log a user in by a link."""

    def logged_in(server: Any, user: str) -> Visitor:
        visitor = Visitor(server.url)
        assert visitor.get(login_path(server, user)).status_code == 200
        return visitor

    return logged_in


@contextmanager
def chromium() -> Iterator[Any]:
    """One Chromium, which finds this machine alone; skips where there is none."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """The Chromium of a module's tests. While it is open, an event loop runs in this thread, in
    which no other test could start one."""
    with chromium() as found:
        yield found


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab with no cookies, whose scripts must not fail."""
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(DEADLINE_S * 1000)
    tab = context.new_page()
    failures: list[str] = []
    tab.on("pageerror", lambda problem: failures.append(str(problem)))
    tab.on(
        "console",
        lambda said: failures.append(said.text) if "Content Security Policy" in said.text else None,
    )
    yield tab
    context.close()
    assert failures == []


def login(page: Any, server: Any, user: str) -> None:
    """Log the tab in; it shows the jobs then."""
    page.goto(server.url + login_path(server, user))
    page.wait_for_selector("#jobs")
    page.wait_for_load_state()


def new_job(server: Running, user: str, **spec: Any) -> dict[str, Any]:
    """A job that runs for as long as the test wants."""
    answer = server.as_user(user).submit(**spec)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found
