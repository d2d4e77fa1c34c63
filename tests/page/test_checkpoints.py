"""The section of checkpoints on the page of a job."""

from collections.abc import Callable
from typing import Any

from tests.http.conftest import Api, Running
from tests.http.test_checkpoints import saves
from tests.http.test_stacks import runs
from tests.page.conftest import Visitor

Visit = Callable[[Any, str], Visitor]
HEADING = "<h2>Checkpoints</h2>"


def test_the_page_shows_them_as_text(server: Running, ann: Api, visit: Visit) -> None:
    saves(server, runs(server, ann))
    page = visit(server, "ann").get("/jobs/train").text
    assert HEADING in page
    assert "/c/step-10.pt" in page
    assert "is being written: cut off: 50 bytes" in page
    assert "&lt;b&gt;" in page
    assert "<b>20" not in page


def test_a_job_without_any_has_no_section(server: Running, ann: Api, visit: Visit) -> None:
    runs(server, ann)
    assert HEADING not in visit(server, "ann").get("/jobs/train").text


def test_other_users_see_none(start_server: Callable[..., Running], visit: Visit) -> None:
    server = start_server(share_jobs=True)
    saves(server, runs(server, server.as_user("ann")))
    page = visit(server, "ben").get("/jobs/train?owner=ann")
    assert page.status_code == 200
    assert HEADING not in page.text
