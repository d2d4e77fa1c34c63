"""Pages in a real Chromium: what updates by itself, keys, accessibility,
and what a new user does.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.client import Client
from client_lib.spec import paths
from client_lib.spec.states import Reason
from client_lib.transport import local_server as servers
from tests.http.conftest import Api, Running
from tests.http.test_groups import submit as submit_group
from tests.kit.local_server import own_configuration
from tests.kit.waiting import until
from tests.page.conftest import login, new_job
from tests.page.support import log_of, open_job, running_job, violations

__all__ = ["own_configuration"]

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chromium")]
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def names(page: Any) -> list[str]:
    return page.eval_on_selector_all(
        "#jobs tbody tr:not([hidden])", "rows => rows.map(row => row.dataset.name)"
    )


def test_the_table_follows_its_jobs_and_keeps_the_chosen_row(page: Any, server: Running) -> None:
    job = new_job(server, "ann", name="one")
    login(page, server, "ann")
    page.keyboard.press("j")
    new_job(server, "ann", name="two")
    server.call(lambda: server.runtime.runs(job["id"]))
    page.wait_for_selector("tr[data-name=two]")
    page.wait_for_selector("tr[data-name=one].selected .state.running")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_selector("#job[data-name=two]")


def test_the_loss_of_an_ended_job_is_asked_for_until_it_is_complete(
    page: Any, server: Running
) -> None:
    job = new_job(server, "ann", name="train")
    server.call(lambda: server.runtime.runs(job["id"]))
    server.call(lambda: server.runtime.end(job["id"]))
    until(lambda: server.as_user("ann")("GET", paths.job("train")).json()["state"] == "SUCCEEDED")
    answers = [
        (503, {}),
        *((200, {"complete": last == 1500, "last": last}) for last in (1000, 1500)),
    ]

    def answer(route: Any) -> None:
        status, body = answers.pop(0)
        curve = {"name": "loss", "values": [2000, body.get("last")]}
        route.fulfill(status=status, json={**body, "curves": [curve]})

    page.route("**/metrics?*", answer)
    page.clock.install()
    login(page, server, "ann")
    for left, shown in ((2, ""), (1, "loss 1000"), (0, "loss 1500"), (0, "loss 1500")):
        until(
            lambda left=left, shown=shown: (
                (len(answers), page.inner_text(".loss").strip()) == (left, shown)
            )
        )
        page.clock.fast_forward(11_000)


def test_a_group_unfolds_to_its_members_and_follows_them(page: Any, server: Running) -> None:
    made = submit_group(server.as_user("ann"), "scan", 2, max_parallel=1)
    assert made.status_code == 201, made.text
    login(page, server, "ann")
    assert names(page) == ["scan"]
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("tr.member[data-name=scan-1]")
    assert names(page) == ["scan", "scan-0", "scan-1"]
    assert violations(page) == []
    until(lambda: server.runtime.started)
    server.call(lambda: server.runtime.runs(server.runtime.started[0][0]))
    page.wait_for_selector("tr.member[data-name=scan-0] .state.running")
    page.wait_for_selector("tr[data-name=scan] .state.running")
    page.click("a.group")
    page.wait_for_selector("a.group[aria-expanded=false]")
    assert names(page) == ["scan"]


def test_search_hides_rows_at_once_and_the_button_asks_the_server(
    page: Any, server: Running
) -> None:
    for name in ("train-a", "train-b", "other"):
        new_job(server, "ann", name=name)
    login(page, server, "ann")
    page.keyboard.press("/")
    page.keyboard.type("TRAIN-")
    assert names(page) == ["train-b", "train-a"]
    page.fill("#search", "train-a")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?q=train-a*")
    assert names(page) == ["train-a"]


def test_the_page_says_since_when_it_is_stale_and_goes_on_after_a_restart(
    page: Any, server: Running
) -> None:
    new_job(server, "ann", name="train")
    login(page, server, "ann")
    server.stop()
    page.wait_for_selector("#stale:not([hidden])")
    assert "shows the state at" in page.inner_text("#stale")
    again = Running(server.settings.state_dir, port=int(server.url.rsplit(":", 1)[1]))
    try:
        new_job(again, "ann", name="second")
        page.wait_for_selector("tr[data-name=second]")  # the login is still valid
        page.wait_for_selector("#stale", state="hidden")
    finally:
        again.stop()


def test_a_login_that_is_over_is_told(page: Any, server: Running) -> None:
    login(page, server, "ann")
    page.context.clear_cookies()
    page.click("#stale a")
    page.wait_for_selector("#token")
    page.fill("#token", server.tokens["ann"])
    page.click("button.main")
    page.wait_for_selector("#jobs")


def test_the_page_of_a_job_follows_it_to_its_end(page: Any, server: Running) -> None:
    job = new_job(server, "ann", name="train")
    login(page, server, "ann")
    page.click("text=train")
    page.wait_for_selector("#status .state.pending")
    server.call(lambda: server.runtime.runs(job["id"]))
    page.wait_for_selector("#status .state.running")
    page.click("text=Cancel")
    page.click("text=Stop every worker >> .. >> button")
    page.wait_for_selector("#status .state.cancelled")
    assert page.get_attribute("#job", "data-final") == "true"
    assert page.locator("#timeline rect").count() == 3


def test_the_progress_moves_without_another_page(page: Any, server: Running) -> None:
    log = log_of(server, running_job(server))
    steps = [log.record(f"step {n}/100 loss={n}.5", at=n) for n in range(51)]
    log.append(steps[:3])
    open_job(page, server)
    page.wait_for_selector("#status .progress")
    pages: list[str] = []
    page.on(
        "request",
        lambda request: pages.append(request.url) if request.url.endswith("/jobs/train") else None,
    )
    log.append(steps[3:])
    page.wait_for_function(
        "() => document.querySelector('#status .progress').textContent.includes('50%')"
    )
    assert "loss 50.5" in page.inner_text("#status")
    assert {each for each in pages if "/api/" not in each} == set()


def test_a_job_whose_loss_becomes_nan_turns_amber_without_another_page(
    page: Any, server: Running
) -> None:
    log = log_of(server, running_job(server))
    steps = [log.record(f"step {n} loss={'nan' if n > 2 else n}", at=n) for n in range(9)]
    log.append(steps[:3])
    open_job(page, server)
    page.wait_for_selector("#status .state.running:not(.attention)")
    assert page.title() == "train · client_lib"
    log.append(steps[3:])
    page.wait_for_selector("#status .state.running.attention")
    assert "loss was NaN from step 3" in page.inner_text("#status .summary")
    assert page.title() == "⚠ train · client_lib"
    assert page.get_attribute("link[rel=icon]", "href") == "../static/attention.svg"
    page.goto(server.url)
    page.wait_for_selector("#jobs .state.running.attention")
    assert "loss was NaN from step 3" in page.inner_text("#jobs")
    assert violations(page) == []
    page.wait_for_selector("svg.spark circle")


def test_the_page_of_the_server_shows_its_figures_as_they_change(
    page: Any, server: Running
) -> None:
    login(page, server, "ann")
    page.goto(f"{server.url}/server")
    pending = page.locator("dt:has-text('jobs pending') + dd")
    assert pending.count() == 0
    new_job(server, "ann", name="train")
    pending.wait_for()
    assert pending.inner_text() == "1"


@pytest.mark.parametrize("edited", [False, True])
def test_a_resubmit_keeps_the_ends_of_lines_in_arguments(
    page: Any, server: Running, edited: bool
) -> None:
    args = ["--prompt", "one\n\n two", "\nit's\n"] + ([] if edited else ["\r\n", ""])
    new_job(server, "ann", name="train", args=args)
    open_job(page, server)
    page.click("summary:has-text('Resubmit')")
    if edited:
        page.fill("#args", page.input_value("#args") + " --more")
    page.click(".act[open] button")
    page.wait_for_selector("#job:not([data-name=train])")
    again = server.as_user("ann")("GET", paths.job(page.get_attribute("#job", "data-name"))).json()
    assert again["spec"]["args"] == args + (["--more"] if edited else [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_every_page_is_accessible_and_no_wider_than_the_screen(
    page: Any, server: Running, width: int, scheme: str
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=scheme)
    spec = {
        "labels": {"team": "vision"},
        "args": ["word" * 30],
        "env_variables": {"MODE": "x" * 200},
    }
    for name in ("runs", "failed"):
        job = new_job(server, "ann", name=name, **spec)
        server.call(lambda job=job: server.runtime.runs(job["id"]))
    server.call(
        lambda: server.runtime.end(
            job["id"], Reason.EXIT_CODE, "rank 1 ended with exit code 1" + " long" * 60
        )
    )
    ended = server.as_user("ann")
    until(lambda: ended("GET", paths.job("failed")).json()["state"] == "FAILED")
    page.goto(server.url)
    problems = violations(page)
    login(page, server, "ann")
    shown = [page.url, f"{page.url}jobs/runs", f"{page.url}jobs/failed", f"{page.url}jobs/none"]
    for address in shown:
        page.goto(address)
        problems += violations(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
    assert problems == []


def test_the_top_bar_of_an_admin_has_one_line_on_a_phone(page: Any, server: Running) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    name = "a" * 50
    new_job(server, "root", name=name)
    login(page, server, "root")
    for address in ("/", "/server", f"/jobs/{name}"):
        page.goto(server.url + address)
        assert page.evaluate("document.querySelector('.top').offsetHeight") < 60, address
        assert page.inner_text(".who") == "root · admin\nLog out"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address


def test_markup_in_names_of_things_is_text(page: Any, server: Running) -> None:
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    spec = {
        "labels": {MARKUP: MARKUP},
        "args": [MARKUP],
        "env_variables": {"A": MARKUP},
        "job_desc": MARKUP,
    }
    job = new_job(server, "ann", name="train", **spec)
    server.call(lambda: server.runtime.runs(job["id"]))
    server.call(lambda: server.runtime.end(job["id"], Reason.EXIT_CODE, MARKUP))
    login(page, server, "ann")
    until(lambda: server.as_user("ann")("GET", paths.job("train")).json()["state"] == "FAILED")
    page.wait_for_selector(".state.failed")
    assert page.inner_text("tbody").count(MARKUP) >= 3
    page.click("text=train")
    page.wait_for_selector("#job")
    assert page.inner_text("#job").count(MARKUP) >= 5
    assert (page.locator("img").count(), alerts) == (0, [])


class Here:
    """The local server that tests share, as its user sees it."""

    def __init__(self, state: Path) -> None:
        found = servers.find(state)
        assert found
        self.url, self.token = found.endpoint[:2]

    def as_user(self, _: str) -> Api:
        return Api(self.url, self.token)


SCRIPT = """
import pathlib, sys, time
lr = float(sys.argv[sys.argv.index("--lr") + 1])
for step in range(100):
    print(f"step {step}/100 loss={1 / (1 + lr * step):.4f}", flush=True)
    if lr == 0.5 and step == 20:
        raise ValueError(f"lr {lr} is too <b>large</b>")
pathlib.Path("model.pt").write_bytes(b"weights of %g" % lr)
while lr == 1 and time.sleep(0.1) is None:
    pass
"""


@pytest.fixture
def here(local_server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    """A folder with a script, in which jobs of the shared local server are submitted."""
    monkeypatch.setenv("CLIENT_LIB_STATE_DIR", str(local_server))
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    yield Here(local_server)
    for job in Client().list_jobs():
        Client().get_job(job.name).delete(force=True)


def submit(*args: str, **options: Any) -> str:
    from client_lib import Job

    job = Job(script="train.py", args=list(args), **options)
    job.submit()
    return str(job.name)


def test_a_new_user_finds_why_a_job_failed_and_resubmits_it(
    page: Any, here: Here, tmp_path: Path
) -> None:
    variables = {"LINES": "a\nb=c", "NONE": None, "PAD": " x "}
    name = submit("--lr", "0.5", env_variables=variables)
    login(page, here, "me")
    page.click(f"text={name}")
    page.wait_for_selector(".failure .exception")
    assert page.inner_text(".failure .exception") == "ValueError: lr 0.5 is too <b>large</b>"
    assert "rank 0 on worker 0 ended with exit code 1" in page.inner_text(".summary")
    page.click("summary:has-text('Resubmit')")
    page.fill("#args", "--lr 0.1")
    page.fill("#env_variables", page.input_value("#env_variables") + "NEW=1\n")
    page.click(".act[open] button")
    page.wait_for_selector(f"#job:not([data-name={name}]) #status .state.succeeded")
    assert (tmp_path / "model.pt").read_bytes() == b"weights of 0.1"
    again = Client().get_job(page.get_attribute("#job", "data-name"))
    assert again.info().spec.env_variables == {**variables, "NEW": "1"}


def test_a_new_user_cancels_a_job_and_resubmits_it_with_another_learning_rate(
    page: Any, here: Here
) -> None:
    name = submit("--lr", "1", code="snapshot")
    login(page, here, "me")
    page.wait_for_selector(f"tr[data-name={name}] svg.spark")
    page.click(f"text={name}")
    page.click("summary:has-text('Cancel')")
    page.click(".act[open] button")
    page.wait_for_selector("#status .state.cancelled")
    page.click("summary:has-text('Resubmit')")
    page.fill("#args", "--lr 0.1")
    page.click(".act[open] button")
    page.wait_for_selector(f"#job:not([data-name={name}]) #status .state.succeeded")
    assert "--lr 0.1" in page.inner_text("#status .facts")


def test_a_new_user_downloads_the_model(page: Any, here: Here) -> None:
    name = submit("--lr", "0.1", code="snapshot")
    login(page, here, "me")
    page.click(f"text={name}")
    page.wait_for_selector("#status .state.succeeded")
    with page.expect_download() as download:
        page.click("#files a:has-text('model.pt')")
    assert Path(download.value.path()).read_bytes() == b"weights of 0.1"


def test_a_new_user_watches_a_loss_beside_yesterdays_and_what_the_job_uses(
    page: Any, here: Here
) -> None:
    yesterday = submit("--lr", "0.1")
    name = submit("--lr", "1")
    login(page, here, "me")
    page.click(f"text={name}")
    page.locator(".chart figcaption", has_text="loss 0.01").wait_for()
    page.get_by_label("Compare with").fill(yesterday)
    page.get_by_role("button", name="Compare").click()
    page.locator("#curves .u-label", has_text=yesterday).first.wait_for()
    page.locator("#workers").scroll_into_view_if_needed()
    page.locator("#usage figcaption", has_text="worker/memory_gib 0.").wait_for()


def test_a_new_user_finds_the_line_in_which_a_rank_hangs(
    page: Any, here: Here, tmp_path: Path
) -> None:

    (tmp_path / "train.py").write_text(
        "import os, time\ndef load():\n    time.sleep(600)\ndef step():\n    time.sleep(600)\n"
        "print('begins', flush=True)\nload() if os.environ['RANK'] == '1' else step()\n"
    )
    name = submit(processes_per_worker=2)
    login(page, here, "me")
    page.click(f"text={name}")
    page.locator(".row", has_text="begins").nth(1).wait_for()
    page.get_by_role("button", name="stacks").click()
    page.locator(".stacks li").first.wait_for()
    shown = page.locator(".stacks li").all_inner_texts()
    assert any(line.startswith("rank 1: load (train.py:3)") for line in shown), shown
