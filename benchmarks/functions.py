"""Functions, ours beside others, in turns: one that does nothing, and the `map` of an executor.

    python benchmarks/functions.py [-n ROUNDS] [--only job|map] [--calls 200] [--into FILE]

`job`: two ranks with torch imported, from the call to the result: ours beside accelerate's
notebook_launcher, pyspark's TorchDistributor and Kubeflow's local process backend. Each run is a
process of its own, as a cell run first; its imports are not counted, nor the start of Spark's JVM.
What the last two need is in .venv-bench-functions (`make bench`); without it, or without Java, they
are left out, and that is said.

`map`: our Executor beside those of concurrent.futures and submitit (its local executor). Each is
made and shut down within its time. Goal: at most 1.5 times the slower of the other two.

Ours is forked from the warm pool from the second run on, as for every user. --into keeps the times
of several runs together (interleave.joined).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import rivals.functions
import submitit
from interleave import joined, table, wall_times
from own_server import INSTANCE_TYPE, own_server, until_pools_are_ready

from client_lib import Executor

GOAL = 1.5  # of `map`

_SCRIPT = """
import sys, time
{imports}

def train():
    import torch
    return torch.__version__

if __name__ == "__main__":
    began = time.perf_counter()
    notebook_launcher(train, num_processes=2)
    print(time.perf_counter() - began, file=sys.stderr)
"""
_TITLE = "a function, call to result"
_IMPORTS = {
    "accelerate.notebook_launcher": "import torch\nfrom accelerate import notebook_launcher",
    # the result is a class of torch
    "ours": "import torch\nfrom client_lib.notebook import notebook_launcher",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["job", "map"])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    with own_server() as scratch:
        if options.only != "map":
            of_a_job(scratch, options)
        if options.only != "job":
            of_a_map(scratch, options)


def of_a_job(scratch: Path, options: argparse.Namespace) -> None:
    ways = {}
    for number, (name, imports) in enumerate(_IMPORTS.items()):
        script = scratch / f"way{number}.py"
        script.write_text(_SCRIPT.format(imports=imports))
        ways[name] = partial(_run, script)
    ways |= {
        name: partial(_seconds, command, scratch)
        for name, command in rivals.functions.commands().items()
    }
    samples = joined(wall_times(ways, options.rounds), options.into, _TITLE)
    print(table(_TITLE, samples, to=("accelerate.notebook_launcher",)))


def nothing(number: int) -> int:
    return number


def of_a_map(scratch: Path, options: argparse.Namespace) -> None:
    calls, title = range(options.calls), f"map of {options.calls} calls"

    def pool() -> None:
        with ProcessPoolExecutor() as executor:
            assert list(executor.map(nothing, calls)) == list(calls)

    def submitit_local() -> None:
        executor = submitit.AutoExecutor(scratch / "submitit", cluster="local")
        assert [job.result() for job in executor.map_array(nothing, calls)] == list(calls)
        shutil.rmtree(scratch / "submitit")

    def ours() -> None:
        with Executor(instance_type=INSTANCE_TYPE) as executor:
            assert list(executor.map(nothing, calls)) == list(calls)

    for _ in range(2):  # the first starts fresh, and the pool becomes ready after it
        with Executor(instance_type=INSTANCE_TYPE) as executor:
            executor.submit(nothing, 0).result()
        until_pools_are_ready()
    others: dict[str, Callable[[], object]] = {
        "ProcessPoolExecutor": pool,
        "submitit, local": submitit_local,
    }
    samples = joined(wall_times({**others, "ours": ours}, options.rounds), options.into, title)
    print(table(title, samples, to=tuple(others)))
    medians = {name: statistics.median(times) for name, times in samples.items()}
    print(
        "ours to the slower of them: "
        f"{medians['ours'] / max(medians[name] for name in others):.2f} (goal {GOAL})"
    )


def _run(script: Path) -> float:
    until_pools_are_ready()
    return _seconds([sys.executable, str(script)], script.parent)


def _seconds(command: list[str], folder: Path) -> float:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return float(done.stderr.split()[-1])


if __name__ == "__main__":
    main()
