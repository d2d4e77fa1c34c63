"""From the call to all ranks running on a cluster: `Job.submit()` beside creating the same PyTorchJob by hand.

    python benchmarks/kube_start.py [-n 20] [--file KEPT.json] [--name CLUSTER]

A real kubelet; two pods of one process each, interleaved. A rank that runs says the time as its first act, and the
later of the two counts. By hand: the PyTorchJob that the submit makes, with the rank's own command instead of the
launcher's. Goal: the median of ours at most 0.5 s over by hand.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

from interleave import joined, table, wall_times
from kube_place import Place, becomes, final, own_cluster, own_place

RANK = """
import os, time
print("runs", time.time(), flush=True)
time.sleep(4 if os.environ["RANK"] == "0" else 0)
"""
"""Rank 0 stays: at the master's end the operator deletes what still runs, with its log."""
RANKS = 2


class Starts:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = 0

    def ours(self) -> float:
        job = self._place.job(RANK, n_workers=RANKS)
        began = time.time()
        job.submit()
        final(job)
        took = _last(line.text for line in job.log_entries(stream=["stdout"])) - began
        self._place.until_gone()
        return took

    def by_hand(self) -> float:
        self._number += 1
        place, name = self._place, f"by-hand-{self._number}"
        wanted = place.by_hand(place.job(RANK, n_workers=RANKS), name, ["python3", "-c", RANK])
        began = time.time()
        place.cluster.api.create(place.pytorch_jobs, wanted)
        pods = [f"{name}-master-0"] + [f"{name}-worker-{number}" for number in range(RANKS - 1)]
        becomes(lambda: all(_has_ended(place, pod) for pod in pods), f"the pods of {name} have ended")
        logs = [place.cluster.api.get(f"/api/v1/namespaces/{place.namespace}/pods/{pod}/log") for pod in pods]
        place.delete_by_hand(name)
        return _last(logs) - began


def _has_ended(place: Place, pod: str) -> bool:
    found = place.cluster.api.get(f"/api/v1/namespaces/{place.namespace}/pods?fieldSelector=metadata.name%3D{pod}")
    return any(each["status"]["phase"] in ("Succeeded", "Failed") for each in found["items"])


def _last(lines: object) -> float:
    times = [float(line.split()[1]) for line in lines if line.startswith("runs")]  # type: ignore[attr-defined]
    if len(times) != RANKS:
        raise RuntimeError(f"{len(times)} of {RANKS} ranks have run")
    return max(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=20)
    parser.add_argument("--file", type=Path, help="keeps the samples, and goes on with those that it has")
    parser.add_argument("--name", default="bench", help="of the cluster")
    options = parser.parse_args()
    title = f"{RANKS} pods, from the call to all ranks running"
    size = {"name": "one", "cpu": 0.9, "memory_gib": 0.5}
    with own_cluster(options.name, "node") as cluster, own_place(cluster, size) as place:
        starts = Starts(place)
        samples = wall_times({"by hand": partial(starts.by_hand), "ours": partial(starts.ours)}, options.rounds)
    samples = joined(samples, options.file, title)
    print(table(title, samples, to=("by hand",)))
    over = statistics.median(samples["ours"]) - statistics.median(samples["by hand"])
    print(f"\nours: {over:+.3f} s over by hand (goal: at most 0.5)")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
