"""Pages without scripts, over plain HTTP: what a form does, who sees what,
what travels with a page.
"""

import errno
import gzip
import html
import json
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

from client_lib.spec import paths
from server_stub.http.page import views
from server_stub.http.page.views import FOLDER
from tests.http.conftest import DEADLINE_S, Running
from tests.http.test_groups import submit as submit_group
from tests.kit.waiting import until
from tests.page.conftest import Visitor, new_job

Visit = Callable[[Any, str], Visitor]


def test_the_table_and_the_job_can_be_read_without_scripts(server: Running, visit: Visit) -> None:
    job, visitor = (
        new_job(server, "ann", name="train", labels={"team": "vision"}),
        visit(server, "ann"),
    )
    table = visitor.get("/").text
    assert 'href="jobs/train?owner=ann"' in table
    assert "team=vision" in table
    page = visitor.get("/jobs/train?owner=ann").text
    assert "job train is PENDING (Queued)" in page
    assert f'data-version="{job["version"]}"' in page


def test_a_group_is_one_row_that_unfolds_without_scripts(server: Running, visit: Visit) -> None:
    new_job(server, "ann", name="alone")
    assert submit_group(server.as_user("ann"), "scan", 3).status_code == 201
    assert submit_group(server.as_user("ann"), "other", 2).status_code == 201
    visitor = visit(server, "ann")

    def shown(query: str) -> list[str]:
        return re.findall(r'<tr data-name="([^"]*)"', visitor.get(f"/?{query}").text)

    assert shown("") == ["other", "scan", "alone"]
    assert "0/3 SUCCEEDED, 3 PENDING" in visitor.get("/").text
    assert 'aria-expanded="false" href="?open=ann%2Fscan#ann/scan"' in visitor.get("/").text
    assert shown("open=ann/scan") == ["other", "scan", "scan-0", "scan-1", "scan-2", "alone"]
    assert shown("open=ben/scan") == shown("open=nonsense") == shown("")
    assert shown("q=scan") == ["scan-2", "scan-1", "scan-0"], "a search finds the members"
    assert visit(server, "ben").get("/?open=ann/scan").text.count("<tr data-name") == 0


def test_the_page_of_each_job_that_ended_by_another_job_has_its_next_step(
    server: Running, visit: Visit
) -> None:
    first = new_job(server, "ann", name="first")
    new_job(server, "ann", name="second", after=["failed:first"])
    server.call(lambda: server.runtime.runs(first["id"]))
    server.call(lambda: server.runtime.end(first["id"]))
    visitor = visit(server, "ann")
    until(lambda: "second FAILED (DependencyFailed)" in visitor.get("/jobs/second").text)
    assert "client-lib resubmit second --set after=" in visitor.get("/jobs/second").text


def test_a_page_that_the_server_cannot_show_is_a_page_with_a_way_back(
    server: Running, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_job(server, "ann", name="train")
    visitor = visit(server, "ann")

    def fails(*_: object) -> None:
        raise KeyError("resubmit_after")

    # no real input is known with which a page fails
    monkeypatch.setattr(views, "job", fails)
    answer = visitor.get("/jobs/train")
    assert answer.status_code == 500
    assert "the server could not show this page" in answer.text
    assert answer.headers["x-request-id"] in answer.text, "the log of the server has the cause"
    assert 'href="../"' in answer.text
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


def test_filters_are_those_of_the_api(server: Running, visit: Visit) -> None:
    for name, labels in (("train-a", {"team": "x"}), ("train-b", {}), ("other", {})):
        new_job(server, "ann", name=name, labels=labels)
    visitor = visit(server, "ann")

    def shown(query: str) -> list[str]:
        return re.findall(r'<tr data-name="([^"]*)"', visitor.get(f"/?{query}").text)

    assert shown("q=train") == ["train-b", "train-a"]
    assert shown("q=team=x&state=") == ["train-a"]
    assert shown("state=RUNNING") == []
    assert shown("q=&owner=") == ["other", "train-b", "train-a"]
    wrong = visitor.get("/?state=ODD")
    assert (wrong.status_code, "there are: PENDING" in wrong.text) == (422, True)
    many = "+".join(f"k{n}=v" for n in range(257))
    assert (
        visitor.get(f"/?q={many}").status_code,
        visitor.get(f"/?q={many[:-7]}").status_code,
    ) == (422, 200)


def test_another_users_job_is_not_there_and_an_admin_sees_whose_it_is(
    server: Running, visit: Visit
) -> None:
    new_job(server, "ann", name="train")
    ben, root = visit(server, "ben"), visit(server, "root")
    for query in ("", "?owner=ann"):
        assert ben.get(f"/jobs/train{query}").status_code == 404
        for action in ("cancel", "resubmit", "delete"):
            assert ben.post(f"/jobs/train/{action}{query}", {"csrf": ben.csrf()}).status_code == 404
    assert ben.get("/?owner=*").status_code == 403
    assert 'data-owner="ann"' in root.get("/?owner=*").text
    page = root.get("/jobs/train?owner=ann").text
    assert "/cancel?owner=ann" in page
    assert "/resubmit" not in page  # it needs the owner's secrets
    assert root.post("/jobs/train/resubmit?owner=ann", {"csrf": root.csrf()}).status_code == 403


def test_the_buttons_cancel_resubmit_and_delete(server: Running, visit: Visit) -> None:
    new_job(
        server, "ann", name="train", args=["--lr", "0.1"], env_variables={"HF_TOKEN": "hf_secret"}
    )
    visitor = visit(server, "ann")
    assert 'value="--lr 0.1"' in visitor.get("/jobs/train").text
    assert "hf_secret" not in visitor.get("/jobs/train").text
    csrf = {"csrf": visitor.csrf()}

    def state() -> str:
        return str(server.as_user("ann")("GET", paths.job("train")).json()["state"])

    assert (
        visitor.post("/jobs/train/cancel?owner=ann", csrf).headers["Location"]
        == "../train?owner=ann"
    )
    until(lambda: state() == "CANCELLED")
    again = visitor.post("/jobs/train/resubmit", {**csrf, "args": "--lr '0.2 x'"}).headers[
        "Location"
    ]
    name = again.removeprefix("../").removesuffix("?owner=ann")
    job = server.as_user("ann")("GET", paths.job(name)).json()
    assert (job["spec"]["args"], name == "train") == (["--lr", "0.2 x"], False)
    given = server.as_user("ann")("GET", f"{paths.job(name)}/request").json()["spec"]
    assert given["env_variables"] == {"HF_TOKEN": "hf_secret"}
    drawn = re.findall(
        r'name="key" value="([0-9a-f]{32})" form="resubmit"', visitor.get("/jobs/train").text
    )
    # a double click, and another job
    twice = [{**csrf, "key": drawn[0], "args": args} for args in ("a", "a", "b")]
    made = [visitor.post("/jobs/train/resubmit", form).headers["Location"] for form in twice]
    assert (made[0] == made[1], made[0] == made[2]) == (True, False)
    for other in (made[0], made[2]):
        visitor.post(f"/jobs/{other.removeprefix('../').removesuffix('?owner=ann')}/delete", csrf)
    fields = {
        "n_workers": "2",
        "instance_type": "",
        "env_variables": "HF_TOKEN=***\r\nMODE=a=b\r\n\r\n",
    }
    changed = visitor.post("/jobs/train/resubmit", {**csrf, **fields}).headers["Location"]
    other = changed.removeprefix("../").removesuffix("?owner=ann")
    given = server.as_user("ann")("GET", f"{paths.job(other)}/request").json()["spec"]
    assert given["env_variables"] == {"HF_TOKEN": "hf_secret", "MODE": "a=b"}
    assert (given["n_workers"], given["args"]) == (2, ["--lr", "0.1"])
    visitor.post(f"/jobs/{other}/delete", csrf)
    for wrong in (
        {"n_workers": "-1"},
        {"n_workers": "9" * 9},
        {"n_workers": "9" * 5000},
        {"env_variables": "MODE"},
    ):
        refused = visitor.post("/jobs/train/resubmit", {**csrf, **wrong})
        assert (refused.status_code, next(iter(wrong)) in refused.text) == (422, True), refused.text
    odd = visitor.post("/jobs/train/resubmit", {**csrf, "args": "it's"})
    assert (odd.status_code, "quote it as in a shell" in odd.text) == (422, True)
    assert visitor.post("/jobs/train/delete", csrf).headers["Location"] == "../../"
    assert visitor.get("/jobs/train").status_code == 404
    # it runs: it is stopped first
    assert visitor.post(f"/jobs/{name}/delete", csrf).status_code == 303
    until(lambda: server.as_user("ann")("GET", paths.JOBS).json()["jobs"] == [])


def test_a_resubmit_changes_no_variable_that_was_not_edited(server: Running, visit: Visit) -> None:
    variables = {
        "A": "x\nB=y",
        "C": None,
        "D": " pad ",
        "E": 3,
        "F": "a\rb",
        "HF_TOKEN": "hf_secret",
        "Z": "<&>",
    }
    new_job(server, "ann", name="train", env_variables=variables)
    visitor = visit(server, "ann")
    page = visitor.get("/jobs/train").text
    found = re.search(
        r'<textarea id="env_variables" [^>]*>\n([^<]*)</textarea>\s*<input [^>]*value="([^"]*)"',
        page,
    )
    assert found
    text, before = map(html.unescape, found.groups())
    assert text == before == "A=***\nC=***\nD= pad \nE=3\nF=***\nHF_TOKEN=***\nZ=<&>\n"
    hidden = {"csrf": visitor.csrf(), "env_variables_before": before.replace("\n", "\r\n")}

    def given(edited: str) -> dict[str, Any]:
        """The variables of a new run whose form has this text, as a browser sends it."""
        fields = {**hidden, "args": "--lr 1", "env_variables": edited.replace("\n", "\r\n")}
        place = visitor.post("/jobs/train/resubmit", fields).headers["Location"]
        name = place.removeprefix("../").removesuffix("?owner=ann")
        found: dict[str, Any] = server.as_user("ann")("GET", f"{paths.job(name)}/request").json()[
            "spec"
        ]
        assert found["args"] == ["--lr", "1"]
        return found.get("env_variables", {})

    assert given(text) == variables
    assert given(text + "NEW= a=b \n\n") == {**variables, "NEW": " a=b "}
    assert given(text.replace("E=3", "E=4").replace("C=***\n", "").replace("A=***", "A=z")) == {
        **{name: value for name, value in variables.items() if name != "C"},
        "A": "z",
        "E": "4",
    }
    assert given("") == {}


def test_a_form_is_read_after_the_cookie_and_is_bounded(server: Running, visit: Visit) -> None:
    """Parsing a large form blocks the event loop for seconds."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        head = f"POST /jobs/a/cancel HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head.encode())  # its body never comes
        assert connection.recv(100).startswith(b"HTTP/1.1 401")
    visitor = visit(server, "ann")
    csrf = visitor.csrf()
    for path, size, status in (
        ("login", 2**14, 413),
        ("login", 2**20, 413),
        ("jobs/a/cancel", 2**19, 413),
    ):
        assert visitor.post(f"/{path}", {"csrf": csrf, "token": "x" * size}).status_code == status
    for path in ("login", "jobs/a/cancel"):
        assert (
            visitor.post(f"/{path}", {"csrf": csrf} | {str(n): "" for n in range(20)}).status_code
            == 422
        )


def test_a_cut_form_and_a_server_out_of_files_leave_no_traceback(
    server: Running, visit: Visit, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
        connection.sendall(
            f"POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 100\r\n\r\ntoken=".encode()
        )
    until(lambda: [line["status"] for line in server.log_lines()] == [499])
    new_job(server, "ann", name="train")
    visitor = visit(server, "ann")
    # a server without descriptors would not take this request either
    monkeypatch.setattr(
        "server_stub.files.outputs.listing", raises(OSError(errno.EMFILE, "Too many open files"))
    )
    answer = visitor.get("/jobs/train")
    assert (answer.status_code, "can open no more files" in answer.text) == (503, True)
    assert "Traceback" not in caplog.text


def raises(error: OSError) -> Callable[..., None]:
    def failing(*_: object) -> None:
        raise error

    return failing


def test_what_is_no_page_says_so(server: Running, visit: Visit) -> None:
    visitor = visit(server, "ann")
    for path in ("/jobs/", "/jobs/none", "/jobs/a/b/c", "/static/none.js"):
        answer = visitor.get(path)
        assert (answer.status_code, answer.headers["Content-Type"].split(";")[0]) == (
            404,
            "text/html",
        ), path
    assert visitor.post("/jobs/none/odd", {"csrf": visitor.csrf()}).status_code == 404


@pytest.mark.parametrize("path", ["/", "/login", "/jobs/none", "/static/page.js", "/static/none"])
def test_nothing_runs_or_is_loaded_that_is_not_a_file_of_the_server(
    server: Running, path: str
) -> None:
    headers = Visitor(server.url).get(path).headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_static_files_are_fetched_once_and_pages_are_not_kept(
    server: Running, visit: Visit
) -> None:
    visitor = visit(server, "ann")
    first = visitor.get("/static/page.css")
    assert first.headers["Cache-Control"] == "no-cache"
    assert (
        visitor.get(
            "/static/page.css", headers={"If-None-Match": first.headers["ETag"]}
        ).status_code
        == 304
    )
    assert visitor.get("/").headers["Cache-Control"] == "no-store"


def test_all_scripts_and_styles_have_at_most_80_kilobytes() -> None:
    files = [
        path for path in (FOLDER / "static").rglob("*") if path.suffix in (".js", ".css", ".svg")
    ]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) <= 80_000


def test_the_access_log_names_the_user_and_no_code(server: Running, visit: Visit) -> None:
    visit(server, "ann").get("/")
    lines = server.log_lines()
    assert [line["user"] for line in lines if line["path"] == "/"] == ["ann"]
    assert "code=" not in json.dumps(lines)


def test_a_command_line_without_a_token_gets_json_from_the_api(server: Running) -> None:
    answer = server.anonymous()("GET", paths.JOBS)
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
