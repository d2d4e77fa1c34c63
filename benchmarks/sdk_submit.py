"""One submit of the SDK beside a GET of `requests.Session` from a bare ASGI app, in turns within one process.

    python benchmarks/sdk_submit.py [-n SUBMITS]

The submit is all of it: a script in place with its proof, this process's environment, the durable commit. The goal is
a p50 of at most 4 times the GET's. One long job holds the only place, so that the others wait and nothing else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import requests
from own_server import INSTANCE_TYPE, own_server

from client_lib import Job
from tests.processes import free_port

GOAL = 4.0
_APP = """
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"{}"})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--submits", type=int, default=300)
    count = parser.parse_args().submits
    os.environ["CLIENT_LIB_SERVER_MAX_CPU_JOBS"] = "1"
    with own_server() as folder, _bare_app(folder) as url, requests.Session() as session:
        script = folder / "train.py"
        script.write_text("print('hello')\n")
        holder = Job(script="sleep 600", type="binary", instance_type=INSTANCE_TYPE)
        holder.submit()

        def submit() -> None:
            Job(script=script, args=["--epochs", "3"], instance_type=INSTANCE_TYPE).submit()

        ways = {"GET": lambda: session.get(url), "Job.submit": submit}
        samples: dict[str, list[float]] = {name: [] for name in ways}
        for counted in [False] * 20 + [True] * count:
            for name, way in ways.items():
                took = _took(way)
                if counted:
                    samples[name].append(took)
        holder.kill()
    _report(samples)


def _took(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def _report(samples: dict[str, list[float]]) -> None:
    medians = {name: statistics.median(values) for name, values in samples.items()}
    print("| call | p50 ms | p99 ms |\n|---|---|---|")
    for name, values in samples.items():
        print(f"| {name} | {medians[name] * 1e3:.2f} | {statistics.quantiles(values, n=100)[98] * 1e3:.2f} |")
    print(f"\nsubmit to GET: {medians['Job.submit'] / medians['GET']:.2f} (goal {GOAL:g})")


@contextlib.contextmanager
def _bare_app(folder: Path) -> Iterator[str]:
    """Its URL; it runs in a process of its own, on uvicorn as our server does."""
    (folder / "bare_app.py").write_text(_APP)
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "bare_app:app", "--port", str(port), "--log-level", "error"]
    process = subprocess.Popen([*command, "--no-access-log"], cwd=folder)
    try:
        _wait_until_it_listens(port)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait()


def _wait_until_it_listens(port: int) -> None:
    for _ in range(1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("the bare app did not start")


if __name__ == "__main__":
    main()
