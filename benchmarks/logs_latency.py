"""From a rank's write to the line in the hands of an SDK user, beside ever more followers.

    python benchmarks/logs_latency.py [--seconds 10] [--rate 20] [--torchx ENVIRONMENT]

A rank under a real worker launcher prints the time, line by line; 10 SDK followers (1 where there
is only one) are timed, in a process of their own; the rest are raw sockets of another process,
which reads and forgets.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import own_launcher
from logs_catchup import open_stream, torchx

from client_lib.launcher_protocol.directory import Directory
from client_lib.log_reading.reader import log_lines, log_params
from client_lib.spec import paths
from client_lib.spec.paths import LOG_FRAMES
from client_lib.worker.programs import launcher_command
from server_stub.files.job_dirs import log_dir
from tests.kit.waiting import until
from tests.logs.log_server import NAME, write_job
from tests.logs.support import ServerProcess

TIMED = 10
RANK = """
import time
begin = time.monotonic()
for number in range({lines}):
    time.sleep(max(0.0, begin + number / {rate} - time.monotonic()))
    print(time.monotonic_ns(), flush=True)
"""


def raw_followers(port: int, count: int) -> None:
    """Follow with `count` sockets until the last one ends."""
    selector = selectors.DefaultSelector()
    request = (
        f"GET {paths.job(NAME, 'logs')}?follow=true HTTP/1.1\r\nHost: x\r\nAccept: "
        f"{LOG_FRAMES}\r\n\r\n"
    ).encode()
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(request)
        selector.register(connection, selectors.EVENT_READ)
    left = count
    while left:
        for key, _ in selector.select():
            data = key.fileobj.recv(64 * 1024)
            if not data or b"@end " in data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                left -= 1


def timed_followers(port: int, count: int) -> None:
    """Print the delays in ms that `count` SDK followers saw, as JSON."""
    delays: list[list[float]] = [[] for _ in range(count)]

    def follow(mine: list[float]) -> None:
        for line in log_lines(open_stream(port), log_params(follow=True)):
            if line.isdigit():  # the launcher has words of its own
                mine.append((time.monotonic_ns() - int(line)) / 1e6)

    threads = [threading.Thread(target=follow, args=(mine,)) for mine in delays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([delay for mine in delays for delay in mine]))


def measure(followers: int, rate: float, seconds: float) -> list[float]:
    timed = min(followers, TIMED)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_job(folder)
        launcher = prepare(log_dir(folder, 1, 0).parent, rate, seconds)
        running = subprocess.Popen(launcher_command(launcher.path))
        server = ServerProcess(folder)
        server.start()
        raw = helper("raw", server.port, followers - timed)
        sdk = helper("timed", server.port, timed)
        try:
            until(lambda: count_followers(server.port) == followers)
            time.sleep(0.5)
            connection = own_launcher.let_start(launcher)
            own_launcher.until_ended(launcher, connection)
            connection.close()
            write_job(folder, state="SUCCEEDED", reason="Completed")
            output = sdk.communicate(timeout=60)[0]
            raw.wait(timeout=60)
        finally:
            for process in (raw, sdk, running):
                process.kill()
            server.kill()
    delays = json.loads(output)
    assert len(delays) == timed * int(rate * seconds), "a line was lost or repeated"
    return delays


def prepare(worker_dir: Path, rate: float, seconds: float) -> Directory:
    """The directory of a launcher of one rank that prints the time."""
    script = worker_dir.parent / "rank.py"
    worker_dir.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(RANK.format(rate=rate, lines=int(rate * seconds)))
    plan = own_launcher.plan_of(worker_dir.parent, [str(script)], ranks=1, job=NAME)
    return own_launcher.prepared(worker_dir, plan)


def helper(what: str, port: int, count: int) -> subprocess.Popen[str]:
    script = [sys.executable, __file__, "--be", what, str(port), str(count)]
    return subprocess.Popen(script, stdout=subprocess.PIPE, text=True)


def count_followers(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /followers HTTP/1.0\r\n\r\n")
        return int(connection.makefile("rb").read().rpartition(b"\r\n")[2])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=20, help="lines/s")
    parser.add_argument("--followers", type=int, nargs="+", default=[1, 100, 500])
    parser.add_argument("--torchx", type=Path, help="virtual environment with torchx")
    parser.add_argument("--be", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        what, port, count = options.be
        {"raw": raw_followers, "timed": timed_followers}[what](int(port), int(count))
        return
    print(f"{options.rate:g} lines/s for {options.seconds:g} s; delays in ms")
    for followers in options.followers:
        show(f"{followers} followers", measure(followers, options.rate, options.seconds))
    if options.torchx:
        output = torchx(options.torchx, "latency", int(options.rate * options.seconds))
        show("TorchX local_cwd, 1 follower", json.loads(output.splitlines()[-1]))
    else:
        print("TorchX was not timed: give --torchx ENVIRONMENT")


def show(name: str, delays: list[float]) -> None:
    percentiles = statistics.quantiles(delays, n=100)
    print(
        f"{name:32} p50 {percentiles[49]:7.2f}   p99 {percentiles[98]:7.2f}   max "
        f"{max(delays):7.2f}"
    )


if __name__ == "__main__":
    main()
