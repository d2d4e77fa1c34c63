"""Measures by how much the time is wrong that a job in a queue of a real Kueue says until it
starts.

    python benchmarks/kube_queue.py [--jobs 18] [--slots 3] [--seconds 20 40] [--kind trainjob]

Jobs of one pod that sleep for a random time wait for a quota of a few of them. Every second the
message of each waiting job is read (`5th of 9 in queue line; ...; about 40 s`), and compared with
when that job began to run. The server renews the messages every 10 s. One queue, no borrowing, no
preemption.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from kube_place import KINDS, NAMESPACE, Place, final, own_cluster, own_place

from client_lib import list_jobs
from client_lib.spec.states import State
from tests.cluster.objects import QUEUES, flavor, queue

CORES, LINE = 0.1, "line"
_ABOUT = re.compile(r"about (\d+) (s|min)\b")
_SECONDS = {"s": 1.0, "min": 60.0}


class Told(NamedTuple):
    job: str
    at: float
    """Seconds since the first submit."""
    wait_s: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=18)
    parser.add_argument("--slots", type=int, default=3, help="jobs for which the quota is enough")
    parser.add_argument(
        "--seconds", type=float, nargs=2, default=[20.0, 40.0], help="shortest and longest sleep"
    )
    parser.add_argument("--kind", choices=KINDS, default="pytorchjob")
    options = parser.parse_args()
    with ExitStack() as stack:
        cluster = stack.enter_context(
            own_cluster("bench-queue", "node", "kueue", *KINDS[options.kind])
        )
        instance_type = {"name": "small", "cpu": CORES, "memory_gib": 0.5}
        place = stack.enter_context(own_place(cluster, instance_type, kind=options.kind))
        make_queue(place, options.slots)
        sleeps = [random.Random(number).uniform(*options.seconds) for number in range(options.jobs)]
        told, started = measured(place, sleeps)
    print(report(told, started, options.slots))


def make_queue(place: Place, slots: int) -> None:
    """A queue of the namespace whose quota is enough for so many jobs, once Kueue takes
    the jobs of the namespace.
    """
    api = place.cluster.api
    api.merge(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {QUEUES: "true"}}})
    for path, made in (flavor("plain"), *queue(NAMESPACE, LINE, f"{CORES * slots * 1000:.0f}m")):
        api.apply(path, made)
    place.restart(signal.SIGTERM)  # the server asks at its start whether a Kueue takes its jobs


def measured(place: Place, sleeps: Sequence[float]) -> tuple[list[Told], dict[str, float]]:
    """Return the times that waiting jobs have said, and when each job began to run:
    seconds since the first submit.
    """
    began, told, started = time.monotonic(), [], {}
    for number, seconds in enumerate(sleeps):
        script = f"import time\ntime.sleep({seconds})\n"
        place.job(script, name=f"queued-{number}", queue_name=LINE).submit()
    while len(started) < len(sleeps):
        now = time.monotonic() - began
        for job in list_jobs(client=place.client, limit=len(sleeps)):
            info = job.info()
            if info.state is State.PENDING and (found := _ABOUT.search(info.message or "")):
                told.append(Told(info.name, now, float(found[1]) * _SECONDS[found[2]]))
            elif info.state is not State.PENDING:
                started.setdefault(info.name, now)
        time.sleep(1.0)
    for job in list_jobs(client=place.client, limit=len(sleeps)):
        final(job)
    return told, started


def report(told: Sequence[Told], started: dict[str, float], slots: int) -> str:
    lines = [
        f"{len(started)} jobs, {slots} at a time; of {len(told)} times told",
        "",
        "| real wait | times told | median error s | longest error s | median error % |",
        "|---|---|---|---|---|",
    ]
    for least, most in ((5, 30), (30, 60), (60, 120), (120, 1000)):
        waits = [(each.wait_s, started[each.job] - each.at) for each in told]
        errors = sorted(
            (abs(said - real), abs(said - real) / real)
            for said, real in waits
            if least <= real < most
        )
        if errors:
            middle = errors[len(errors) // 2]
            lines.append(
                f"| {least} to {most} s | {len(errors)} | {middle[0]:.1f} | {errors[-1][0]:.1f} | "
                f"{middle[1]:.0%} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
