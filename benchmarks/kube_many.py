"""Many jobs at once on a cluster of fake nodes: through our server, beside creating their PyTorchJobs by hand.

    python benchmarks/kube_many.py [--jobs 1000] [--rounds 1] [--hold] [--name CLUSTER]

KWOK's 100 nodes; jobs of four pods, which end a second after all have begun. What runs in the pods is played by
`kube_workers.py`, for both ways: it ends the pods as a kubelet would, and speaks to our server as agents do. The
operator has 500 requests/s (1000 in a burst) and 8 threads. `--hold`: instead, all jobs run at once until the
server's memory is measured.

The time from the first submit (create) until the operator has (our server says of) all jobs that they succeeded; its
goal is 1.25 of by hand. `placed to STARTING`: from a bare watch's news that the last pod of a job has a node to our
state. `reported to SUCCEEDED`: from the last worker's report to our state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kube_place import Place, becomes, own_cluster, own_place
from server_memory import memory_mb

from client_lib import Job
from server_stub.runtimes.kube.api import connect

WORKERS = 4
NODES = 100
NODE = {"cpu": "64", "memory": "256Gi", "pods": "110"}
TYPE = {
    "name": "fake",
    "cpu": 1,
    "memory_gib": 1,
    "node_selector": {"type": "kwok"},
    "tolerations": [{"key": "kwok", "operator": "Exists"}],
    "annotations": {"cluster.test/fate": "hang"},
}
THREADS = 4
SAMPLES = 250  # jobs whose events are read
LIMIT_S = 900.0


class Played:
    """`kube_workers.py`, while it runs; `seen` is what it has printed, after its end."""

    def __init__(self, place: Place, *, ours: bool, hold: bool = False) -> None:
        self.seen: dict[str, Any] = {}
        options = {
            "kubeconfig": str(place.cluster.kubeconfig),
            "namespace": place.namespace,
            "server": place.url if ours else None,
            "key_file": str(place.key_file),
            "workers": WORKERS,
            "run_s": 1.0,
            "hold": hold,
        }
        script = Path(__file__).with_name("kube_workers.py")
        self._process = subprocess.Popen(
            [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(options) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError("kube_workers.py did not begin")

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.seen = json.loads(self._process.communicate(timeout=60)[0])
        for problem in self.seen["problems"][:5]:
            print(f"a fake worker: {problem}", file=sys.stderr)


@contextlib.contextmanager
def played(place: Place, *, ours: bool, hold: bool = False) -> Iterator[Played]:
    workers = Played(place, ours=ours, hold=hold)
    try:
        yield workers
    except BaseException:
        workers.kill()
        raise
    workers.end()


def job_of(place: Place, name: str | None = None) -> Job:
    return Job(
        script="true", type="binary", n_workers=WORKERS, name=name, instance_type=TYPE["name"], client=place.client
    )


def by_hand(place: Place, count: int) -> float:
    """Seconds. All are deleted afterwards, which doesn't count."""
    api = connect(place.cluster.kubeconfig, None)
    wanted = place.by_hand(job_of(place), "by-hand", None)
    before = _succeeded_by_operator(place)
    with played(place, ours=False):
        began = time.perf_counter()
        _at_once(
            count, lambda number: api.create(place.pytorch_jobs, wanted | {"metadata": {"name": f"by-hand-{number}"}})
        )
        becomes(lambda: _succeeded_by_operator(place) - before == count, f"{count} by hand", LIMIT_S, 0.5)
        took = time.perf_counter() - began
    api.request("DELETE", place.pytorch_jobs, {"propagationPolicy": "Background"})
    place.until_gone()
    return took


def _succeeded_by_operator(place: Place) -> int:
    url = f"http://{place.cluster.network.node_ip}:8080/metrics"
    text = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(int(float(n)) for n in re.findall(r"^training_operator_jobs_successful_total\{.*\} (\S+)$", text, re.M))


def _at_once(count: int, act: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(act, range(count)))


def ours(place: Place, count: int, series: str) -> dict[str, Any]:
    """Seconds until all have succeeded, and what it took."""
    cpu, requests, before = place.cpu_s(), place.requests(), _in_state(place, "SUCCEEDED")
    with played(place, ours=True) as workers:
        began = time.perf_counter()
        _at_once(count, lambda number: job_of(place, f"{series}-{number}").submit())
        becomes(lambda: _in_state(place, "SUCCEEDED") - before == count, f"{count} of ours", LIMIT_S, 0.5)
        took = time.perf_counter() - began
        cpu_until_success = place.cpu_s() - cpu
        place.until_gone()
    asked = place.requests() - requests
    return {
        "took": took,
        "cpu": cpu_until_success / count,
        "cpu with removal": (place.cpu_s() - cpu) / count,
        "requests": {what: times / count for what, times in asked.most_common()},
        "players": workers.seen["cpu_s"],
        **_delays(place, workers.seen, series, count),
    }


def _in_state(place: Place, state: str) -> int:
    asked = urllib.request.Request(f"{place.url}/metrics", headers={"Authorization": f"Bearer {place.token}"})
    text = urllib.request.urlopen(asked, timeout=10).read().decode()
    found = re.search(rf'^client_lib_jobs{{state="{state}"}} (\S+)$', text, re.M)
    return int(float(found.group(1))) if found else 0


def _delays(place: Place, seen: dict[str, Any], series: str, count: int) -> dict[str, list[float]]:
    """Milliseconds, of some of the jobs."""
    starting, succeeded = [], []
    for number in range(0, count, max(1, count // SAMPLES)):
        name = f"{series}-{number}"
        for event in place.client.get_job(name).events():
            at = event.time.timestamp()
            if event.reason == "Starting" and name in seen["placed_at"]:
                starting.append((at - seen["placed_at"].pop(name)) * 1e3)
            if event.state == "SUCCEEDED" and name in seen["reported_at"]:
                succeeded.append((at - seen["reported_at"][name]) * 1e3)
    return {"placed to STARTING": starting, "reported to SUCCEEDED": succeeded}


def held(place: Place, count: int) -> None:
    """All run at once: the server's memory."""
    print("| server | resident MB | private MB |\n|---|---|---|")

    def row(what: str) -> None:
        resident, private = memory_mb(place.pid)
        print(f"| {what} | {resident:.0f} | {private:.0f} |", flush=True)

    row("idle")
    before = _in_state(place, "SUCCEEDED")
    with played(place, ours=True, hold=True) as workers:
        began = time.perf_counter()
        _at_once(count, lambda number: job_of(place, f"held-{number}").submit())
        becomes(lambda: _in_state(place, "RUNNING") == count, f"{count} run", LIMIT_S, 0.5)
        print(f"all run after {time.perf_counter() - began:.1f} s", file=sys.stderr)
        cpu, since = place.cpu_s(), time.perf_counter()
        time.sleep(10)
        row(f"{count} running jobs of {WORKERS} pods")
        idle = (place.cpu_s() - cpu) / (time.perf_counter() - since)
        print(f"| its CPU while they run, of a core | {idle:.1%} | |", flush=True)
        workers.go_on()
        becomes(lambda: _in_state(place, "SUCCEEDED") - before == count, f"{count} end", LIMIT_S, 0.5)
        place.until_gone()
    row("all of them ended")


def show(jobs: int, hand: list[float], runs: list[dict[str, Any]]) -> None:
    mine = [run["took"] for run in runs]
    ratio = statistics.median(mine) / statistics.median(hand)
    print(f"\n{jobs} jobs of {WORKERS} pods, {len(runs)} rounds\n")
    print("| | |\n|---|---|")
    print(f"| by hand, s | {', '.join(f'{took:.1f}' for took in hand)} |")
    print(f"| ours, s | {', '.join(f'{took:.1f}' for took in mine)} |")
    print(f"| ours to by hand (goal 1.25) | {ratio:.2f} |")
    for what in ("cpu", "cpu with removal"):
        print(f"| server, {what}, s a job | {statistics.median(run[what] for run in runs):.4f} |")
    for what in ("placed to STARTING", "reported to SUCCEEDED"):
        delays = sorted(delay for run in runs for delay in run[what])
        if delays:
            p50, p99 = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
            print(f"| {what}, p50 / p99 ms of {len(delays)} | {p50:.0f} / {p99:.0f} |")
    asked = runs[-1]["requests"]
    print(f"| requests to the API server a job | {sum(asked.values()):.1f} |")
    for what, times in asked.items():
        print(f"| - {what} | {times:.2f} |")
    print(f"| CPU of the fake workers, s | {runs[-1]['players']:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hold", action="store_true", help="measure memory while all run")
    parser.add_argument("--name", default="bench-many", help="of the cluster")
    options = parser.parse_args()
    with (
        own_cluster(options.name, "kwok") as cluster,
        own_place(cluster, TYPE) as place,
    ):
        cluster.fake_nodes(NODES, NODE)
        if options.hold:
            held(place, options.jobs)
            return
        ours(place, 5, "first")  # files and caches are warm
        hand, runs = [], []
        for number in range(options.rounds):
            hand.append(by_hand(place, options.jobs))
            runs.append(ours(place, options.jobs, f"series{number}"))
        show(options.jobs, hand, runs)


if __name__ == "__main__":
    main()
