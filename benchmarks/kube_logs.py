"""Lines per second from pods that print as fast as they can: followed through our server, and by
`pods/log` of the API.

    python benchmarks/kube_logs.py [--rounds 3] [--lines 400000] [--pods 1 20] [--name CLUSTER]
    python benchmarks/kube_logs.py --restart 20 --for 90 --kind trainjob     # ours alone

A real kubelet; lines of 100 bytes, the same number in all from one pod and from 20 at once, ways
interleaved. A rate is the lines that came over the time from the first print to the arrival of the
last. What did not come is lost: the kubelet rotates a container's log at 10 MiB, and a follower is
not told. `--restart`: the server ends by SIGTERM and starts again every so many seconds, while pods
print for `--for` seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

from kube_place import KINDS, Place, becomes, own_cluster, own_place

from client_lib import Job
from server_stub.runtimes.kube.api import Api, ApiError, Stream, connect
from tests.contract.places import ended

MANY = 20
ONE_POD = {"name": "one", "cpu": 0.9, "memory_gib": 1}
MANY_PODS = {"name": "many", "cpu": 0.09, "memory_gib": 0.5}
PRINT = """
import os, time
line = b"%03d %08d " + b"x" * 86 + b"\\n"
rank = int(os.environ["RANK"])
time.sleep(max(0.0, AT - time.time()))
os.write(1, b"begun %.6f\\n" % time.time())
for first in range(0, LINES, 500):
    block = b"".join(line % (rank, number) for number in range(first, first + 500))
    while block:
        block = block[os.write(1, block):]
    time.sleep(PAUSE)
time.sleep(STAY)
"""
"""AT: when pods by hand begin, which nothing holds back until all are there. STAY: of the master by
hand, at whose end the operator deletes what still prints. PAUSE: after each block."""
STARTS_S = {1: 8.0, MANY: 50.0}
QUIET_S = 12.0
Run = tuple[float, int]
"""Lines per second, and lines that are lost."""


class Came:
    """What has come of all pods."""

    def __init__(self) -> None:
        self.begun_at = float("inf")
        self.last_at = 0.0
        self.numbers: set[str] = set()

    def line(self, text: str) -> None:
        if text.startswith("begun"):
            self.begun_at = min(self.begun_at, float(text.split()[1]))
        elif len(text) == 99 and text[-1] == "x":
            self.numbers.add(text[:12])

    def run(self, wanted: int) -> Run:
        return len(self.numbers) / (self.last_at - self.begun_at), wanted - len(self.numbers)


def job_of(place: Place, pods: int, lines: int, for_s: float = 0) -> Job:
    size = ONE_POD if pods == 1 else MANY_PODS
    each, pause_s = lines // pods, for_s * 500 * pods / lines
    return place.job(
        f"LINES, AT, STAY, PAUSE = {each}, 0, 0, {pause_s}{PRINT}",
        n_workers=pods,
        instance_type=size["name"],
    )


def ours(place: Place, pods: int, lines: int, restart_s: float = 0, for_s: float = 0) -> Run:
    came, job = Came(), job_of(place, pods, lines, for_s)
    job.submit()
    with restarting(place, restart_s):
        for text in job.log_lines(stream="stdout"):
            came.line(text)
            came.last_at = time.time()
        info = ended(job).info()
    place.until_gone()
    if info.state != "SUCCEEDED":
        raise RuntimeError(info.message)
    return came.run(lines)


@contextlib.contextmanager
def restarting(place: Place, every_s: float) -> Iterator[None]:
    """End the server politely and start it again, every so often; 0: never."""
    over, restarts = threading.Event(), 0

    def restart() -> None:
        nonlocal restarts
        while every_s and not over.wait(every_s):
            place.restart(signal.SIGTERM)
            restarts += 1

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if every_s:
            print(f"{restarts} restarts", file=sys.stderr, flush=True)


def by_raw_api(place: Place, pods: int, lines: int) -> Run:
    name, begins = f"raw-{time.time_ns()}", time.time() + STARTS_S[pods]
    command = [
        "python3",
        "-c",
        f"LINES, AT, STAY, PAUSE = {lines // pods}, {begins}, 100, 0{PRINT}",
    ]
    place.cluster.api.create(place.jobs, place.by_hand(job_of(place, pods, lines), name, command))
    api = connect(place.cluster.kubeconfig, None)
    names = [f"{name}-master-0", *(f"{name}-worker-{number}" for number in range(pods - 1))]
    pieces: list[list[bytes]] = [[] for _ in names]
    last_at = [begins for _ in names]

    def follow(number: int) -> None:
        path = f"/api/v1/namespaces/{place.namespace}/pods/{names[number]}/log"
        for line in _opened(api, path):
            pieces[number].append(line)
            last_at[number] = time.time()

    for number in range(pods):
        threading.Thread(target=follow, args=(number,), daemon=True).start()

    def came_all() -> bool:
        return sum(map(len, pieces)) >= lines + pods or time.time() - max(last_at) > QUIET_S

    becomes(came_all, f"the logs of {name}", limit_s=300)
    place.delete_by_hand(name)
    came = Came()
    came.last_at = max(last_at)
    for line in [line for mine in pieces for line in mine]:
        came.line(line.decode())
    return came.run(lines)


def _opened(api: Api, path: str) -> Stream:
    """Follows a container's log as soon as there is one."""
    found: list[Stream] = []

    def opens() -> bool:
        try:
            found.append(api.stream(path, {"follow": "true", "container": "pytorch"}, 60))
        except ApiError:  # the pod is not made yet, or its container waits
            return False
        return True

    becomes(opens, f"a log at {path}", pause_s=0.05)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--lines", type=int, default=400_000, help="of all pods; a multiple of 10000"
    )
    parser.add_argument("--pods", type=int, nargs="+", default=[1, MANY])
    parser.add_argument("--name", default="bench", help="of the cluster")
    parser.add_argument("--kind", choices=KINDS, default="pytorchjob")
    parser.add_argument("--restart", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--for", type=float, default=0, metavar="SECONDS", dest="for_s")
    options = parser.parse_args()
    compared = options.kind == "pytorchjob" and not options.for_s
    with (
        own_cluster(options.name, "node", *KINDS[options.kind]) as cluster,
        own_place(cluster, ONE_POD, MANY_PODS, kind=options.kind) as place,
    ):
        print("| way | lines/s | lost |\n|---|---|---|", flush=True)
        for pods in options.pods:
            ways: dict[str, Callable[[], Run]] = {
                "ours": partial(ours, place, pods, options.lines, options.restart, options.for_s),
                **(
                    {"`pods/log`": partial(by_raw_api, place, pods, options.lines)}
                    if compared
                    else {}
                ),
            }
            runs: dict[str, list[Run]] = {way: [] for way in ways}
            for _ in range(options.rounds):
                for way, measure in ways.items():
                    runs[way].append(measure())
                    print(f"{way}, {pods} pods: {runs[way][-1]}", file=sys.stderr, flush=True)
            for way, found in runs.items():
                rate = statistics.median(rate for rate, _ in found)
                lost = ", ".join(
                    f"{lost / options.lines:.0%}" if lost else "0" for _, lost in found
                )
                print(f"| {way}, {pods} pods | {rate:,.0f} | {lost} |", flush=True)


if __name__ == "__main__":
    main()
