"""Measures what metrics cost: a call in a script, the first and the later reads of a million
values; and the error of the time left at a quarter of a run.

    python benchmarks/metrics.py [--values 1000000] [--runs 5]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from client_lib import tracking
from client_lib.launcher_protocol.log_segments import segment_name
from client_lib.launcher_protocol.record import METRICS_PIPE
from client_lib.spec.states import Reason, State
from server_stub.curves.reader import CurveReader
from server_stub.curves.tracker import Tracker
from server_stub.files.job_dirs import log_dir
from server_stub.logs.records import LoggedJob

POINTS = 1000
BEGIN = 1_790_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(f"client_lib.log: {log_us(Path(folder) / 'pipe', options.runs):.1f} us a call")
        reads(Path(folder), options.values, options.runs)
    for name, steps in KINDS.items():
        errors = [time_left_error(steps(random.Random(seed))) for seed in range(100)]
        print(
            f"time left at a quarter, {name}: median error {statistics.median(errors):.1%}, worst "
            f"{max(errors):.1%}"
        )


def log_us(path: Path, runs: int) -> float:
    """Median of some rounds, each of fewer lines than the pipe holds."""
    os.mkfifo(path)
    os.environ[METRICS_PIPE] = str(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    rounds = []
    for _ in range(20 * runs):
        begin = time.perf_counter()
        for step in range(500):
            tracking.log({"loss": 0.1234567}, step=step)
        rounds.append((time.perf_counter() - begin) / 500)
        os.read(reader, 1 << 16)
    os.close(reader)
    return statistics.median(rounds) * 1e6


def reads(folder: Path, values: int, runs: int) -> None:
    """Times of reading one log of `values` lines."""
    job = LoggedJob("j", folder, 1, 1, 1, State.SUCCEEDED, Reason.COMPLETED, "")
    directory = log_dir(folder, 1, 0)
    directory.mkdir(parents=True)
    with (directory / segment_name(0)).open("w") as log:
        for n in range(values):
            log.write(
                f"{n} 2026-11-21T10:{n // 60 % 60:02d}:{n % 60:02d}.000000Z 0 stdout step {n} "
                f"loss={1 / (n + 1):.6f}\n"
            )

    def read(reader: CurveReader) -> float:
        begin = time.perf_counter()
        found = reader.curves(job, 0, time.monotonic() + 600)
        assert len(found.curves[0, "loss"].thinned_to(POINTS)) <= POINTS
        return time.perf_counter() - begin

    print(f"{values} lines, read for the first time: {read(CurveReader(values)):.1f} s")
    kept = CurveReader(values)
    again = [read(CurveReader(values)) for _ in range(runs)]
    read(kept)
    memory = [read(kept) for _ in range(runs)]
    file_s, memory_s = statistics.median(again), statistics.median(memory)
    print(
        f"{values} values to {POINTS}: from the file {file_s:.3f} s, from memory {memory_s:.3f} s"
    )


def steady(chance: random.Random) -> Iterator[float]:
    """Seconds of 1000 steps that differ by 5 %."""
    return (max(0.01, chance.gauss(0.2, 0.01)) for _ in range(1000))


def with_evaluations(chance: random.Random) -> Iterator[float]:
    """An evaluation of 5 s after each 50 steps."""
    return (seconds + (5 if n % 50 == 49 else 0) for n, seconds in enumerate(steady(chance)))


def slow_start(chance: random.Random) -> Iterator[float]:
    """The first ten steps take 3 s more."""
    return (seconds + (3 if n < 10 else 0) for n, seconds in enumerate(steady(chance)))


KINDS: dict[str, Callable[[random.Random], Iterator[float]]] = {
    "steady steps": steady,
    "with evaluations": with_evaluations,
    "with a slow start": slow_start,
}


def time_left_error(steps: Iterator[float]) -> float:
    """Error of the time left at a quarter of the steps, as a part of the true rest."""
    times, now = [], 0.0
    for seconds in steps:
        now += seconds
        times.append(now)
    tracker = Tracker(10)
    quarter = len(times) // 4
    for n, at in enumerate(times[:quarter], 1):
        tracker.add(BEGIN + at, 0, "stdout", "", f"step {n}/{len(times)}")
    estimate = tracker.progress(0, BEGIN + times[quarter - 1])
    assert estimate.left_s is not None
    rest = times[-1] - times[quarter - 1]
    return abs(estimate.left_s - rest) / rest


if __name__ == "__main__":
    main()
