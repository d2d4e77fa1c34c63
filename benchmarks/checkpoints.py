"""Search for checkpoints, as the launcher does beside the ranks: its time, and its longest piece.

    python benchmarks/checkpoints.py [--files 100000] [--checkpoints 1000]

A launcher has one thread, so a piece of work holds up its log and its socket: 20 ms at the most.
The floor is to list the names and to read sizes and times, without a look into a file. Times are of
the processor, so that other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from client_lib.checkpoints import Checkpoint, search
from tests.checkpoints.formats import FORMATS, state

ROUNDS = 3
gc.freeze()  # a launcher does not have the objects of PyTorch, which a collection goes through


class Measured(NamedTuple):
    seconds: float
    pieces: int
    longest: float
    found: int


def measure(folder: Path, known: Mapping[str, Checkpoint] | None = None) -> Measured:
    longest = 0.0
    pieces = 0
    found = 0
    began = before = time.thread_time()
    for piece in search(str(folder), known=known):
        now = time.thread_time()
        longest = max(longest, now - before)
        before = now
        pieces += 1
        found += piece is not None
    return Measured(time.thread_time() - began, pieces, longest, found)


def floor(folder: Path) -> float:
    began = time.thread_time()
    for place, _, names in os.walk(folder):
        for name in names:
            os.lstat(os.path.join(place, name))
    return time.thread_time() - began


def report(what: str, folder: Path, known: Mapping[str, Checkpoint] | None = None) -> None:
    rounds = [measure(folder, known) for _ in range(ROUNDS)]
    best = min(rounds)
    longest = max(each.longest for each in rounds)
    print(
        f"{what}: {best.found} found in {best.seconds:.3f} s and {best.pieces} pieces, the longest"
        f" {longest * 1000:.1f} ms; floor {min(floor(folder) for _ in range(ROUNDS)):.3f} s"
    )


def many_files(folder: Path, count: int) -> None:
    data = folder / "data"
    data.mkdir()
    for number in range(count):
        os.close(os.open(data / f"{number:06}.jpg", os.O_CREAT | os.O_WRONLY))
    torch.save(state(1), folder / "step_1.pt")


def many_checkpoints(folder: Path, count: int) -> None:
    """Write one checkpoint of each format, and link its files until there are enough."""
    made = {}
    for name, form in FORMATS.items():
        (folder / "of" / name).mkdir(parents=True)
        made[name] = folder / "of" / name / name
        form.save(state(1), made[name])
    for number in range(count - len(made)):
        name = list(made)[number % len(made)]
        copy = folder / f"run{number % 10}" / name.replace("2", str(number + 3))
        copy.parent.mkdir(exist_ok=True)
        if made[name].is_file():
            os.link(made[name], copy)
            continue
        copy.mkdir()
        for path in made[name].iterdir():
            os.link(path, copy / path.name)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--checkpoints", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many_files(Path(folder), arguments.files)
        report(f"{arguments.files} files", Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        many_checkpoints(Path(folder), arguments.checkpoints)
        report(f"{arguments.checkpoints} checkpoints", Path(folder))
        known = {each.path: each for each in search(folder) if each}
        report("the same once more", Path(folder), known)


if __name__ == "__main__":
    main()
