"""`client-lib ui`, and the pages behind a proxy that takes a prefix away."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from client_lib.cli import app
from tests.http.conftest import DEADLINE_S, Running
from tests.http.test_groups import submit as submit_group
from tests.page.conftest import Visitor, login_path, new_job

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ui(server: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command as ann; its exit code, output and messages."""
    monkeypatch.setenv("CLIENT_LIB_ENDPOINT", server.url + "/")
    monkeypatch.setenv("CLIENT_LIB_TOKEN", server.tokens["ann"])
    monkeypatch.delenv("DISPLAY", raising=False)

    def run(*args: str) -> tuple[int, str, str]:
        return app.run(["ui", *args]), *capsys.readouterr()

    return run


def test_the_command_prints_a_link_that_logs_in(server: Running, ui: Run) -> None:
    code, link, message = ui()
    assert (code, message) == (0, "open it within 2 min; it works once\n")
    visitor = Visitor(server.url)
    assert 'content="0;url=./"' in visitor.get(link.strip().removeprefix(server.url)).text
    assert visitor.get("/").status_code == 200


def test_the_command_leads_to_a_job_by_the_beginning_of_its_name(server: Running, ui: Run) -> None:
    new_job(server, "ann", name="train-x7k2m")
    code, printed, _ = ui("train", "-o", "json")
    link = json.loads(printed)
    assert (code, link["url"].startswith(f"{server.url}/login?code="), link["expires_s"]) == (
        0,
        True,
        120.0,
    )
    assert 'content="0;url=jobs/train-x7k2m"' in requests.get(link["url"], timeout=DEADLINE_S).text
    assert ui("other")[0] != 0


def test_the_command_leads_to_the_list_with_a_group_unfolded(server: Running, ui: Run) -> None:
    assert submit_group(server.as_user("ann"), "scan", 2).status_code == 201
    code, link, _ = ui("scan")
    assert (code, link.strip().endswith("&group=ann%2Fscan")) == (0, True)


def test_the_command_opens_a_browser_where_there_is_a_screen(
    server: Running, ui: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[str] = []
    # the screen of who runs the test
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(tmp_path))
    assert ui()[:2] == (0, "")
    # arguments of a process have no code: all accounts read them
    assert opened == [(tmp_path / "login.html").as_uri()]
    assert (tmp_path / "login.html").stat().st_mode & 0o777 == 0o600
    assert f"0;url={server.url}/login?code=" in (tmp_path / "login.html").read_text()
    assert ui("--no-browser")[1].startswith("http://")
    assert len(opened) == 1


@pytest.fixture
def prefixed(server: Running) -> Iterator[str]:
    """The URL of a proxy that shows the server below /ml, as an ingress does."""

    class Proxy(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            found = self.path.startswith("/ml/")
            target = (
                server.url + self.path.removeprefix("/ml") if found else server.url + "/api/v1/none"
            )
            headers = {name: value for name, value in self.headers.items() if name != "Connection"}
            answer = requests.request(
                self.command,
                target,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=DEADLINE_S,
            )
            self.send_response(answer.status_code)
            for name in ("Content-Type", "Set-Cookie", "Location"):
                if name in answer.headers:
                    self.send_header(name, answer.headers[name])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        do_GET = do_POST = forward

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_port}/ml"
        proxy.shutdown()


@pytest.mark.process
@pytest.mark.xdist_group("chromium")
def test_the_pages_work_behind_a_prefix(page: Any, server: Running, prefixed: str) -> None:
    job = new_job(server, "ann", name="train")
    page.goto(prefixed + login_path(server, "ann") + "&job=train")
    page.wait_for_selector("#status .state.pending")
    page.wait_for_load_state()
    assert page.context.cookies()[0]["path"] == "/ml"
    # the style sheet is there
    assert page.evaluate("getComputedStyle(document.body).marginTop") == "0px"
    server.call(lambda: server.runtime.runs(job["id"]))
    page.wait_for_selector("#status .state.running")
    page.click("summary:has-text('Delete')")
    page.click(".act[open] button")
    page.wait_for_url(f"{prefixed}/")
    page.wait_for_selector("#jobs .empty")
    page.click("text=Log out")
    page.wait_for_selector("#token")
    assert page.url == f"{prefixed}/login"
