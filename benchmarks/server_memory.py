"""Memory of the local server: idle, and with 1000 finished and 20 running jobs and 100 followers of
one of those.

    python benchmarks/server_memory.py [--finished 1000] [--running 20] [--followers 100]

Resident (VmRSS) and private memory (what is freed when it ends: Private_Clean and Private_Dirty) of
the server process alone, from /proc, so on Linux only; workers are processes of their own. The
followers are raw sockets of this process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from own_server import INSTANCE_TYPE, own_server
from proc import memory_of

from client_lib import Job, State, list_jobs
from client_lib.spec import paths
from client_lib.transport import local_server

PRINTS = "import time\nwhile True:\n    print('x' * 100, flush=True)\n    time.sleep(0.5)\n"
SETTLED_S = 3.0  # after which caches and group commits are where they stay


def finished_jobs(count: int) -> None:
    def one(_: int) -> None:
        job = Job(script="true", type="binary", instance_type=INSTANCE_TYPE)
        job.submit()
        job.wait()

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(one, range(count)))


def running_jobs(folder: Path, count: int) -> list[Job]:
    (folder / "prints.py").write_text(PRINTS)
    jobs = [
        Job(script=folder / "prints.py", instance_type=INSTANCE_TYPE, grace_s=1)
        for _ in range(count)
    ]
    for job in jobs:
        job.submit()
    for job in jobs:
        next(iter(job.log_lines(stream="stdout")))
    return jobs


@contextlib.contextmanager
def followers(server: local_server.Running, name: str, count: int) -> Iterator[None]:
    """So many open streams; each has had its first bytes."""
    url, token = server.endpoint[:2]
    address = urlsplit(url)
    asked = (
        f"GET {paths.job(name, 'logs')}?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        f"{token}\r\n\r\n"
    )
    with contextlib.ExitStack() as open_sockets:
        for _ in range(count):
            stream = open_sockets.enter_context(
                socket.create_connection((address.hostname or "", address.port or 80))
            )
            stream.sendall(asked.encode())
            assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        yield


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--finished", type=int, default=1000)
    parser.add_argument("--running", type=int, default=20)
    parser.add_argument("--followers", type=int, default=100)
    options = parser.parse_args()
    os.environ["CLIENT_LIB_SERVER_MAX_CPU_JOBS"] = str(max(32, options.running))
    print("| local server | resident MB | private MB |\n|---|---|---|")

    def row(what: str) -> None:
        time.sleep(SETTLED_S)
        memory = memory_of(server.pid)
        print(f"| {what} | {memory.resident:.0f} | {memory.private:.0f} |", flush=True)

    with own_server() as folder:
        server = local_server.find_or_start()
        row("idle, after one job")
        finished_jobs(options.finished)
        row(f"{options.finished} finished jobs")
        jobs = running_jobs(folder, options.running)
        row(f"and {options.running} running")
        with followers(server, jobs[0].job_name or "", options.followers):
            row(f"and {options.followers} followers")
        for job in jobs:
            job.kill()
        while any(list_jobs(State.RUNNING)):
            time.sleep(0.1)


if __name__ == "__main__":
    main()
