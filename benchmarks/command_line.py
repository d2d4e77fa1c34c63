"""Start-up of the command line, to `torchx --help` (if one is given) and to `python -c pass`, in interleaved runs.

    python benchmarks/command_line.py [--torchx /path/to/torchx] [--rounds 15]

Goals: `--help`, `status`, `list` and `logs` <= 0.6 x `torchx --help`; `submit` <= 1.1 x;
`import client_lib` <= 1.5 x `python -c pass`. torchx wants an environment of its own:
`python -m venv /tmp/tx && /tmp/tx/bin/pip install torchx`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from interleave import table, wall_times
from own_server import COMMAND, INSTANCE_TYPE, own_server

from client_lib import Job

PASS, TORCHX = "python -c pass", "torchx --help"
JOBS = 30  # in the list


def way(*line: object) -> Callable[[], float]:
    """Seconds from spawn to exit, its output read from a pipe."""
    words = [str(word) for word in line]

    def run() -> float:
        began = time.perf_counter()
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        took = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-300:]}")
        return took

    return run


def some_jobs() -> str:
    """Submit them; the name of the last, which has ended."""
    jobs = [Job(script="true", type="binary", instance_type=INSTANCE_TYPE) for _ in range(JOBS)]
    for job in jobs:
        job.submit()
    for job in jobs:
        job.wait()
    return jobs[-1].job_name or ""


def ways(name: str, torchx: str | None) -> dict[str, Callable[[], float]]:
    found = {
        PASS: way(sys.executable, "-c", "pass"),
        "import client_lib": way(sys.executable, "-c", "import client_lib"),
        "client-lib --help": way(COMMAND, "--help"),
        "client-lib status": way(COMMAND, "status", name),
        "client-lib list": way(COMMAND, "list"),
        "client-lib logs": way(COMMAND, "logs", name),
        "client-lib submit": way(COMMAND, "submit", "-t", "binary", "-i", INSTANCE_TYPE, "true"),
    }
    return {**found, TORCHX: way(torchx, "--help")} if torchx else found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchx", help="its executable")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(argv)
    with own_server():
        samples = wall_times(ways(some_jobs(), options.torchx), options.rounds)
    print(table("Command line, spawn to exit", samples, to=(PASS, *([TORCHX] if options.torchx else []))))


if __name__ == "__main__":
    main()
