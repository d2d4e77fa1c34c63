"""How many log lines per second the worker launcher takes from 8 ranks, beside the floor: splice,
which sees no line.

    python benchmarks/launcher_lines.py [ROUNDS]

`bulk`: each rank writes blocks of 64 KiB; `by line`: each line is a write of its own, and the
ranks' own writes are what takes the time. Lines of 120 bytes. Medians over interleaved rounds; the
goal is 1 000 000 lines/s in bulk. `CPU`: what the launcher itself takes for a line, however much of
the machine the ranks take.
"""

from __future__ import annotations

import os
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import own_launcher
from proc import cpu_s

from client_lib.worker.programs import launcher_command

RANKS = 8
LINES = {"bulk": 150_000, "by line": 15_000}
WRITER = """
import os, sys, time
release, lines, bulk = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "bulk"
line = b"x" * 119 + b"\\n"
block = line * (65536 // 120) if bulk else line
open("%s.%d" % (release, os.getpid()), "w").close()
while not os.path.exists(release):
    time.sleep(0.001)
for _ in range(lines * 120 // len(block)):
    data = block
    while data:
        data = data[os.write(1, data):]
"""


def writer(release: Path, kind: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", WRITER, str(release), str(LINES[kind]), kind]


def let_go(release: Path) -> float:
    """When all ranks are ready: the moment in which they begin."""
    while len(list(release.parent.glob(release.name + ".*"))) < RANKS:
        time.sleep(0.005)
    release.touch()
    return time.perf_counter()


def written(kind: str) -> int:
    block = 65536 // 120 if kind == "bulk" else 1
    return RANKS * (LINES[kind] // block) * block


def splice(folder: Path, kind: str) -> float:
    """Lines per second of pipes that are spliced into a file."""
    release = folder / "release"
    ranks = [subprocess.Popen(writer(release, kind), stdout=subprocess.PIPE) for _ in range(RANKS)]
    out = os.open(folder / "spliced", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    selector = selectors.DefaultSelector()
    for rank in ranks:
        selector.register(rank.stdout, selectors.EVENT_READ)
    began = let_go(release)
    while selector.get_map():
        for key, _ in selector.select():
            if not os.splice(key.fd, out, 65536):
                selector.unregister(key.fileobj)
    took = time.perf_counter() - began
    os.close(out)
    for rank in ranks:
        rank.wait()
    return written(kind) / took


def launcher(folder: Path, kind: str, cpu: list[float]) -> float:
    """Lines per second from the ranks to the launcher's log, its report included.
    `cpu` gets seconds per line.
    """
    release = folder / "release"
    ours = {"type": "binary", "python": None, "environment": {"PATH": os.environ["PATH"]}}
    plan = own_launcher.plan_of(folder, writer(release, kind), RANKS, **ours)
    directory = own_launcher.prepared(folder / "worker", plan)
    process = subprocess.Popen(launcher_command(directory.path))
    peer = own_launcher.let_start(directory)
    began = let_go(release)
    report = own_launcher.until_ended(directory, peer)
    took = time.perf_counter() - began
    # it has ended, and its times can be read
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    cpu.append(cpu_s(process.pid) / written(kind))
    process.wait()
    assert report["log_end_seq"] >= written(kind)
    return written(kind) / took


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[tuple[str, str], list[float]] = {}
    cpu: dict[str, list[float]] = {kind: [] for kind in LINES}
    for _ in range(rounds):
        for kind in LINES:
            for name, measure in (
                ("splice", splice),
                ("launcher", partial(launcher, cpu=cpu[kind])),
            ):
                folder = Path(tempfile.mkdtemp(prefix="launcher-lines-"))
                try:
                    found.setdefault((kind, name), []).append(measure(folder, kind))
                finally:
                    shutil.rmtree(folder)
    for kind in LINES:
        floor, ours = (statistics.median(found[kind, name]) for name in ("splice", "launcher"))
        rates = (
            f"splice {floor / 1e6:6.2f} M lines/s   launcher {ours / 1e6:6.2f} M lines/s   "
            f"{ours / floor:.2f}"
        )
        print(f"{kind:8}  {rates}   CPU {statistics.median(cpu[kind]) * 1e6:.2f} µs a line")


if __name__ == "__main__":
    main()
