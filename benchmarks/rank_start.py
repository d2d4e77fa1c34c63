"""How fast ranks start and end under our launcher, fresh and forked from the warm pool, and the
memory of the pool.

    python benchmarks/rank_start.py [--rounds 20] [--into FILE] [WHAT ...]
    WHAT: all_reduce, ddp, eight, transformers, memory

Without a server, from the order to the end of all, interleaved. `bare`: processes with the
environment set by hand; `torchrun`; `plain python`: a worker launcher that starts `python script`;
`fresh`: one with the rank runner, as it is; `warm`: a launcher forked from a pool that has learnt
from one fresh run what the script imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import own_launcher
from interleave import Samples, joined, table, time_until_one_succeeds
from proc import memory_of

from client_lib.durable import read_json
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.rank_processes import processes
from client_lib.worker.programs import launcher_command
from client_lib.worker.warm import fit
from server_stub.runtimes.local.warm import WarmPool
from tests.kit.processes import free_port

ALL_REDUCE = (Path(__file__).parent / "rivals" / "jobs" / "all_reduce.py").read_text()
DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
model(torch.ones(4, 8)).sum().backward()
dist.destroy_process_group()
"""
TRANSFORMERS = "from transformers import BertConfig, BertModel, Trainer\nBertModel\n" + DDP
IDLE = DDP.replace(
    "dist.destroy", "import time\nprint('idle', flush=True)\ntime.sleep(600)\ndist.destroy"
)


class Job:
    """One script, in a folder of its own."""

    def __init__(self, script: str, ranks: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="warm-start-"))
        self.script = self.folder / "script.py"
        self.script.write_text(script)
        self._ranks, self._runs = ranks, 0
        self._loop = asyncio.new_event_loop()
        self.pool: WarmPool | None = None

    def learn(self) -> None:
        """A fresh run, and a pool of what it has imported."""
        directory = self.prepare(record_imports=True)
        self.start_fresh(directory)
        self.run(directory)
        config = self.folder / "pool.json"
        modules = json.loads(Path(directory.imports).read_text())
        known = {"python": sys.executable, "modules": modules, "refused": {}, "idle_s": 600}
        config.write_text(json.dumps(known))
        like = processes(self.plan(), directory, None)[0].environment
        self.pool = WarmPool(sys.executable, config, fit.environment_of(like))
        self._loop.run_until_complete(self.pool.start())
        assert self.pool.state == "ready", (self.pool.why_ended, self.pool.output)
        left_out = json.loads(config.read_text())["refused"]
        print(f"pool: {self.pool.info()}; left out: {left_out}")

    def plan(self, **fields: bool) -> WorkerPlan:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        command = [str(self.script)]
        return own_launcher.plan_of(
            self.folder, command, self._ranks, environment=environment, **fields
        )

    def prepare(self, **fields: bool) -> Directory:
        self._runs += 1
        return own_launcher.prepared(self.folder / f"worker-{self._runs}", self.plan(**fields))

    def start_fresh(self, directory: Directory) -> None:
        subprocess.Popen(launcher_command(directory.path))

    def start_warm(self, directory: Directory) -> None:
        assert self.pool
        why = self._loop.run_until_complete(self.pool.launch(directory.path))
        assert why is None, why

    def run(self, directory: Directory) -> None:
        own_launcher.until_ended(directory, own_launcher.let_start(directory))

    def fresh(self, rank_runner: bool = True) -> None:
        directory = self.prepare(rank_runner=rank_runner)
        self.start_fresh(directory)
        self.run(directory)

    def warm(self) -> None:
        directory = self.prepare()
        self.start_warm(directory)
        self.run(directory)

    def plain_python(self) -> None:
        self.fresh(rank_runner=False)

    def bare(self) -> None:
        shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        shared |= {
            "WORLD_SIZE": str(self._ranks),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, str(self.script)],
                cwd=self.folder,
                env=shared | {"RANK": str(rank)},
            )
            for rank in range(self._ranks)
        ]
        if any(rank.wait() for rank in ranks):
            raise RuntimeError("a rank failed")

    def torchrun(self) -> None:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={self._ranks}",
        ]
        done = subprocess.run(
            [*command, str(self.script)],
            cwd=self.folder,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            check=False,
        )
        if done.returncode:
            raise RuntimeError("torchrun failed")

    def close(self) -> None:
        if self.pool:
            self._loop.call_soon(self.pool.close)
            self._loop.run_until_complete(asyncio.sleep(0.1))
        shutil.rmtree(self.folder)


def memory() -> None:
    """PSS of two idle ranks and their launcher, fresh and warm, and of the pool."""
    job = Job(DDP, 2)
    job.learn()
    job.script.write_text(IDLE)
    assert job.pool
    for name, start in (("fresh", job.start_fresh), ("warm", job.start_warm)):
        directory = job.prepare()
        start(directory)
        peer = own_launcher.let_start(directory)
        while (
            b"".join(path.read_bytes() for path in Path(directory.log).glob("*.log")).count(b"idle")
            < 2
        ):
            time.sleep(0.1)
        ranks = [entry["pid"] for entry in (read_json(directory.processes) or {}).values()]
        launcher = (read_json(directory.lock) or {})["pid"]
        info = job.pool.info()
        of_ranks = sum(memory_of(rank).proportional for rank in ranks)
        shares = f"ranks {of_ranks:.0f} MiB, launcher {memory_of(launcher).proportional:.0f}"
        print(f"{name}: {shares}, pool {info.memory_mib}")
        peer.send(control.order(control.STOP, grace_s=0.0))
        while peer.receive(30):
            pass
    job.close()


def compare(
    title: str, script: str, ranks: int, names: tuple[str, ...], options: argparse.Namespace
) -> None:
    job = Job(script, ranks)
    if "warm" in names:
        job.learn()
    ways: dict[str, Callable[[], object]] = {
        name: getattr(job, name.replace(" ", "_")) for name in names
    }
    samples: Samples = {name: [] for name in names}
    # none before the counted ones: `learn` has warmed files and caches
    for _ in range(options.rounds):
        round_of_all = {name: [time_until_one_succeeds(name, way)] for name, way in ways.items()}
        samples = joined(round_of_all, options.into, title, samples)
    to = tuple(name for name in ("bare", "torchrun") if name in names)
    print(table(title, samples, to=to), flush=True)
    job.close()


COMPARISONS: dict[str, tuple[str, str, int, tuple[str, ...]]] = {
    "all_reduce": ("2 ranks and one all_reduce", ALL_REDUCE, 2, ("bare", "plain python", "fresh")),
    "ddp": ("2 ranks of DDP", DDP, 2, ("bare", "torchrun", "fresh", "warm")),
    "eight": ("8 ranks of DDP", DDP, 8, ("bare", "torchrun", "fresh", "warm")),
    "transformers": (
        "2 ranks of DDP that import transformers",
        TRANSFORMERS,
        2,
        ("bare", "fresh", "warm"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="WHAT", default=[*COMPARISONS, "memory"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    ways = {what: partial(compare, *of, options) for what, of in COMPARISONS.items()} | {
        "memory": memory
    }
    for what in options.what:
        ways[what]()


if __name__ == "__main__":
    main()
