"""Many jobs at once on a cluster of fake nodes: through our server, beside creating the same
objects by hand.

    python benchmarks/kube_many.py [--kind trainjob] [--jobs 1000] [--rounds 1] [--hold] [--name
    CLUSTER]

KWOK's 100 nodes; jobs of four pods, which end a second after all have begun. What runs in the pods
is played by `kube_workers.py`, for both ways: it ends the pods as a kubelet would, and speaks to
our server as agents do. Each operator has 500 requests/s; the training operator has 8 threads, and
Kubeflow Trainer one, as its setting for more has no effect in 2.3.0. `--hold`: instead, all jobs
run at once until the server's memory is measured.

The time from the first submit (create) until the operator has (our server says of) all jobs that
they succeeded; its goal is 1.25 of by hand. `placed to STARTING`: from a bare watch's news that the
last pod of a job has a node until the server tells a follower. `reported to SUCCEEDED`: from the
last worker's report until it tells a follower.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kube_place import KINDS, Place, becomes, own_cluster, own_place
from proc import cpu_s, memory_of

from client_lib import Job
from server_stub.runtimes.kube.api import Api, ObjectWatch, connect

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
BACKGROUND = {"propagationPolicy": "Background"}
LIMIT_S = 1800.0
LOOK_S = 1.0
"""Between two looks at how many have succeeded: of ours each costs the server some milliseconds."""


class Played:
    """`kube_workers.py`, while it runs; `seen` is what it has printed, after its end."""

    def __init__(self, place: Place, *, ours: bool, hold: bool = False) -> None:
        self.seen: dict[str, Any] = {}
        options = {
            "kubeconfig": str(place.cluster.kubeconfig),
            "namespace": place.namespace,
            "kind": place.kind.name,
            "job_label": place.job_label,
            "server": place.url if ours else None,
            "key_file": str(place.key_file),
            "token": place.token,
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

    def end(self) -> None:
        try:
            self.seen = json.loads(self._process.communicate(timeout=60)[0])
        finally:
            self._process.kill()
        for problem in self.seen["problems"][:5]:
            print(f"a fake worker: {problem}", file=sys.stderr)


@contextlib.contextmanager
def played(place: Place, *, ours: bool, hold: bool = False) -> Iterator[Played]:
    workers = Played(place, ours=ours, hold=hold)
    try:
        yield workers
    finally:
        workers.end()


def job_of(place: Place, name: str | None = None) -> Job:
    return Job(
        script="true",
        type="binary",
        n_workers=WORKERS,
        name=name,
        instance_type=TYPE["name"],
        client=place.client,
    )


def by_hand(place: Place, count: int, *, removed: bool = False) -> dict[str, Any]:
    """Seconds. `removed`: each that has succeeded is deleted, as our
    server does it; else they stay.
    """
    api = connect(place.cluster.kubeconfig, None)
    wanted = json.dumps(place.by_hand(job_of(place), "by-hand-N", None))
    with played(place, ours=False), succeeded(place, api, removed) as names:
        began, machine = time.perf_counter(), machine_s()
        _at_once(
            count,
            lambda number: api.create(
                place.jobs, json.loads(wanted.replace("by-hand-N", f"by-hand-{number}"))
            ),
        )
        becomes(lambda: len(names) == count, f"{count} by hand", LIMIT_S, LOOK_S)
        took, machine = time.perf_counter() - began, machine_s() - machine
    return {"took": took, "machine": machine / count}


def machine_s() -> float:
    """CPU seconds that this machine has spent on anything."""
    user, nice, system, _idle, _wait, irq, soft_irq, *_ = map(
        int, Path("/proc/stat").read_text().split()[1:11]
    )
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def succeeded(place: Place, api: Api, removed: bool) -> Iterator[set[str]]:
    """The objects of which the operator says so, as a watch tells (its metrics
    count some of them twice).
    """
    names: set[str] = set()
    threads = ThreadPoolExecutor(THREADS + 1)  # one runs the loop of the watch

    def take(*listed: dict[str, Any]) -> None:
        for made in listed:
            conditions = made.get("status", {}).get("conditions") or []
            name, states = (
                made["metadata"]["name"],
                {each["type"] for each in conditions if each["status"] == "True"},
            )
            if name not in names and states & {"Succeeded", "Complete"}:
                names.add(name)
                if removed:
                    threads.submit(api.request, "DELETE", f"{place.jobs}/{name}", BACKGROUND)

    async def started() -> ObjectWatch[dict[str, Any]]:
        made = ObjectWatch(api, place.jobs, {}, dict, lambda listed: take(*listed), take, take)
        made.start()
        return made

    loop = asyncio.new_event_loop()
    threads.submit(loop.run_forever)
    watch = asyncio.run_coroutine_threadsafe(started(), loop).result()
    try:
        yield names
    finally:
        watch.stop()
        loop.call_soon_threadsafe(loop.stop)
        threads.shutdown()


def _at_once(count: int, act: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(act, range(count)))


def ours(place: Place, count: int, series: str) -> dict[str, Any]:
    """Seconds until all have succeeded, and what it took."""
    cpu, requests, before = cpu_s(place.pid), place.requests(), _in_state(place, "SUCCEEDED")
    with played(place, ours=True) as workers:
        began, machine = time.perf_counter(), machine_s()
        _at_once(count, lambda number: job_of(place, f"{series}-{number}").submit())
        becomes(
            lambda: _in_state(place, "SUCCEEDED") - before == count,
            f"{count} of ours",
            LIMIT_S,
            LOOK_S,
        )
        took, machine = time.perf_counter() - began, machine_s() - machine
        cpu_until_success = cpu_s(place.pid) - cpu
        place.until_gone()
    asked = place.requests() - requests
    return {
        "took": took,
        "machine": machine / count,
        "cpu": cpu_until_success / count,
        "cpu with removal": (cpu_s(place.pid) - cpu) / count,
        "requests": {what: times / count for what, times in asked.most_common()},
        "players": workers.seen["cpu_s"],
        **_delays(workers.seen),
    }


def _in_state(place: Place, state: str) -> int:
    asked = urllib.request.Request(
        f"{place.url}/metrics", headers={"Authorization": f"Bearer {place.token}"}
    )
    text = urllib.request.urlopen(asked, timeout=10).read().decode()
    found = re.search(rf'^client_lib_jobs{{state="{state}"}} (\S+)$', text, re.M)
    return int(float(found.group(1))) if found else 0


def _delays(seen: dict[str, Any]) -> dict[str, list[float]]:
    """Milliseconds, of the jobs that were followed."""
    told = seen["told_at"]
    starting = [(at["STARTING"] - seen["placed_at"][name]) * 1e3 for name, at in told.items()]
    succeeded = [(at["SUCCEEDED"] - seen["reported_at"][name]) * 1e3 for name, at in told.items()]
    return {"placed to STARTING": starting, "reported to SUCCEEDED": succeeded}


def held(place: Place, count: int) -> None:
    """All run at once: the server's memory."""
    print("| server | resident MB | private MB |\n|---|---|---|")

    def row(what: str) -> None:
        memory = memory_of(place.pid)
        print(f"| {what} | {memory.resident:.0f} | {memory.private:.0f} |", flush=True)

    row("idle")
    before = _in_state(place, "SUCCEEDED")
    with played(place, ours=True, hold=True) as workers:
        began = time.perf_counter()
        _at_once(count, lambda number: job_of(place, f"held-{number}").submit())
        becomes(lambda: _in_state(place, "RUNNING") == count, f"{count} run", LIMIT_S, 0.5)
        print(f"all run after {time.perf_counter() - began:.1f} s", file=sys.stderr)
        cpu, since = cpu_s(place.pid), time.perf_counter()
        time.sleep(10)
        row(f"{count} running jobs of {WORKERS} pods")
        idle = (cpu_s(place.pid) - cpu) / (time.perf_counter() - since)
        print(f"| its CPU while they run, of a core | {idle:.1%} | |", flush=True)
        workers.go_on()
        becomes(
            lambda: _in_state(place, "SUCCEEDED") - before == count, f"{count} end", LIMIT_S, 0.5
        )
        place.until_gone()
    row("all of them ended")


def said(run: dict[str, Any]) -> dict[str, Any]:
    print(run, file=sys.stderr, flush=True)
    return run


def show(title: str, *ways: list[dict[str, Any]]) -> None:
    runs = ways[0]
    print(f"\n{title}, {len(runs)} rounds\n")
    print(
        "| | s until all have succeeded | ours to it | CPU of this machine, s a job "
        "|\n|---|---|---|---|"
    )
    mine = statistics.median(run["took"] for run in runs)
    for name, found in zip(
        ("ours", "by hand, each removed at its end", "by hand (goal 1.25)"), ways, strict=True
    ):
        each = ", ".join(f"{run['took']:.1f}" for run in found)
        ratio = mine / statistics.median(run["took"] for run in found)
        print(
            f"| {name} | {each} | {ratio:.2f} | "
            f"{statistics.median(run['machine'] for run in found):.3f} |"
        )
    print("\n| | |\n|---|---|")
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, default="pytorchjob")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--hold", action="store_true", help="measure memory while all run")
    parser.add_argument("--name", default="bench-many", help="of the cluster")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as empty,
        own_cluster(options.name, "kwok", *KINDS[options.kind]) as cluster,
        own_place(cluster, TYPE, kind=options.kind) as place,
    ):
        cluster.fake_nodes(NODES, NODE)
        os.chdir(empty)  # the code of our jobs: one made by hand has none
        if options.hold:
            held(place, options.jobs)
            return
        ours(place, 5, "first")  # files and caches are warm
        runs, removed, hand = [], [], []
        for number in range(options.rounds):
            runs.append(said(ours(place, options.jobs, f"series{number}")))
            removed.append(said(by_hand(place, options.jobs, removed=True)))
            place.until_gone()
            hand.append(said(by_hand(place, options.jobs)))
            if number + 1 < options.rounds:
                place.clear()
        show(f"{options.jobs} {place.kind.name}s of {WORKERS} pods", runs, removed, hand)


if __name__ == "__main__":
    main()
