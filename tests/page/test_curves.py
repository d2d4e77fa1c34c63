"""Curves and stacks on the page of a job, in a real browser."""

import json
from typing import Any

import pytest

from client_lib.launcher_protocol.record import metric_lines
from tests.http.conftest import Running
from tests.logs.support import LogWriter
from tests.page.support import log_of, open_job, row, running_job

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chromium")]

DUMP = (
    'Current thread 0x01 (most recent call first):\n  File "/home/ann/train.py", line {line} in '
    "{function}\n"
)


def steps(log: LogWriter, begin: int, end: int, rank: int = 0) -> None:
    log.append(
        [log.record(f"step {n}/100 loss={100 - n}.5", at=n, rank=rank) for n in range(begin, end)]
    )


def charts(page: Any) -> list[str]:
    found: list[str] = page.locator(".chart figcaption").all_inner_texts()
    return found


def captions(page: Any, text: str) -> None:
    page.locator(".chart figcaption", has_text=text).first.wait_for()


def labels(page: Any) -> list[str]:
    found: list[str] = page.locator(".chart").first.locator(".u-series .u-label").all_inner_texts()
    return found


def test_curves_appear_grow_and_say_where_a_value_is_no_number(page: Any, server: Running) -> None:
    log = log_of(server, running_job(server))
    log.write("starting")
    open_job(page, server)
    row(page, "starting").wait_for()
    assert not page.locator("#curves").is_visible()
    steps(log, 0, 10)
    log.write("acc=0.5 step 9/100")
    captions(page, "loss 91.5")
    steps(log, 10, 20)
    captions(page, "loss 81.5")
    log.write("step 20/100 loss=nan")
    captions(page, "NaN at step 20")


def test_attempts_ranks_and_other_jobs_are_curves_of_their_own(page: Any, server: Running) -> None:
    log = log_of(server, running_job(server))
    steps(log, 0, 10)
    steps(log, 5, 15)
    steps(log, 0, 10, rank=1)
    other = server.as_user("ann").submit(name="yesterday").json()["id"]
    steps(log_of(server, other), 0, 50)
    open_job(page, server)
    captions(page, "loss")
    assert labels(page) == ["step", "attempt 1", "attempt 2"]
    page.get_by_label("rank", exact=True).select_option("all")
    page.wait_for_function("() => document.querySelectorAll('.u-series').length == 4")
    assert labels(page)[1:] == ["rank 0, attempt 1", "rank 0, attempt 2", "rank 1, attempt 1"]
    page.goto(f"{server.url}/jobs/train?with=yesterday")
    captions(page, "loss")
    assert labels(page)[1:] == ["train, attempt 1", "train, attempt 2", "yesterday, attempt 1"]
    page.get_by_role("button", name="Without yesterday").click()
    page.wait_for_function("() => document.querySelectorAll('.u-series').length == 3")
    assert "with=" not in page.url
    page.get_by_label("Compare with").fill("nobody")
    page.get_by_role("button", name="Compare").click()
    page.get_by_text("no job named nobody").wait_for()


def test_smoothing_scale_and_axis_redraw_the_curves(page: Any, server: Running) -> None:
    log = log_of(server, running_job(server))
    steps(log, 0, 90)
    open_job(page, server)
    captions(page, "loss")
    page.get_by_label("smoothing").fill("0.9")
    page.wait_for_function("() => document.querySelectorAll('.u-series').length == 3")
    page.get_by_label("log scale").check()
    page.get_by_label("over", exact=True).select_option("time")
    page.locator(".u-series .u-label", has_text="time").wait_for()
    plot = page.locator(".chart .u-over").bounding_box()
    page.mouse.move(plot["x"] + 100, plot["y"] + 50)
    page.mouse.down()
    page.mouse.move(plot["x"] + 200, plot["y"] + 60, steps=4)
    page.mouse.up()
    assert page.locator(".row.marked").count() == 0, "a drag zooms, and is no click"
    page.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    page.locator(".row.marked").wait_for()


def test_names_of_metrics_are_text(page: Any, server: Running) -> None:
    name = "<img src=x onerror=window.hit=1>"
    log = log_of(server, running_job(server))
    for step in range(3):
        line = metric_lines(0, step, {name: 1.5, "__proto__": 2.5})[0].rstrip()
        log.write(line, rank="-", stream="metrics")
    open_job(page, server)
    captions(page, "onerror")
    assert f"{name} 1.5" in charts(page)
    assert page.evaluate("window.hit") is None


def test_stacks_are_grouped_as_the_command_groups_them(page: Any, server: Running) -> None:
    log = log_of(server, running_job(server))
    log.write("begins")
    places = {0: (6, "reduce"), 1: (6, "reduce"), 2: (9, "<img src=x>")}
    server.runtime.processes = [
        {
            "rank": rank,
            "pid": rank,
            "state": "S",
            "name": "python",
            "dump": DUMP.format(line=line, function=function),
        }
        for rank, (line, function) in places.items()
    ]
    server.runtime.missing = ["worker 1 does not answer"]
    open_job(page, server)
    page.get_by_role("button", name="stacks").click()
    page.locator(".stacks li").first.wait_for()
    assert page.locator(".stacks li").all_inner_texts() == [
        "ranks 0-1: reduce (train.py:6)",
        "rank 2: <img src=x> (train.py:9)",
        "worker 1 does not answer",
    ]
    page.locator(".stacks summary", has_text="rank 2").click()
    page.locator(".stacks pre", has_text="<img src=x> (/home/ann/train.py:9)").wait_for()


def test_series_are_split_joined_and_smoothed(page: Any, server: Running) -> None:
    running_job(server)
    open_job(page, server)
    got = page.evaluate(
        """async () => {
          const s = await import(new URL("../static/series.js", location.href).href);
          const [steps, times, values] = [[0, 1, 1, 0, 2], [1, 2, 3, 4, 5], [1, "NaN", 3, 4, 5]];
          const curve = { name: "a", rank: 0, axis: "step", steps, times, values };
          const shown = (value) => (value === undefined ? "-" : value);
          const plain = (column) => Array.from(column, shown);
          return JSON.stringify({
            parts: s.parts("j", curve).map((part) => [part.attempt, part.steps, part.values]),
            table: s.table([{ x: [0, 2], y: [1, 2] }, { x: [1], y: [null] }]).map(plain),
            smooth: s.smooth([1, null, 1, 3], 0.5),
            nearest: [-5, 0.4, 0.6, 9].map((x) => s.nearest([0, 1, 2], x)),
            shown: [0, 12, 0.123456, 1e-7, 1e9].map(s.shown),
            duration: [5, 65, 3725, -5].map(s.duration),
          });
        }"""
    )
    assert json.loads(got) == {
        "parts": [[1, [0, 1, 1], [1, None, 3]], [2, [0, 2], [4, 5]]],
        "table": [[0, 1, 2], [1, "-", 2], ["-", None, "-"]],
        "smooth": [1, None, 1, 1 + 2 * 0.5 / 0.875],
        "nearest": [0, 0, 1, 2],
        "shown": ["0", "12", "0.12346", "1.000e-7", "1.000e+9"],
        "duration": ["0:05", "1:05", "1:02:05", "-0:05"],
    }
