"""From the call to all ranks running on a cluster: `Job.submit()` beside creating the same object
by hand.

    python benchmarks/kube_start.py [--kind trainjob] [-n 20] [--cores 0.6 0.2] [--file KEPT.json]
    [--beside]

A real kubelet; two pods of one process each, interleaved. The server is a pod, as `k8s/base` makes
it; `--beside`: a process of this machine. By hand: the PyTorchJob or TrainJob that the submit
makes, with the rank's own command instead of the launcher's; a TrainJob uses the TrainingRuntime of
the submit, which exists before the call. Goal: the median of ours at most 0.5 s over by hand.

Each start is split into stages: seconds from the call until the slower of the two pods has reached
the stage. A watch of the API server tells those of the objects; a rank tells those within its pod,
by times of processes and files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from interleave import Samples, joined, percentile, until_one_succeeds
from kube_deployed import DeployedPlace
from kube_place import KINDS, Place, becomes, own_cluster, own_place

from client_lib import Job

RANK = """
import time
runs = time.time()
import glob, json, os, socket

def started(pid):  # seconds since 1970; the kernel counts them from the machine's start
    with open("/proc/%d/stat" % pid) as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")

def written(name):
    path = "/client-lib/run/" + name
    return {name: os.stat(path).st_mtime} if os.path.exists(path) else {}

def cpu_s():  # of the container
    for path in glob.glob("/sys/fs/cgroup/cpu*/cpuacct.usage"):
        with open(path) as file:
            return int(file.read()) / 1e9
    with open("/sys/fs/cgroup/cpu.stat") as file:
        return int(file.readline().split()[1]) / 1e6

used = cpu_s()
marks = {
    "container": started(1),
    "launcher": started(os.getppid() or 1),
    "rank": started(os.getpid()),
    "runs": runs,
}
for name in ("snapshot.fetched", "lock", "errors"):
    marks.update(written(name))
line = json.dumps([marks, used])
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    print("marks", line, flush=True)
    server = socket.create_server(("", port))
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        print("marks", server.accept()[0].makefile().readline(), end="", flush=True)
while os.environ["RANK"] != "0":
    try:
        connection = socket.create_connection((os.environ["MASTER_ADDR"], port), 5)
        connection.sendall(line.encode() + b"\\n")
        break
    except OSError:
        time.sleep(0.05)
"""
"""Rank 0 says it for all: at the master's end the operator deletes what
still runs, with its log.
"""
RANKS = 2
RUNS = "all ranks run"
CPU = "CPU seconds of one pod until its rank runs"
OF_RANKS = {
    "container": "containers run",
    "snapshot.fetched": "agent has claimed its worker and fetched the code",
    "launcher": "launcher's process is started",
    "lock": "launcher has loaded its modules",
    "errors": "worker is prepared",
    "rank": "rank's process is started",
    "runs": RUNS,
}
"""Stages that a rank tells, by its marks."""

Start = dict[str, float]
"""Stage -> seconds since the call."""


class Watch:
    """The time of each stage of objects of jobs and of pods, by a watch of each from now on."""

    def __init__(self, place: Place) -> None:
        self._seen: dict[str, dict[str, float]] = {}
        core = f"/api/v1/namespaces/{place.namespace}"
        for path, stages in ((place.jobs, _stages_of_job), (f"{core}/pods", _stages_of_pod)):
            version = place.cluster.api.get(f"{path}?limit=1")["metadata"]["resourceVersion"]
            events = place.cluster.api.watch(f"{path}?watch=1&resourceVersion={version}")
            threading.Thread(target=self._follow, args=(events, stages), daemon=True).start()

    def _follow(self, events: Iterator[Any], stages: Callable[[Any], list[str]]) -> None:
        for event in events:
            now, found = time.time(), event["object"]
            for stage in stages(found):
                self._seen.setdefault(stage, {}).setdefault(found["metadata"]["name"], now)

    def stages(self, job: str, began: float) -> Start:
        """Seconds to each stage, of the objects whose names begin with that of the job."""
        times = {
            stage: [at for name, at in seen.items() if name.startswith(job)]
            for stage, seen in self._seen.items()
        }
        return {stage: max(values) - began for stage, values in times.items() if values}


def _stages_of_job(_: Any) -> list[str]:
    return ["object of the job is created"]


def _stages_of_pod(pod: Any) -> list[str]:
    running = pod["status"]["phase"] == "Running"
    return [
        "pods are created",
        *["pods have a node"] * ("nodeName" in pod["spec"]),
        *["kubelet says Running"] * running,
    ]


class Starts:
    """Starts on one place with workers of one type."""

    def __init__(self, place: Place, instance_type: str) -> None:
        self._place, self._type = place, instance_type
        self._number = 0

    def job(self) -> Job:
        return self._place.job(RANK, n_workers=RANKS, instance_type=self._type)

    def ours(self) -> Start:
        job, watch = self.job(), Watch(self._place)
        began = time.time()
        job.submit()
        answered, lines, seen = time.time(), [], 0.0
        for line in job.log_entries(stream=["stdout"]):
            seen = seen or time.time()
            lines.append(line.text)
        became = {"submit is answered": answered - began, **watch.stages(job.name, began)}
        self._place.until_gone()
        return {**became, **_told(lines, began), "first line is seen": seen - began}

    def by_hand(self) -> Start:
        self._number += 1
        place, name = self._place, f"by-hand-{self._type}-{self._number}"
        wanted, watch = place.by_hand(self.job(), name, ["python3", "-c", RANK]), Watch(place)
        began = time.time()
        place.cluster.api.create(place.jobs, wanted)
        becomes(lambda: bool(_ended_master(place, name)), f"the master of {name} has ended")
        log = place.cluster.api.get(
            f"/api/v1/namespaces/{place.namespace}/pods/{_ended_master(place, name)}/log"
        )
        became = watch.stages(name, began)
        place.delete_by_hand(name)
        told = _told(log.splitlines(), began)
        return {**became, **{stage: told[stage] for stage in (OF_RANKS["container"], RUNS, CPU)}}


def _ended_master(place: Place, job: str) -> str:
    """Name of the pod of worker 0, if it has ended."""
    path = f"/api/v1/namespaces/{place.namespace}/pods?labelSelector={place.job_label}%3D{job}"
    for pod in place.cluster.api.get(path)["items"]:
        worker = place.kind.worker_of(pod["metadata"]["labels"])
        if worker == 0 and pod["status"]["phase"] in ("Succeeded", "Failed"):
            return str(pod["metadata"]["name"])
    return ""


def _told(lines: list[str], began: float) -> Start:
    """Seconds to each stage that the ranks have printed."""
    told = [json.loads(line.partition(" ")[2]) for line in lines if line.startswith("marks")]
    if len(told) != RANKS:
        raise RuntimeError(f"{len(told)} of {RANKS} ranks have run")
    marks = [each for each, _ in told]
    stages = {
        stage: max(each[mark] for each in marks) - began
        for mark, stage in OF_RANKS.items()
        if mark in marks[0]
    }
    return {**stages, CPU: max(used for _, used in told)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", choices=KINDS, default="pytorchjob")
    parser.add_argument("-n", "--rounds", type=int, default=20)
    parser.add_argument("--cores", type=float, nargs="+", default=[0.6, 0.2], help="of a worker")
    parser.add_argument(
        "--file", type=Path, help="keeps the samples, and goes on with those that it has"
    )
    parser.add_argument("--name", default="bench", help="of the cluster")
    parser.add_argument(
        "--beside", action="store_true", help="the server is a process of this machine"
    )
    options = parser.parse_args()
    types = [
        {"name": f"cores-{cores * 1000:.0f}m", "cpu": cores, "memory_gib": 0.5}
        for cores in options.cores
    ]
    with ExitStack() as stack:
        cluster = stack.enter_context(own_cluster(options.name, "node", *KINDS[options.kind]))
        shape = Place if options.beside else DeployedPlace
        place = stack.enter_context(own_place(cluster, *types, place=shape, kind=options.kind))
        samples = measured(
            place, [str(each["name"]) for each in types], options.rounds, options.file
        )
        print(f"\n{place.kind.name}")
    for each in types:
        print(report(str(each["name"]), samples))
    sys.stdout.flush()


def measured(place: Place, types: list[str], rounds: int, file: Path | None) -> Samples:
    """Samples by `type/way/stage`, after one round that is not counted."""
    starts = {each: Starts(place, each) for each in types}
    samples: Samples = {}
    for number in range(rounds + 1):
        one: Samples = {}
        for name, each in starts.items():
            for way, start in (("by hand", each.by_hand), ("ours", each.ours)):
                stages = until_one_succeeds(f"{name}, {way}", start)
                one |= {f"{name}/{way}/{stage}": [value] for stage, value in stages.items()}
        if number:
            samples = joined(one, file, f"kube_start {place.kind.name}", samples)
        print(
            {key: round(values[0], 2) for key, values in one.items() if RUNS in key},
            file=sys.stderr,
            flush=True,
        )
    return samples


def report(name: str, samples: Samples) -> str:
    """A Markdown table of the stages, in the order in which ours reaches them."""
    of = {way: _of(f"{name}/{way}/", samples) for way in ("by hand", "ours")}
    rounds = len(of["ours"][RUNS])
    lines = [
        f"\n{RANKS} pods, {name}: seconds from the call until ({rounds} rounds)\n",
        "| | by hand p10 | p50 | p90 | ours p10 | p50 | p90 | median over by hand |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stage in sorted(of["ours"], key=lambda stage: statistics.median(of["ours"][stage])):
        hand, ours = of["by hand"].get(stage), of["ours"][stage]
        over = f"{statistics.median(ours) - statistics.median(hand):+.2f}" if hand else ""
        lines.append(f"| {stage} | {_percentiles(hand)} | {_percentiles(ours)} | {over} |")
    return "\n".join(lines)


def _of(prefix: str, samples: Samples) -> Samples:
    return {
        key.removeprefix(prefix): values
        for key, values in samples.items()
        if key.startswith(prefix)
    }


def _percentiles(values: list[float] | None) -> str:
    return " | ".join(
        f"{percentile(values, percent):.2f}" if values else "" for percent in (10, 50, 90)
    )


if __name__ == "__main__":
    main()
