"""Submits of groups: 1000 members in one request, beside 100 jobs one by one. Then the end of 1000
jobs after one that is cancelled (they fail), beside that of 1000 which are cancelled themselves.

    python benchmarks/groups.py [-n ROUNDS] [--only submit|after]

By the SDK with the real local server and SQLite, in turn. Few of the jobs run, so that the others
wait.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from itertools import count
from pathlib import Path

from interleave import table, wall_times
from own_server import INSTANCE_TYPE, own_server

from client_lib import Job

MEMBERS = 1000
GOAL_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["submit", "after"])
    options = parser.parse_args()
    os.environ["CLIENT_LIB_SERVER_MAX_CPU_JOBS"] = "1"
    with own_server() as scratch:
        script = scratch / "sleep.py"
        script.write_text("import time; time.sleep(600)\n")
        if options.only != "after":
            submit(script, options.rounds)
        if options.only != "submit":
            end_after(script, options.rounds)


def submit(script: Path, rounds: int) -> None:
    numbers = count()

    def group() -> None:
        job = Job(script=script, instance_type=INSTANCE_TYPE)
        job.each(f"group-{next(numbers)}", {"seed": range(MEMBERS)}, max_parallel=1, check=False)

    def one_by_one() -> None:
        for seed in range(MEMBERS // 10):
            Job(script=script, args=["--seed", str(seed)], instance_type=INSTANCE_TYPE).submit(
                check=False
            )

    single = f"{MEMBERS // 10} one by one"
    samples = wall_times({f"group of {MEMBERS}": group, single: one_by_one}, rounds)
    print(table(f"Submits, goal of a group: {GOAL_S:g} s", samples, to=(single,)))


def end_after(script: Path, rounds: int) -> None:
    numbers = count()

    def ended(after_one: bool) -> float:
        """Seconds from the cancel to the end of all."""
        first = Job(script=script, instance_type=INSTANCE_TYPE)
        first.submit(check=False)
        waiting = Job(script=script, instance_type=INSTANCE_TYPE, after=[first])
        group = waiting.each(f"waits-{next(numbers)}", {"seed": range(MEMBERS)}, check=False)
        began = time.perf_counter()
        (first if after_one else group).cancel()
        while not group.state.final:
            time.sleep(0.02)
        took = time.perf_counter() - began
        first.cancel()
        return took

    ways = {
        "after one that is cancelled": partial(ended, True),
        "cancelled themselves": partial(ended, False),
    }
    print(table(f"End of {MEMBERS} jobs", wall_times(ways, rounds), to=("cancelled themselves",)))


if __name__ == "__main__":
    main()
