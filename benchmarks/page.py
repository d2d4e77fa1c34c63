"""The page of a job in Chromium: size, first paint, delay of a line, CPU of the server, a long log, and the JS heap.

    python benchmarks/page.py [--only cpu ...] [--pages 10] [--rate 100] [--seconds 20] [--lines 1000000]
                              [--heap-minutes 0.5 3] [--heap-rate 1000]

A real local server and real jobs; Debian's Chromium, and playwright of requirements/dev.txt. The delay is from the time
that the rank printed to the frame of the screen after the row was in the document. Each of the pages has a browser
context of its own, as a browser has six connections to a server. The followers are raw sockets that read frames, as
`client-lib logs -f` does. For the heap a job prints 1000 lines/s: a minute is ten of a job that prints 100 lines/s,
for which `--only heap --heap-minutes 5 30 --heap-rate 100` measures it.
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
    sys.stdout.write("".join(f"step {n} loss={1000 / (n + 1):.5f}\\n" for n in range(begin, begin + 1000)))
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


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def opened(browser: Any, server: local_server.Running, job: Job) -> Any:
    """The page of this job, in a context of its own."""
    tab = browser.new_context(viewport={"width": 600, "height": 400}).new_page()
    tab.set_default_timeout(300_000)  # tens of pages at once may keep all cores busy
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
        f"GET {paths.job(name, 'logs')}?follow=true&tail=1000 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    )
    asked += f"Accept: {paths.LOG_FRAMES}\r\n\r\n"

    def drain(stream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while stream.recv(65536):
                pass

    streams = [socket.create_connection((address.hostname or "", address.port or 80)) for _ in range(count)]
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
    found = sorted(tab.evaluate("window.delays.slice(100)"))  # the first are the rows that were there
    p50, p95 = (found[int(len(found) * part)] for part in (0.5, 0.95))
    row(
        f"a line on the screen, 100 lines/s, p50 and p95 of {len(found)}", f"{p50:.0f} ms, {p95:.0f} ms", "100 ms (p95)"
    )
    tab.context.close()


def server_cpu(browser: Any, server: local_server.Running, job: Job, count: int, seconds: float) -> None:
    def used() -> float:
        time.sleep(3)
        before = cpu_s(server.pid)
        time.sleep(seconds)
        return (cpu_s(server.pid) - before) / seconds

    alone = used()
    with followers(server, job.job_name or "", count):
        following = used()
    tabs = [opened(browser, server, job) for _ in range(count)]
    paged = used()
    for tab in tabs:
        tab.context.close()
    figure = f"{1000 * alone:.0f}, {1000 * following:.0f}, {1000 * paged:.0f} ms/s; {paged / following:.1f} times"
    row(f"CPU of the server: nobody, {count} followers, {count} pages", figure, "1.2 times")


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
        height = box.evaluate("box => { const was = box.scrollHeight; box.scrollTop = 0; return was; }")
        tab.wait_for_function("was => document.querySelector('.log-box').scrollHeight > was", arg=height)
    row("1000 older lines, when scrolled to", f"{1000 * (time.monotonic() - begin) / pages:.0f} ms")
    tab.context.close()


def heap(browser: Any, server: local_server.Running, folder: Path, minutes: list[float], rate: int) -> None:
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
    row(f"JS heap between minutes {minutes[0]:g} and {minutes[1]:g}, {rate} lines/s", figure, "+10 %")
    tab.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement of delays and CPU")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=100, help="lines/s of the job for delays and CPU")
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
            server_cpu(browser, server, job, options.pages, options.seconds)
        job.kill()
        if "long" in options.only:
            long_log(browser, server, folder, options.lines)
        if "heap" in options.only:
            heap(browser, server, folder, options.heap_minutes, options.heap_rate)
        browser.close()


if __name__ == "__main__":
    main()
