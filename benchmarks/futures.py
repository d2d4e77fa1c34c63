"""`map` of calls that do nothing: our Executor beside those of concurrent.futures and submitit (its local executor).

    python benchmarks/futures.py [-n ROUNDS] [--calls 200] [--into FILE]

Each executor is made and shut down within its time, in turns. Ours has warm ranks from the second job on, as for every
user. Goal: at most 1.5 times the slower of the other two.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import submitit
from interleave import joined, table, wall_times
from own_server import INSTANCE_TYPE, own_server, until_pools_are_ready

from client_lib import Executor

GOAL = 1.5


def nothing(number: int) -> int:
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    calls, title = range(options.calls), f"map of {options.calls} calls"
    with own_server() as folder:

        def pool() -> None:
            with ProcessPoolExecutor() as executor:
                assert list(executor.map(nothing, calls)) == list(calls)

        def submitit_local() -> None:
            executor = submitit.AutoExecutor(folder / "submitit", cluster="local")
            assert [job.result() for job in executor.map_array(nothing, calls)] == list(calls)
            shutil.rmtree(folder / "submitit")

        def ours() -> None:
            with Executor(instance_type=INSTANCE_TYPE) as executor:
                assert list(executor.map(nothing, calls)) == list(calls)

        for _ in range(2):  # the first starts fresh, and the pool becomes ready after it
            with Executor(instance_type=INSTANCE_TYPE) as executor:
                executor.submit(nothing, 0).result()
            until_pools_are_ready()
        ways: dict[str, Callable[[], object]] = {"ProcessPoolExecutor": pool, "submitit, local": submitit_local}
        samples = joined(wall_times({**ways, "ours": ours}, options.rounds), options.into, title)
    print(table(title, samples, to=tuple(ways)))
    medians = {name: statistics.median(times) for name, times in samples.items()}
    print(f"ours to the slower of them: {medians['ours'] / max(medians[name] for name in ways):.2f} (goal {GOAL})")


if __name__ == "__main__":
    main()
