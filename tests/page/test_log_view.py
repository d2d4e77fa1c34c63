"""The log on the page of a job, in a real browser."""

import re
from itertools import pairwise
from typing import Any

import pytest

from client_lib import visible_text
from tests.http.conftest import Running
from tests.kit.waiting import until
from tests.log_reading.sequences import COLOURS, SEQUENCES
from tests.logs.support import LogWriter
from tests.page.conftest import login
from tests.page.support import log_of, open_job, row, running_job, violations

HOSTILE = (
    '<img src=x onerror="window.hit=1"><script>window.hit=1</script>&lt;b&gt; '
    "\x1b]8;;javascript:hit()\x07x"
)


pytestmark = [pytest.mark.process, pytest.mark.xdist_group("chromium")]


@pytest.fixture
def job_id(server: Running) -> str:
    return running_job(server, n_workers=2)


@pytest.fixture
def log(server: Running, job_id: str) -> LogWriter:
    return log_of(server, job_id)


def bars(page: Any) -> list[str]:
    found: list[str] = page.locator(".log-bars .row").all_inner_texts()
    return found


def test_lines_come_live_with_their_colours(page: Any, server: Running, log: LogWriter) -> None:
    log.write("\x1b[1;31mred\x1b[0m plain \x1b[38;2;10;20;30mexact\x1b[0m \x1b[2Kerased")
    open_job(page, server)
    row(page, "plain").wait_for()
    assert row(page, "plain").inner_text() == "[0] red plain exact erased"
    assert page.locator(".row .fg-1.bold").inner_text() == "red"
    assert (
        page.get_by_text("exact", exact=True).evaluate("e => getComputedStyle(e).color")
        == "rgb(10, 20, 30)"
    )
    for number in range(300):
        log.write(f"live {number}", rank=3)
    row(page, "[3] live 299").wait_for()
    assert row(page, "[3] live 299").is_visible(), "the newest line is in sight"


def test_a_line_is_text_whatever_it_holds(page: Any, server: Running, log: LogWriter) -> None:
    log.write(HOSTILE)
    log.write("\x1b[31" + "9;" * 2000 + "mlong")
    log.write(b"\xff\xfe broken \x00 bytes")
    open_job(page, server)
    row(page, "broken").wait_for()
    assert row(page, "onerror").inner_text() == f"[0] {HOSTILE.split(chr(27), maxsplit=1)[0]}x"
    assert page.evaluate("window.hit") is None
    assert page.locator(".log-box img, .log-box script, .log-box a").count() == 0


def test_a_line_reads_as_on_a_terminal(page: Any, server: Running, log: LogWriter) -> None:
    open_job(page, server)
    lines = [f"{first} a {second} b \u202e" for first, second in pairwise([*SEQUENCES, *COLOURS])]
    shown = page.evaluate(
        "async (lines) => { const { pieces } = await import('/static/ansi.js');"
        "return lines.map((line) => pieces(line).map((piece) => piece.text).join('')); }",
        lines,
    )
    assert shown == [visible_text.plain(line) for line in lines]


def test_progress_is_redrawn_below_the_lines_and_joined_lines_are_one(
    page: Any, server: Running, log: LogWriter
) -> None:
    open_job(page, server)
    log.write("Loading ", kind="+")
    row(page, "Loading").wait_for()
    log.write("done")
    row(page, "Loading done").wait_for()
    for rank in (0, 1):
        log.write(f"{rank} 10%", rank=rank, stream="stderr", kind="~")
    log.write("1 20%", rank=1, stream="stderr", kind="~")
    page.wait_for_function("() => document.querySelector('.log-bars').innerText.includes('20%')")
    assert bars(page) == ["[0] 0 10%", "[1] 1 20%"]
    log.write("1 100%", rank=1, stream="stderr")
    row(page, "1 100%").wait_for()
    page.wait_for_function("() => document.querySelectorAll('.log-bars .row').length == 1")
    for rank in range(4):
        log.write(f"50%| {5 + rank}/10", rank=rank, stream="stderr", kind="~")
    page.wait_for_function(
        "() => document.querySelector('.log-bars').innerText.includes('step 5 to 8')"
    )
    assert len(bars(page)) == 1


def test_ranks_and_streams_are_chosen_on_the_server(
    page: Any, server: Running, log: LogWriter
) -> None:
    for number in range(100):
        log.write(f"out {number}", rank=number % 4)
        log.write(f"err {number}", rank=number % 4, stream="stderr")
    open_job(page, server)
    row(page, "err 99").wait_for()
    page.get_by_label("ranks").fill("1, 2")
    page.get_by_label("ranks").press("Enter")
    row(page, "[2] out 98").wait_for()
    page.wait_for_function("() => !document.querySelector('.log-box').innerText.includes('[3]')")
    page.get_by_label("stream").select_option("stderr")
    page.wait_for_function("() => !document.querySelector('.log-box').innerText.includes('out')")
    assert "rank=1" in page.url
    assert "rank=1&rank=2&stream=stderr" in page.get_by_role("link", name="Download").get_attribute(
        "href"
    )
    log.write("err later", rank=1, stream="stderr")
    row(page, "[1] err later").wait_for()


def test_a_search_finds_lines_of_the_whole_log_and_leads_to_their_place(
    page: Any, server: Running, log: LogWriter
) -> None:
    log.append([log.record(f"line {number} (a)", at=number) for number in range(30_000)])
    open_job(page, server)
    row(page, "line 29999").wait_for()
    search = page.get_by_role("searchbox")
    search.fill("line 1234 (a)")
    search.press("Enter")
    page.get_by_text("1 line with").wait_for()
    row(page, "line 1234 (a)").click()
    page.locator(".row.marked", has_text="line 1234 (a)").wait_for()
    row(page, "line 1235 (a)").wait_for()
    row(page, "line 1233 (a)").wait_for()
    assert re.search(r"t=2026-11-21T10%3A20%3A34", page.url)
    page.reload()
    page.locator(".row.marked", has_text="line 1234 (a)").wait_for()
    search.fill("(")
    page.get_by_label("regex").check()
    search.press("Enter")
    page.get_by_text("is not a regular expression").wait_for()


def test_a_log_of_many_lines_opens_at_its_end_and_scrolls(
    page: Any, server: Running, log: LogWriter
) -> None:
    for begin in range(0, 200_000, 10_000):
        log.append(
            [
                log.record(f"line {number}", at=number / 100)
                for number in range(begin, begin + 10_000)
            ]
        )
    open_job(page, server)
    row(page, "line 199999").wait_for()
    box = page.locator(".log-box")
    for _ in range(3):
        height = box.evaluate(
            "box => { const before = box.scrollHeight; box.scrollTop = 0; return before; }"
        )
        page.wait_for_function(
            "before => document.querySelector('.log-box').scrollHeight > before", arg=height
        )
    assert page.locator(".row").count() < 200, "only what is visible is in the document"
    seen = page.locator(".row").nth(20).inner_text()
    log.write("a new line", at=10_000)
    page.wait_for_function(
        "() => document.querySelector('.log-box').classList.contains('following')"
    )
    assert page.locator(".row", has_text=seen).is_visible(), "who reads older lines is not moved"
    page.get_by_role("button", name="First lines").click()
    row(page, re.compile("line 0$")).wait_for()
    box.evaluate("box => box.scrollTop = box.scrollHeight")
    row(page, re.compile("line 1[0-9]{3}$")).first.wait_for()
    page.get_by_role("button", name="Last lines").click()
    row(page, "a new line").wait_for()


def test_the_last_lines_of_an_ended_job_stay_in_sight(
    page: Any, server: Running, job_id: str, log: LogWriter
) -> None:
    log.append([log.record(f"line {number}", at=number) for number in range(20_000)])
    server.call(lambda: server.runtime.end(job_id))
    open_job(page, server)
    for _ in range(10):  # it failed about every sixth time
        row(page, "line 19999").wait_for()
        page.get_by_role("button", name="First lines").click()
        row(page, re.compile("line 0$")).wait_for()
        page.locator(".log-box").evaluate("box => box.scrollTop = box.scrollHeight")
        page.get_by_role("button", name="Last lines").click()
    row(page, "line 19999").wait_for()


def test_pages_of_older_lines_follow_each_other_without_a_gap(
    page: Any, server: Running, job_id: str
) -> None:
    logs = [log_of(server, job_id, worker) for worker in range(2)]
    for number in range(5000):
        logs[number % 2].append(
            [logs[number % 2].record(f"line {number}", at=number, rank=number % 2)]
        )
    open_job(page, server)
    row(page, "line 4999").wait_for()
    texts = page.evaluate(
        """async () => {
          const there = new URL("../static/log_window.js", location.href).href;
          const { LogWindow } = await import(there);
          const list = {
            rows: [],
            append(rows) { this.rows.push(...rows); },
            prepend(rows) { this.rows.unshift(...rows); },
            redraw() {},
            clear() { this.rows = []; },
            cutTop(n) { this.rows.splice(0, n); },
            cutBottom() {},
          };
          const events = { bars() {}, away() {}, failed(error) { throw error; }, following() {} };
          const log = new LogWindow("api/v1/jobs/train/logs", { owner: "ann" }, list, events);
          log.showEnd();
          while (list.rows.length < 1000) await new Promise((next) => setTimeout(next, 10));
          for (let page = 0; page < 4; page++) await log.more("top");
          return list.rows.map((row) => row.text);
        }"""
    )
    assert texts == [f"line {number}" for number in range(5000)]


def test_the_log_goes_on_after_the_server_was_away(
    page: Any, server: Running, log: LogWriter
) -> None:
    log.write("before")
    open_job(page, server)
    row(page, "before").wait_for()
    page.context.set_offline(True)
    page.evaluate("window.stop()")  # cuts the stream
    page.get_by_text("has not answered since").wait_for()
    log.write("meanwhile", at=1)
    page.context.set_offline(False)
    row(page, "meanwhile").wait_for()
    assert row(page, "before").count() == 1
    page.wait_for_function("() => !document.body.innerText.includes('has not answered since')")


def test_a_hidden_page_gives_its_connection_back_and_goes_on_when_it_is_seen(
    page: Any, server: Running, log: LogWriter
) -> None:
    page.add_init_script(
        """Object.defineProperty(document, "hidden", { get: () => window.away === true });
        const real = window.setTimeout;
        window.setTimeout = (act, ms, ...rest) => real(act, ms === 10000 ? 0 : ms, ...rest);"""
    )
    log.write("before")
    open_job(page, server)
    row(page, "before").wait_for()
    until(lambda: server.call(lambda: server.parts.hub.followers) == 1)
    page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    until(lambda: server.call(lambda: server.parts.hub.followers) == 0)
    log.write("meanwhile")
    page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    row(page, "meanwhile").wait_for()
    assert row(page, "before").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_with_everything_on_it_is_accessible(
    page: Any, server: Running, log: LogWriter, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    colours = "".join(
        f"\x1b[{code}m{code}\x1b[0m " for code in (1, 2, 7, *range(30, 38), *range(90, 98), 41, 103)
    )
    for rank in range(9):
        log.write(f"step {rank}/9 loss=0.{9 - rank}", at=rank)
        log.write(f"rank {rank} {colours}", rank=rank, at=rank)
        log.write(f"{rank}%", rank=rank, stream="stderr", kind="~", at=rank)
    log.write("step 9/9 loss=nan", at=9)
    open_job(page, server)
    page.get_by_role("button", name="stacks").click()
    page.locator(".stacks li").wait_for()
    page.get_by_label("times").check()
    row(page, "rank 8").click()
    page.locator(".trouble").wait_for()
    assert violations(page) == []


def test_a_log_is_read_on_after_an_error_and_a_stop_is_none(
    page: Any, server: Running, log: LogWriter
) -> None:
    log.write("line")
    login(page, server, "ann")
    page.route("**/logs?*", lambda route: route.abort(), times=1)
    found = page.evaluate("""async () => {
      const { LogWindow } = await import("/static/log_window.js");
      const list = { rows: [], clear() {}, append(rows) { this.rows.push(...rows); } };
      const nothing = () => undefined;
      const events = { bars: nothing, away: nothing, failed: nothing, following: nothing };
      const log = new LogWindow("api/v1/jobs/train/logs", {}, list, events);
      const failed = await log.showFrom("").catch(() => "failed");
      await log.more("bottom");
      const stopped = log.showFrom("");
      log.close();
      return [failed, list.rows.length, await stopped.catch((error) => error.name)];
    }""")
    assert found == ["failed", 1, True]


def test_the_last_progress_of_a_job_is_a_line_at_its_end(
    page: Any, server: Running, job_id: str, log: LogWriter
) -> None:
    open_job(page, server)
    log.write("42%", kind="~", at=1)
    page.locator(".log-bars", has_text="42%").wait_for()
    server.call(lambda: server.runtime.end(job_id))
    row(page, "42%").wait_for()
    page.locator(".log-bars").wait_for(state="hidden")
    assert not page.get_by_label("follow").is_checked()


def test_a_click_on_a_curve_shows_the_log_of_that_time_and_a_line_marks_the_curve(
    page: Any, server: Running, log: LogWriter
) -> None:
    log.append(
        [
            log.record(f"step {number}/5000 loss={1 / (number + 1):.6f}", at=number)
            for number in range(5000)
        ]
    )
    open_job(page, server)
    page.locator(".chart .u-over").wait_for()
    row(page, "step 4999").wait_for()
    plot = page.locator(".chart .u-over")
    width = plot.bounding_box()["width"]
    plot.click(position={"x": width / 2, "y": 60})
    marked = page.locator(".row.marked")
    marked.wait_for()
    assert 2300 < int(re.findall(r"step (\d+)", marked.inner_text())[0]) < 2700
    before = page.locator(".chart canvas").evaluate("canvas => canvas.toDataURL()")
    row(page, "step 2505/").click()
    page.wait_for_function(
        "before => document.querySelector('.chart canvas').toDataURL() != before", arg=before
    )
