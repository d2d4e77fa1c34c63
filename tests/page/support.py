"""Jobs whose log the test writes, on the page in a browser."""

import re
from typing import Any

from server_stub.files.job_dirs import log_dir
from tests.http.conftest import Running
from tests.http.test_stacks import runs
from tests.logs.support import LogWriter
from tests.page.conftest import login


def running_job(server: Running, **spec: Any) -> str:
    """The id of a job `train` of ann that runs."""
    return runs(server, server.as_user("ann"), **spec)


def log_of(server: Running, job_id: str, worker: int = 0, attempt: int = 1) -> LogWriter:
    return LogWriter(log_dir(server.settings.data_dir / "jobs" / job_id, attempt, worker))


def open_job(page: Any, server: Running, query: str = "", name: str = "train") -> None:
    """Log ann in, and show the page of her job."""
    login(page, server, "ann")
    page.goto(f"{server.url}/jobs/{name}{query}")


def violations(page: Any) -> list[str]:
    """The violations that axe finds on the page."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]


def row(page: Any, text: str | re.Pattern[str]) -> Any:
    """The row of the log with this text."""
    return page.locator(".log-box .row", has_text=text)
