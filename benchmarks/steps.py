"""Measures what it costs a training that the steps of its optimizers are observed.

    python benchmarks/steps.py [--rounds 5] [--steps 300] [--memory]

Two ranks train with DDP and gloo. One step takes about 20 ms: computing, and a wait that stands for
what the cores do not do. Three ways take turns: `off`, `off` again, and `on`. The difference of the
two equal ways is what the machine adds. `hooks` is the CPU time inside the hooks, as a part of
the time of all steps.
With `--memory`: the peak of the memory of one rank with 1e8 parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

from interleave import wall_times

from client_lib.worker.joining import joined_rank_runner

SCRIPT = """
import json, os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
spent = 0.0
hooks = sys.modules["torch.optim.optimizer"]
for table in (hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks):
    if sys.argv[2] == "off":
        table.clear()
    for name, hook in list(table.items()):
        def timed(*given, hook=hook):
            global spent
            begin = time.thread_time()
            hook(*given)
            spent += time.thread_time() - begin
        table[name] = timed
def step():
    begin = time.perf_counter()
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    time.sleep(max(0.0, 0.02 - (time.perf_counter() - begin)))
for _ in range(20):
    step()
spent = 0.0
begin = time.perf_counter()
for _ in range(int(sys.argv[1])):
    step()
whole = time.perf_counter() - begin
if dist.get_rank() == 0:
    print(json.dumps([whole / int(sys.argv[1]), spent / whole]))
"""
LARGE = """
import json, resource, sys, torch
if sys.argv[2] == "off":
    sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks.clear()
    sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks.clear()
model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(10_000_000)) for _ in range(10)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(5):
    for each in model:
        each.grad = torch.ones_like(each)
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 0.0]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        if options.memory:
            for name in ("off", "on"):
                print(f"{name}: {place.run(LARGE, 1, 5, name)[0]:.0f} MiB")
            return
        shares: list[float] = []

        def step_s(way: str) -> float:
            seconds, share = place.run(SCRIPT, 2, options.steps, way)
            if way == "on":
                shares.append(share)
            return seconds

        ways = {"off": "off", "off again": "off", "on": "on"}
        samples = wall_times(
            {name: partial(step_s, way) for name, way in ways.items()}, options.rounds
        )
        for name, seconds in samples.items():
            print(f"{name}: {1000 * statistics.median(seconds):.3f} ms a step")
        print(f"hooks: {statistics.median(shares):.2%} of the time")


class Place:
    """A folder with a rank runner and a pipe for metrics, which is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rank_runner.py").write_bytes(joined_rank_runner())
        self.pipe = folder / "metrics"
        os.mkfifo(self.pipe)
        fd = os.open(self.pipe, os.O_RDWR)
        threading.Thread(target=_drain, args=(fd,), daemon=True).start()

    def run(self, script: str, ranks: int, steps: int, way: str) -> list[float]:
        """The numbers that rank 0 prints."""
        (self.folder / "train.py").write_text(script)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
        common["CLIENT_LIB_METRICS"] = str(self.pipe)
        command = [sys.executable, str(self.folder / "rank_runner.py"), "train.py", str(steps), way]
        started = [
            subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
                stdout=subprocess.PIPE,
            )
            for rank in range(ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
        if any(process.returncode for process in started):
            raise RuntimeError("a rank failed")
        found: list[float] = json.loads(outputs[0])
        return found


def _drain(fd: int) -> None:
    while os.read(fd, 2**16):
        pass


if __name__ == "__main__":
    main()
