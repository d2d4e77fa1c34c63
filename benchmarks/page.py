"""The page of a job in Chromium: size, first paint, delay of a line, CPU of the server, a long log,
and the JS heap.

    python benchmarks/page.py [--only cpu ...] [--pages 50] [--rate 100] [--seconds 20] [--lines
                              1000000] [--heap-minutes 0.5 3] [--heap-rate 1000]

A real local server and real jobs; Debian's Chromium, and playwright of requirements/dev.txt. The
delay is from the time that the rank printed to the frame of the screen after the row was in the
document. For the CPU of the server the requests of one page are recorded in Chromium, and repeated
as often as pages are wanted. The followers are raw sockets that read frames, as
`client-lib logs -f` does. For the heap a job prints 1000 lines/s: a minute is ten of a job that
prints 100 lines/s, for which `--only heap --heap-minutes 5 30 --heap-rate 100` measures it.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import shutil
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from own_server import INSTANCE_TYPE, own_server
from playwright.sync_api import sync_playwright
from proc import cpu_s

from client_lib import Job
from client_lib.spec import paths
from client_lib.transport import local_server

STATIC = Path(__file__).parents[1] / "server_stub" / "http" / "page" / "static"
PRINTS = """import sys, time
rate, lines = float(sys.argv[1]), int(sys.argv[2])
begin = time.time()
for n in range(lines):
    time.sleep(max(0.0, begin + n / rate - time.time()))
    print(f"step {n}/{lines} loss={1 / (n + 1):.5f} printed {time.time() * 1000:.3f}", flush=True)
"""
LONG = """import sys
for begin in range(0, int(sys.argv[1]), 1000):
    steps = range(begin, begin + 1000)
    sys.stdout.write("".join(f"step {n} loss={1000 / (n + 1):.5f}\\n" for n in steps))
print("the last line")
"""
WATCH = """() => {
  window.delays = [];
  const seen = new Set();
  new MutationObserver(() => requestAnimationFrame(() => {
    const now = performance.timeOrigin + performance.now();
    for (const row of document.querySelectorAll(".log-rows .row")) {
      const text = row.textContent, printed = Number(/printed ([0-9.]+)/.exec(text)?.[1]);
      if (printed && !seen.has(text)) { seen.add(text); window.delays.push(now - printed); }
    }
  })).observe(document.querySelector(".log-box"), { childList: true, subtree: true });
}"""
FIRST_S = 45.0  # of a job, in which its pages ask most often
OPENED_WITHIN_S = 5.0
Request = tuple[float, str, dict[str, str]]
"""When, what, and the headers that matter."""
PARTS = ["paint", "delay", "cpu", "long", "heap"]
PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def row(what: str, figure: str, goal: str = "") -> None:
    print(f"| {what} | {figure} | {goal} |", flush=True)


def submit(folder: Path, source: str, *args: object) -> Job:
    script = folder / f"job{abs(hash(source))}.py"
    script.write_text(source)
    job = Job(script=script, args=list(map(str, args)), instance_type=INSTANCE_TYPE, grace_s=1)
    job.submit()
    next(iter(job.log_lines(stream="stdout")))
    return job


def opened(browser: Any, server: local_server.Running, job: Job) -> Any:
    """The page of this job, in a context of its own."""
    tab = browser.new_context(viewport={"width": 600, "height": 400}).new_page()
    tab.set_default_timeout(300_000)
    url, token = server.endpoint[:2]
    headers = {"Authorization": f"Bearer {token}"}
    link = requests.post(url + paths.LOGIN_LINKS, headers=headers, timeout=10).json()
    tab.goto(f"{url}/{link['path']}&job={job.job_name}")
    tab.wait_for_url("**/jobs/*")
    tab.locator(".log-box .row").first.wait_for()
    return tab


@contextlib.contextmanager
def followers(server: local_server.Running, name: str, count: int) -> Iterator[None]:
    url, token = server.endpoint[:2]
    address = urlsplit(url)
    asked = (
        f"GET {paths.job(name, 'logs')}?follow=true&tail=1000 HTTP/1.1\r\nHost: "
        f"x\r\nAuthorization: Bearer {token}\r\n"
    )
    asked += f"Accept: {paths.LOG_FRAMES}\r\n\r\n"

    def drain(stream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while stream.recv(65536):
                pass

    streams = [
        socket.create_connection((address.hostname or "", address.port or 80)) for _ in range(count)
    ]
    for stream in streams:
        stream.sendall(asked.encode())
        threading.Thread(target=drain, args=(stream,), daemon=True).start()
    yield
    for stream in streams:
        stream.shutdown(socket.SHUT_RDWR)
        stream.close()


def paints(browser: Any, server: local_server.Running, job: Job) -> None:
    tab = opened(browser, server, job)
    times = []
    for _ in range(10):
        tab.reload()
        tab.locator(".log-box .row").first.wait_for()
        times.append(tab.evaluate(PAINT))
    row("first paint, median of 10", f"{statistics.median(times) / 1000:.2f} s", "0.3 s")
    tab.context.close()


def delays(browser: Any, server: local_server.Running, job: Job, seconds: float) -> None:
    tab = opened(browser, server, job)
    time.sleep(2)
    tab.evaluate(WATCH)
    time.sleep(seconds)
    # the first are the rows that were there
    found = sorted(tab.evaluate("window.delays.slice(100)"))
    p50, p95 = (found[int(len(found) * part)] for part in (0.5, 0.95))
    row(
        f"a line on the screen, 100 lines/s, p50 and p95 of {len(found)}",
        f"{p50:.0f} ms, {p95:.0f} ms",
        "100 ms (p95)",
    )
    tab.context.close()


def recorded(
    browser: Any, server: local_server.Running, job: Job, seconds: float
) -> tuple[str, list[Request]]:
    """The cookie of a page, and the requests to the API and for itself that it makes so
    long after it was opened.
    """
    found: list[Request] = []
    tab = opened(browser, server, job)
    begin = time.monotonic()
    kept = ("accept", "cache-control")
    tab.on("request", lambda made: found.append((time.monotonic() - begin, made.url, made.headers)))
    tab.reload()
    tab.wait_for_timeout(1000 * seconds)
    (cookie,) = tab.context.cookies()
    tab.context.close()
    wanted = [
        (at, url, {name: value for name, value in headers.items() if name in kept})
        for at, url, headers in found
    ]
    return f"{cookie['name']}={cookie['value']}", [
        each for each in wanted if "/static/" not in each[1]
    ]


@contextlib.contextmanager
def replayed(cookie: str, wanted: list[Request], count: int) -> Iterator[None]:
    """So many pages make these requests. They are opened one after another."""
    ended = threading.Event()
    refused: list[str] = []

    def ask(url: str, headers: dict[str, str]) -> None:
        with (
            contextlib.suppress(requests.RequestException),
            requests.get(
                url, headers={**headers, "Cookie": cookie}, stream=True, timeout=60
            ) as answer,
        ):
            if not answer.ok:
                refused.append(f"{answer.status_code} {url}")
            while not ended.is_set() and answer.raw.read1(65536):
                pass

    def page(delay: float) -> None:
        begin = time.monotonic() + delay
        for at, url, headers in wanted:
            if ended.wait(max(0.0, begin + at - time.monotonic())):
                return
            threading.Thread(target=ask, args=(url, headers), daemon=True).start()

    for n in range(count):
        threading.Thread(target=page, args=(n / count * OPENED_WITHIN_S,), daemon=True).start()
    time.sleep(OPENED_WITHIN_S)
    yield
    ended.set()
    time.sleep(1)
    if refused:
        raise SystemExit(f"the server refused {len(refused)} requests: {refused[0]}")


def server_cpu(
    browser: Any, server: local_server.Running, folder: Path, rate: float, count: int
) -> None:
    """In the first minute of a job. A machine that can't draw tens of live pages would slow their
    requests down, so one page is recorded in Chromium, and its requests are made as often as pages
    are wanted."""

    def used() -> float:
        before = cpu_s(server.pid)
        time.sleep(FIRST_S - OPENED_WITHIN_S)
        return (cpu_s(server.pid) - before) / (FIRST_S - OPENED_WITHIN_S)

    job = submit(folder, PRINTS, rate, 10_000_000)
    cookie, wanted = recorded(browser, server, job, FIRST_S)
    job.kill()
    figures: dict[str, list[float]] = {"nobody": [], "followers": [], "pages": []}
    for _ in range(2):  # in turns, as the load of the machine changes
        for who in figures:
            fresh = submit(folder, PRINTS, rate, 10_000_000)
            name, other = job.job_name or "", fresh.job_name or ""
            asked = [(at, url.replace(name, other), headers) for at, url, headers in wanted]
            readers: dict[str, contextlib.AbstractContextManager[None]] = {
                "nobody": contextlib.nullcontext(),
                "followers": followers(server, other, count),
                "pages": replayed(cookie, asked, count),
            }
            with readers[who]:
                figures[who].append(used())
            fresh.kill()
    nobody, following, paged = (statistics.mean(each) for each in figures.values())
    load = os.getloadavg()[0]
    figure = (
        f"{1000 * nobody:.0f}, {1000 * following:.0f}, {1000 * paged:.0f} ms/s; "
        f"{paged / following:.2f} times"
    )
    row(
        f"CPU of the server: nobody, {count} followers, {count} pages; load average {load:.0f}",
        figure,
        "1.2 times",
    )
    row(f"requests of a page in {FIRST_S:.0f} s", str(len(wanted)))


def long_log(browser: Any, server: local_server.Running, folder: Path, lines: int) -> None:
    job = submit(folder, LONG, lines)
    job.wait()
    tab = opened(browser, server, job)
    times = []
    for _ in range(5):
        begin = time.monotonic()
        tab.reload()
        tab.locator(".row", has_text="the last line").wait_for()
        times.append(time.monotonic() - begin)
    row(f"a log of {lines} lines opens, median of 5", f"{statistics.median(times):.2f} s", "1 s")
    box = tab.locator(".log-box")
    begin, pages = time.monotonic(), 10
    for _ in range(pages):
        height = box.evaluate(
            "box => { const was = box.scrollHeight; box.scrollTop = 0; return was; }"
        )
        tab.wait_for_function(
            "was => document.querySelector('.log-box').scrollHeight > was", arg=height
        )
    row("1000 older lines, when scrolled to", f"{1000 * (time.monotonic() - begin) / pages:.0f} ms")
    tab.context.close()


def heap(
    browser: Any, server: local_server.Running, folder: Path, minutes: list[float], rate: int
) -> None:
    job = submit(folder, PRINTS, rate, 10_000_000)
    tab = opened(browser, server, job)
    session = tab.context.new_cdp_session(tab)

    def size() -> float:
        session.send("HeapProfiler.collectGarbage")
        return float(session.send("Runtime.getHeapUsage")["usedSize"])

    begin, sizes = time.monotonic(), []
    for minute in minutes:
        time.sleep(max(0.0, begin + 60 * minute - time.monotonic()))
        sizes.append(size())
    early, late = sizes
    job.kill()
    grown = 100 * (late / early - 1)
    figure = f"{early / 2**20:.1f} to {late / 2**20:.1f} MiB: {grown:+.0f} %"
    row(
        f"JS heap between minutes {minutes[0]:g} and {minutes[1]:g}, {rate} lines/s",
        figure,
        "+10 %",
    )
    tab.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20, help="of the measurement of delays")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument(
        "--rate", type=float, default=100, help="lines/s of the job for delays and CPU"
    )
    parser.add_argument("--heap-minutes", type=float, nargs=2, default=[0.5, 3.0])
    parser.add_argument("--heap-rate", type=int, default=1000, help="lines/s")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    print("| | figure | goal |\n|---|---|---|")
    files = [path for path in STATIC.rglob("*") if path.suffix in {".js", ".css", ".svg"}]
    size = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files)
    row("all assets of the pages, gzipped", f"{size / 1024:.1f} KB", "80 KB")
    with own_server() as folder, sync_playwright() as driver:
        server = local_server.find_or_start()
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        job = submit(folder, PRINTS, options.rate, 10_000_000)
        if "paint" in options.only:
            paints(browser, server, job)
        if "delay" in options.only:
            delays(browser, server, job, options.seconds)
        if "cpu" in options.only:
            server_cpu(browser, server, folder, options.rate, options.pages)
        job.kill()
        if "long" in options.only:
            long_log(browser, server, folder, options.lines)
        if "heap" in options.only:
            heap(browser, server, folder, options.heap_minutes, options.heap_rate)
        browser.close()


if __name__ == "__main__":
    main()
