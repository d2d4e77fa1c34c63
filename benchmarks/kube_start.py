"""From the call to all ranks running on a cluster: `Job.submit()` beside creating the same PyTorchJob by hand.

    python benchmarks/kube_start.py [-n 20] [--file KEPT.json] [--name CLUSTER]

A real kubelet; two pods of one process each, interleaved. A rank that runs says the time as its first act, and the
later of the two counts. By hand: the PyTorchJob that the submit makes, with the rank's own command instead of the
launcher's. Goal: the median of ours at most 0.5 s over by hand.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from interleave import Samples, joined, table, time_until_one_succeeds
from kube_place import Place, becomes, final, own_cluster, own_place

RANK = """
import os, socket, time
runs = time.time()
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    print("runs", runs, flush=True)
    server = socket.create_server(("", port))
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        print("runs", server.accept()[0].makefile().readline(), end="", flush=True)
while os.environ["RANK"] != "0":
    try:
        socket.create_connection((os.environ["MASTER_ADDR"], port), 5).sendall(b"%f\\n" % runs)
        break
    except OSError:
        time.sleep(0.05)
"""
"""Rank 0 says it for all: at the master's end the operator deletes what still runs, with its log."""
RANKS = 2


class Starts:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._number = 0

    def ways(self) -> dict[str, Callable[[], float]]:
        return {"by hand": self.by_hand, "ours": self.ours}

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
        master = f"{name}-master-0"
        becomes(lambda: _has_ended(place, master), f"{master} has ended")
        log = place.cluster.api.get(f"/api/v1/namespaces/{place.namespace}/pods/{master}/log")
        place.delete_by_hand(name)
        return _last(log.splitlines()) - began


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
        starts.ours()  # images, files and caches are warm
        samples: Samples = {}
        for _ in range(options.rounds):
            one = {name: [time_until_one_succeeds(name, way)] for name, way in starts.ways().items()}
            print(json.dumps(one), file=sys.stderr, flush=True)
            samples = joined(one, options.file, title, samples)
    print(table(title, samples, to=("by hand",)))
    over = statistics.median(samples["ours"]) - statistics.median(samples["by hand"])
    print(f"\nours: {over:+.3f} s over by hand (goal: at most 0.5)")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
