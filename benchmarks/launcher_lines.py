"""How many log lines per second the worker launcher takes from 8 ranks, beside the floor: splice, which sees no line.

    python benchmarks/launcher_lines.py [ROUNDS]

`bulk`: each rank writes blocks of 64 KiB; `by line`: each line is a write of its own, and the ranks' own writes are
what takes the time. Lines of 120 bytes. Medians over interleaved rounds; the goal is 1 000 000 lines/s in bulk. `CPU`:
what the launcher itself takes for a line, however much of the machine the ranks take.
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

from client_lib.worker import control
from client_lib.worker.directory import Directory, launcher_command, read_json
from client_lib.worker.plan import WorkerPlan

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
    """Lines per second from the ranks to the launcher's log, its report included. `cpu` gets seconds per line."""
    release = folder / "release"
    directory = Directory(str(folder / "worker"))
    os.makedirs(directory.path)
    plan = WorkerPlan(
        job="bench",
        attempt=1,
        worker=0,
        n_workers=1,
        processes_per_worker=RANKS,
        type="binary",
        command=writer(release, kind),
        python=None,
        environment={"PATH": os.environ["PATH"]},
        user_variables=[],
        working_dir=str(folder),
        master_addr="127.0.0.1",
        master_port=1,
        gpus=[],
        cores=os.cpu_count() or 1,
        checkpoint_dir=str(folder),
    )
    Path(directory.plan).write_text(plan.to_json())
    process = subprocess.Popen(launcher_command(directory.path))
    while not os.path.exists(directory.control):
        time.sleep(0.001)
    peer = control.ControlConnection(directory.control)
    peer.send(control.order(control.GO))
    began = let_go(release)
    while (message := peer.receive(60)) and message["event"] != control.ENDED:
        pass
    took = time.perf_counter() - began
    cpu.append(cpu_s_at_end(process.pid) / written(kind))
    process.wait()
    report = read_json(directory.report)
    assert report
    assert report["exit_code"] == 0
    assert report["log_end_seq"] >= written(kind)
    return written(kind) / took


def cpu_s_at_end(pid: int) -> float:
    """CPU time of a child of ours, without that of its children. Returns when it has ended, and leaves it a zombie."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[tuple[str, str], list[float]] = {}
    cpu: dict[str, list[float]] = {kind: [] for kind in LINES}
    for _ in range(rounds):
        for kind in LINES:
            for name, measure in (("splice", splice), ("launcher", partial(launcher, cpu=cpu[kind]))):
                folder = Path(tempfile.mkdtemp(prefix="launcher-lines-"))
                try:
                    found.setdefault((kind, name), []).append(measure(folder, kind))
                finally:
                    shutil.rmtree(folder)
    for kind in LINES:
        floor, ours = (statistics.median(found[kind, name]) for name in ("splice", "launcher"))
        rates = f"splice {floor / 1e6:6.2f} M lines/s   launcher {ours / 1e6:6.2f} M lines/s   {ours / floor:.2f}"
        print(f"{kind:8}  {rates}   CPU {statistics.median(cpu[kind]) * 1e6:.2f} µs a line")


if __name__ == "__main__":
    main()
