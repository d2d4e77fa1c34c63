"""A function that does nothing, two ranks with torch imported, from the call to its result: ours beside accelerate's
notebook_launcher, pyspark's TorchDistributor and Kubeflow's local process backend, in turns.

    python benchmarks/function_job.py [-n ROUNDS] [--into FILE]

Each run is a process of its own, as a cell run first; its imports are not counted, nor the start of Spark's JVM. Ours
is forked from the warm pool from the second run on, as for every user. What the last two need is in
.venv-bench-functions (`make bench`); without it, or without Java, they are left out, and that is said. --into keeps the
times of several runs together (interleave.joined).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from functools import partial
from pathlib import Path

import rivals.functions
from interleave import joined, table, wall_times
from own_server import own_server, until_pools_are_ready

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
    "ours": "import torch\nfrom client_lib.notebook import notebook_launcher",  # the result is a class of torch
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    with own_server() as scratch:
        ways = {}
        for number, (name, imports) in enumerate(_IMPORTS.items()):
            script = scratch / f"way{number}.py"
            script.write_text(_SCRIPT.format(imports=imports))
            ways[name] = partial(_run, script)
        ways |= {name: partial(_seconds, command, scratch) for name, command in rivals.functions.commands().items()}
        samples = joined(wall_times(ways, options.rounds), options.into, _TITLE)
        print(table(_TITLE, samples, to=("accelerate.notebook_launcher",)))


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
