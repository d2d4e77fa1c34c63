"""A job that does nothing, from submit to the final state seen: ours beside TorchX local_cwd, and
where our time goes.

    python benchmarks/noop_job.py [-n ROUNDS]

Three pairs: the first job of a Python process (imports are not counted, first calls are), every
next one, and the whole command line. The server is up already.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from interleave import table, wall_times
from own_server import COMMAND, INSTANCE_TYPE, own_server
from rivals import launchers

from client_lib import Job


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=20)
    parser.add_argument("--be-driver", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_driver:
        _drive()
        return
    rounds = options.rounds
    with own_server() as scratch:
        theirs = (
            launchers.TORCHX_PYTHON,
            Path(__file__).parent / "rivals" / "torchx_noop.py",
            scratch / "torchx",
        )
        ours = (sys.executable, __file__, "--be-driver")
        _compare(
            "first job of a process, goal 0.45",
            rounds,
            partial(_first, *theirs),
            partial(_first, *ours),
        )
        with _driver(*theirs) as torchx, _driver(*ours) as sdk:
            _compare(
                "every next job of a process", rounds, partial(_ask, torchx), partial(_ask, sdk)
            )
        _compare(
            "the whole command line", rounds, partial(launchers.torchx_echo, scratch), _command_line
        )
        print(_split())


def _drive() -> None:
    """Run a job for each line of stdin, and print its seconds: the twin
    of rivals/torchx_noop.py.
    """
    for _ in sys.stdin:
        began = time.perf_counter()
        job = Job(script="echo hello", type="binary", instance_type=INSTANCE_TYPE)
        job.submit()
        job.wait()
        print(f"{time.perf_counter() - began:.6f}", flush=True)


def _compare(
    title: str, rounds: int, torchx: Callable[[], object], ours: Callable[[], object]
) -> None:
    print(
        table(
            f"no-op, {title}", wall_times({"TorchX": torchx, "ours": ours}, rounds), to=("TorchX",)
        ),
        flush=True,
    )


def _command_line() -> None:
    command = [COMMAND, "submit", "-f", "-t", "binary", "-i", INSTANCE_TYPE, "echo", "hello"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _first(*command: object) -> float:
    with _driver(*command) as driver:
        return _ask(driver)


@contextlib.contextmanager
def _driver(*command: object) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    words = [str(word) for word in command]
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        yield driver
        assert driver.stdin is not None
        driver.stdin.close()


def _ask(driver: subprocess.Popen[str]) -> float:
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write("again\n")
    driver.stdin.flush()
    return float(driver.stdout.readline())


def _split() -> str:
    """One more job, by the events that the server noted."""
    job = Job(script="echo hello", type="binary", instance_type=INSTANCE_TYPE)
    began = datetime.now(timezone.utc)
    clock = time.perf_counter()
    job.submit()
    submitted = time.perf_counter() - clock
    job.wait()
    seen = time.perf_counter() - clock
    lines = [
        "\nwhere the time of one goes (ms since the call of submit)\n",
        "| what | ms |",
        "|---|---|",
    ]
    lines += [
        f"| {e.state} {e.reason}: {e.message} | {(e.time - began).total_seconds() * 1e3:.1f} |"
        for e in job.events()
    ]
    lines += [
        f"| submit() returned | {submitted * 1e3:.1f} |",
        f"| wait() returned | {seen * 1e3:.1f} |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
