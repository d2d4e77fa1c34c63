"""Wait of a second user, and memory of the server, while one user sends the largest bodies from 8
connections at once.

    python benchmarks/hostile_load.py [--at-once 8]

The server is a process of its own. The second user asks for /readyz, a list and the log of a job
all the time; the figure is the longest wait for one answer. Memory is what the server and its child
processes have more than before (VmRSS, from /proc, so on Linux only): at the most, and 3 s later.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import requests
from own_server import INSTANCE_TYPE, own_server

from client_lib import Job
from client_lib.spec import paths
from client_lib.spec.request import GroupRequest, SubmitRequest
from client_lib.transport import local_server

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kit.hostile_sizes import Operation, requests_for, valid_bodies

SETTLED_S = 3.0


class Server:
    """The server, as its users and the kernel see it."""

    def __init__(self, url: str, token: str, pid: int, job: str) -> None:
        self.url = url
        self.headers = {"Authorization": f"Bearer {token}"}
        self.pid = pid
        self.asked = (paths.READYZ, paths.JOBS, paths.job(job, "logs"))

    def memory_mib(self) -> float:
        """Resident memory of the server and its children that are not launchers of jobs."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(_resident_mib, [str(self.pid), *children]))


def _resident_mib(pid: str) -> float:
    with suppress(OSError, IndexError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024
    return 0.0


class SecondUser:
    """Asks all the time, and measures."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ended = threading.Event()
        self.longest_s = 0.0
        self.most_mib = 0.0
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> SecondUser:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _ask(self) -> None:
        with requests.Session() as session:
            while not self._ended.wait(0.01):
                for path in self._server.asked:
                    began = time.monotonic()
                    url = self._server.url + path
                    session.get(url, headers=self._server.headers, timeout=60).raise_for_status()
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
                self.most_mib = max(self.most_mib, self._server.memory_mib())


def measure(server: Server, what: str, path: str, body: bytes, at_once: int) -> None:
    def send(_: int) -> str:
        try:
            answer = requests.post(
                server.url + path, data=body, headers=server.headers, timeout=120
            )
        except requests.ConnectionError:
            return "closed"
        return str(answer.status_code)

    before = server.memory_mib()
    began = time.monotonic()
    with SecondUser(server) as second, ThreadPoolExecutor(at_once) as pool:
        answers = Counter(pool.map(send, range(at_once)))
    took = time.monotonic() - began
    time.sleep(SETTLED_S)
    after = server.memory_mib()
    print(
        f"| {what} | {len(body) / 1e6:.1f} | {second.longest_s:.2f} "
        f"| {second.most_mib - before:.0f} | {after - before:.0f} | {took:.1f} | {dict(answers)} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--at-once", type=int, default=8, help="connections (8)")
    at_once = parser.parse_args().at_once
    print("| body | MB | longest wait, s | MiB more | 3 s later | took, s | answers |")
    print("|---|---|---|---|---|---|---|")
    with own_server():
        job = Job(script="echo hello", type="binary", instance_type=INSTANCE_TYPE)
        job.submit()
        job.wait()
        running = local_server.find_or_start()
        url, token = running.endpoint[:2]
        server = Server(url, str(token), running.pid, job.job_name or "")
        for model, path in ((SubmitRequest, paths.JOBS), (GroupRequest, paths.GROUPS)):
            for what, body in valid_bodies(model):
                measure(server, what, path, json.dumps(body).encode(), at_once)
        # a value with a hostile size as the whole body, and in each field
        for sent in requests_for(Operation("POST", paths.JOBS)):
            if sent.body:
                measure(server, sent.what, sent.path, sent.body, at_once)


if __name__ == "__main__":
    main()
