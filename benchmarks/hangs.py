"""Measures which rank is named when a job hangs, how soon, how many alarms are false, and what the
watch costs.

    python benchmarks/hangs.py [--runs 1] [--healthy 1] [--at-once 4] [--steps 1000] [KIND ...]

12 kinds of hangs on gloo ranks: the right rank named, its line named, seconds from its last step to
the event. Healthy jobs in which one rank works for long while others wait, or all pause: a job that
is called hung is a false alarm. The cost: the median step of 20 ms with and without observation,
interleaved, and beside it two equal halves.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from own_server import INSTANCE_TYPE, own_server

from client_lib import Client, Job
from client_lib.spec.states import Reason

GUILTY = 1
LIMIT_S = 120.0
SCRIPT = """
import os, signal, socket, sys, tempfile, threading, time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

kind, rank = sys.argv[1], int(os.environ["RANK"])
x = torch.ones(8)

class Stuck(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index):
        time.sleep(600)

def compute(seconds):
    end = time.time() + seconds
    while time.time() < end:
        torch.ones(200, 200) @ torch.ones(200, 200)

# --- hangs: the line that is marked is the one to be named
def divergence(): dist.broadcast(x, src=0)  # other-collective
def early_return():
    threading.Thread(target=time.sleep, args=(600,)).start()
    sys.exit(0)  # no-line
def data_worker(): next(iter(DataLoader(Stuck(), num_workers=1)))  # line
def lock():
    mutex = threading.Lock()
    mutex.acquire()
    mutex.acquire()  # line
def gil():
    import ctypes
    while True: ctypes.PyDLL(None).sleep(600)  # line
def lone_barrier(): dist.barrier()  # other-collective
def lone_receive(): dist.recv(x, src=0)  # other-collective
def sleeping_io():
    reader, writer = os.pipe()
    os.read(reader, 1)  # line
def stopped(): os.kill(os.getpid(), signal.SIGSTOP)  # no-line
def slow_disk():
    reader, writer = os.pipe()
    while True: os.write(writer, b"x" * 4096)  # line
def thread():
    wait = threading.Event()
    other = threading.Thread(target=wait.wait)
    other.start()
    other.join()  # line
def lost_peer():
    here, there = socket.socketpair()
    here.recv(1)  # line

# --- healthy
def evaluation(): compute(25)
def checkpoint():
    with tempfile.TemporaryFile() as file:
        for _ in range(25):
            file.write(os.urandom(1 << 22))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.8)
def uneven_data():
    if os.fork() == 0:
        compute(25)
        os._exit(0)
    os.wait()
def helper():
    other = threading.Thread(target=compute, args=(25,))
    other.start()
    other.join()
def download():
    here, there = socket.socketpair()
    if os.fork() == 0:
        for _ in range(25):
            there.sendall(b"x" * 65536)
            time.sleep(1)
        os._exit(0)
    with tempfile.TemporaryFile() as file:
        for _ in range(25 * 16):
            file.write(here.recv(4096, socket.MSG_WAITALL))
            file.flush()
def slow_start(): pass
def silent(): pass
def pauses(): pass
def long_steps(): pass

if kind == "slow_start" and rank == 1:
    compute(20)
dist.init_process_group("gloo")
steps = 650 if kind == "silent" else 20  # for more than a minute
for step in range(steps):
    if kind == "pauses" or kind == "long_steps" and rank == 1:
        time.sleep(1.5 if kind == "pauses" else 3)
    if step == 5 and rank == 1:
        print("stands", time.time(), flush=True)
        globals()[kind]()
    if step == 5 and kind in ("divergence", "lone_barrier", "lone_receive") and rank == 1:
        continue
    dist.all_reduce(x)  # waits
    time.sleep(0.1)
print("end", flush=True)
"""
HANGS = (
    *("divergence", "early_return", "data_worker", "lock", "gil", "lone_barrier", "lone_receive"),
    *("sleeping_io", "stopped", "slow_disk", "thread", "lost_peer"),
)
HEALTHY = (
    "evaluation",
    "checkpoint",
    "uneven_data",
    "helper",
    "download",
    "slow_start",
    "silent",
    "pauses",
    "long_steps",
)
STEPS = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x, times = torch.ones(8), []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    time.sleep(0.018)
    dist.all_reduce(x)
    times.append(time.perf_counter() - began)
times.sort()
print("median", times[len(times) // 2] * 1000, flush=True)
"""


class Run(NamedTuple):
    """One job, and what was said of it."""

    kind: str
    ranks: int
    job: Job


class Found(NamedTuple):
    kind: str
    rank_is_right: bool
    line_is_right: bool | None
    """None: the rank has no line."""
    told_s: float | None
    message: str


def line_of(kind: str) -> tuple[int, str]:
    """The line of the hang in the script, and its mark."""
    start = SCRIPT.index(f"def {kind}(")
    found = re.compile(r"# (line|no-line|other-collective)\n").search(SCRIPT, start)
    assert found
    return SCRIPT.count("\n", 0, found.start()) + 1, found[1]


def begin(folder: Path, kind: str, ranks: int) -> Run:
    job = Job(
        script=folder / "hang.py",
        args=[kind],
        processes_per_worker=ranks,
        instance_type=INSTANCE_TYPE,
        grace_s=1,
    )
    job.submit()
    return Run(kind, ranks, job)


def judge(run: Run) -> Found:
    """Wait until the job is called hung, or has ended."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        info = run.job.info()
        if info.reason is Reason.HUNG or info.state.final:
            break
        time.sleep(0.2)
    events = [event for event in run.job.events() if event.reason == Reason.HUNG]
    message = events[0].message if events else f"{info.state} {info.reason} {info.message}"
    stood = re.search(r"stands (\S+)", printed(run.job))
    told_s = events[0].time.timestamp() - float(stood[1]) if events and stood else None
    if not info.state.final:
        run.job.cancel()
    if run.kind in HEALTHY:
        return Found(run.kind, not events, None, told_s, message)
    number, mark = line_of(run.kind)
    guilty = re.search(rf"\brank {GUILTY} (is|has)\b|\branks 0-{run.ranks - 1} have", message)
    line = None if mark == "no-line" else f"hang.py:{number}" in message
    return Found(run.kind, bool(events and guilty), line, told_s, message)


def printed(job: Job) -> str:
    return "\n".join(job.log_lines(follow=False))


def watch(folder: Path, kinds: Sequence[str], at_once: int) -> list[Found]:
    found: list[Found] = []
    for start in range(0, len(kinds), at_once):
        batch = [
            begin(folder, kind, 2 + number % 3)
            for number, kind in enumerate(kinds[start : start + at_once], start)
        ]
        for run in batch:
            found.append(judge(run))
            told = "" if found[-1].told_s is None else f" after {found[-1].told_s:.1f} s"
            print(f"{run.kind:13} {run.ranks} ranks{told}: {found[-1].message}", flush=True)
    return found


def overhead(folder: Path, steps: int) -> None:
    """Medians of jobs in turn: without observation, with it, without it."""
    (folder / "steps.py").write_text(STEPS)
    medians: dict[str, list[float]] = {"off": [], "on": [], "off again": []}
    for _ in range(3):
        for name, values in medians.items():
            job = Job(
                script=folder / "steps.py",
                args=[str(steps)],
                processes_per_worker=2,
                instance_type=INSTANCE_TYPE,
                observe=name == "on",
            )
            job.submit()
            job.wait()
            values += [float(value) for value in re.findall(r"median (\S+)", printed(job))]
    off, on, again = (statistics.median(values) for values in medians.values())
    print(f"step: {off:.3f} ms off, {on:.3f} ms on ({(on / off - 1) * 100:+.2f} %), ", end="")
    print(f"{again:.3f} ms off again ({(again / off - 1) * 100:+.2f} %)")


def summary(found: Sequence[Found]) -> None:
    hangs = [each for each in found if each.kind in HANGS]
    healthy = [each for each in found if each.kind in HEALTHY]
    lines = [each.line_is_right for each in hangs if each.line_is_right is not None]
    told = sorted(each.told_s for each in hangs if each.told_s is not None)
    if hangs:
        print(f"rank right: {sum(each.rank_is_right for each in hangs)} of {len(hangs)}")
        print(f"line right: {sum(lines)} of {len(lines)}")
    if told:
        print(f"told after: median {statistics.median(told):.1f} s, longest {told[-1]:.1f} s")
    if healthy:
        print(
            f"false alarms: {sum(not each.rank_is_right for each in healthy)} of {len(healthy)} "
            "healthy jobs"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--runs", type=int, default=1, help="of each kind of hang")
    arguments.add_argument("--healthy", type=int, default=1, help="runs of each healthy kind")
    arguments.add_argument("--at-once", type=int, default=4, help="jobs that run at the same time")
    arguments.add_argument(
        "--steps", type=int, default=0, help="steps for the cost; 0: not measured"
    )
    arguments.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join((*HANGS, *HEALTHY)))
    given = arguments.parse_args()
    kinds = given.kinds or [*HANGS * given.runs, *HEALTHY * given.healthy]
    with own_server() as folder:
        Client().server_info()
        (folder / "hang.py").write_text(SCRIPT)
        summary(watch(folder, kinds, given.at_once))
        if given.steps:
            overhead(folder, given.steps)


if __name__ == "__main__":
    main()
