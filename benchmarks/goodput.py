"""Measures after how many steps a slow rank is named, and how exactly the use of a job's time is
told.

    python benchmarks/goodput.py [--runs 1] [--ranks 3] [forward backward]

DDP on gloo ranks with a step of 20 ms, in which one rank needs 50 ms more, in the forward or in the
backward pass. Rank 0 writes a checkpoint of 0.5 s now and then; the first attempt fails, and the
second one repeats some steps. Each goes on for 0.5 s after its last step. The script itself
measures what it injects: beside each part of `job.goodput()` stands how many percentage points it
is off. At the end the same is told of a job of 1 s that shows no steps.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

from own_server import INSTANCE_TYPE, own_server, run_job

from client_lib import Job
from client_lib.spec.states import State

GUILTY, LIMIT_S = 1, 300.0
SCRIPT = """
import os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

part, rank = sys.argv[1], int(os.environ["RANK"])
attempt = int(os.environ["CLIENT_LIB_ATTEMPT"])
folder = Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"])
slept = 0.0

class Late(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x
    @staticmethod
    def backward(context, gradient):
        late("backward")
        return gradient

def late(where):
    global slept
    if part == where and rank == 1:
        began = time.perf_counter()
        time.sleep(0.05)
        slept += time.perf_counter() - began

dist.init_process_group("gloo")
layers = [torch.nn.Linear(64, 64) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
saved, first = 0.0, 101 if attempt > 1 else 1
for step in range(first, 161 if attempt > 1 else 131):
    if step == first + 1:
        began, slept, saved = time.time(), 0.0, 0.0
        print("first", began, flush=True)
    if step == 131:
        print("repeated", time.time() - began, saved, flush=True)
        began, slept, saved = time.time(), 0.0, 0.0
    time.sleep(0.02)
    late("forward")
    Late.apply(model(torch.ones(8, 64))).sum().backward()
    if rank == 0:
        print(f"step {step} loss=0.5", flush=True)
        if step % 25 == 0:
            before = time.time()
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / f"{step}.pt", "wb") as file:
                for _ in range(5):
                    file.write(bytes(1000))
                    file.flush()
                    time.sleep(0.1)
            saved += time.time() - before
print("ran", time.time() - began, saved, slept, flush=True)
print("last", time.time(), flush=True)
time.sleep(0.5)
sys.exit(attempt == 1)
"""


def run(folder: Path, part: str, ranks: int) -> None:
    job = Job(
        script=folder / "train.py",
        args=[part],
        processes_per_worker=ranks,
        instance_type=INSTANCE_TYPE,
        checkpoint_dir=str(folder / f"checkpoints-{time.time()}"),
        max_retry=1,
        grace_s=1,
    )
    job.submit()
    named, end = None, time.monotonic() + LIMIT_S
    while not (info := job.info()).state.final and time.monotonic() < end:
        if named is None and info.progress and info.progress.slow:
            named = job.metrics()["loss"].steps[-1], info.progress.slow
        time.sleep(0.1)
    print(
        f"{part}: named after {named[0]:.0f} steps: {named[1]}" if named else f"{part}: not named",
        flush=True,
    )
    lines = printed(job)
    again = [
        tuple(map(float, found.split())) for found in re.findall(r"repeated (\S+ \S+)\n", lines)
    ]
    ran = [tuple(map(float, found.split())) for found in re.findall(r"ran (\S+ \S+ \S+)\n", lines)]
    assert (len(ran), len(again)) == (2 * ranks, ranks), lines[-2000:]
    told = job.goodput()
    saved = sum(max(each[1] for each in group) for group in (ran[:ranks], again, ran[ranks:]))
    repeated = max(each[0] for each in again) - max(each[1] for each in again)
    lag = sum(max(each[2] for each in group) for group in (ran[:ranks], ran[ranks:]))
    both = sum(
        max(each[0] for each in group) - max(each[1] for each in group)
        for group in (ran[:ranks], ran[ranks:])
    )
    first, last = (
        [float(at) for at in re.findall(rf"{word} (\S+)\n", lines)] for word in ("first", "last")
    )
    ends = [
        event.time.timestamp()
        for event in job.events()
        if event.state in (State.RESTARTING, State.FAILED, State.SUCCEEDED)
    ]
    begins = [job.info().created_at.timestamp(), ends[0]]
    injected = {
        "queued": 0.0,
        "starting": sum(min(first[at * ranks :][:ranks]) - begins[at] for at in (0, 1)),
        "steps": both - lag,
        "lag": lag,
        "checkpoints": saved,
        "repeated": repeated,
        "script": 0.0,
        "ending": sum(ends[at] - max(last[at * ranks :][:ranks]) for at in (0, 1)),
        "unknown": 0.0,
    }
    for name, share in told.parts().items():
        print(
            f"    {name:12} {share:6.1%} {(share - injected[name] / told.wall_s) * 100:+.1f}",
            flush=True,
        )


def printed(job: Job) -> str:
    """The log of all attempts, the ranks of each attempt together."""
    found = []
    for attempt in (1, 2):
        found += [entry.text for entry in job.log_entries(follow=False, attempt=attempt)]
    return "\n".join([*found, ""])


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--runs", type=int, default=1)
    arguments.add_argument("--ranks", type=int, default=3)
    arguments.add_argument("parts", nargs="*", default=["forward", "backward"], metavar="PART")
    given = arguments.parse_args()
    with own_server() as folder:
        (folder / "train.py").write_text(SCRIPT)
        for _ in range(given.runs):
            for part in given.parts:
                run(folder, part, given.ranks)
        (folder / "short.py").write_text("import time\ntime.sleep(0.9)\n")
        print(f"without steps: {run_job(script=folder / 'short.py').goodput()}")


if __name__ == "__main__":
    main()
