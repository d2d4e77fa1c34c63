"""Submitting a project of 2000 files as a snapshot: for the first time, unchanged, and with one file changed.

    python benchmarks/resubmit.py [-n ROUNDS]

From the call to the durable answer, with the bytes that are sent. The files are 4 kB each, half of it text that
repeats, half of it noise. In place, as `auto` takes it on this machine, nothing is sent at all.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path

from own_server import INSTANCE_TYPE, own_server

from client_lib import Job

FILES = 2000
_LINE = "def step(model, batch, rate=0.1): return model.update(batch, rate)\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with own_server() as scratch:
        project = scratch / "project"
        draw = random.Random(0)
        _make(project, draw)
        ways = {"first": [_submit(project)], "unchanged": [], "one file changed": [], "in place": []}
        for _ in range(rounds):
            ways["unchanged"].append(_submit(project))
            _change(project, draw)
            ways["one file changed"].append(_submit(project))
            ways["in place"].append(_submit(project, code="in_place"))
        print(f"\n{FILES} files, {_size(project) / 1e6:.1f} MB ({rounds} rounds)\n")
        print("| submit | median ms | max ms | sent MB |\n|---|---|---|---|")
        for name, samples in ways.items():
            times = [took for took, _ in samples]
            sent = statistics.median(size for _, size in samples)
            print(f"| {name} | {statistics.median(times):.0f} | {max(times):.0f} | {sent / 1e6:.2f} |")


def _make(project: Path, draw: random.Random) -> None:
    for number in range(FILES):
        folder = project / f"package{number // 100}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"module{number}.py").write_text(_LINE * 30 + f"# {draw.randbytes(1000).hex()}\n")
    (project / "train.py").write_text("pass\n")
    (project / "pyproject.toml").touch()


def _change(project: Path, draw: random.Random) -> None:
    with (project / "package7" / "module777.py").open("a") as file:
        file.write(f"# {draw.random()}\n")


def _submit(project: Path, code: str = "snapshot") -> tuple[float, int]:
    """Milliseconds, and bytes that were sent."""
    sent = 0

    def on_upload(bytes_sent: int, _: int) -> None:
        nonlocal sent
        sent = bytes_sent

    job = Job(script=str(project / "train.py"), code=code, instance_type=INSTANCE_TYPE)  # type: ignore[arg-type]
    began = time.perf_counter()
    job.submit(on_upload=on_upload)
    took = (time.perf_counter() - began) * 1000
    job.wait()
    return took, sent


def _size(project: Path) -> int:
    return sum(os.path.getsize(path) for path in project.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
