"""Start of a 2-rank gloo job (import torch, init_process_group, one all_reduce, destroy, exit): the launcher's share.

    python benchmarks/start_two_ranks.py [ROUNDS]

`bare`: two processes with the environment set by hand; `launcher`: a worker launcher with `python script`;
`+ rank runner`: as it is. From spawn to the end of all, medians over interleaved rounds, as wall seconds and to bare.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client_lib.worker import control
from client_lib.worker.directory import Directory, launcher_command, read_json
from client_lib.worker.plan import WorkerPlan
from tests.processes import free_port

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.ones(1)
dist.all_reduce(tensor)
assert tensor.item() == 2
dist.destroy_process_group()
"""


def bare(folder: Path) -> float:
    """Seconds of two processes and nothing else."""
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    began = time.perf_counter()
    ranks = [
        subprocess.Popen([sys.executable, "script.py"], cwd=folder, env=shared | {"RANK": str(rank)})
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.wait() == 0
    return time.perf_counter() - began


def launcher(folder: Path, rank_runner: bool) -> float:
    """Seconds from the launcher's spawn to its end, report written."""
    directory = Directory(str(folder / "worker"))
    os.makedirs(directory.path)
    plan = WorkerPlan(
        job="bench",
        attempt=1,
        worker=0,
        n_workers=1,
        processes_per_worker=2,
        type="pytorch2",
        command=[str(folder / "script.py")],
        python=sys.executable,
        environment=dict(os.environ),
        user_variables=[],
        working_dir=str(folder),
        master_addr="127.0.0.1",
        master_port=free_port(),
        gpus=[],
        cores=os.cpu_count() or 1,
        checkpoint_dir=str(folder),
        rank_runner=rank_runner,
    )
    Path(directory.plan).write_text(plan.to_json())
    began = time.perf_counter()
    process = subprocess.Popen(launcher_command(directory.path))
    while not os.path.exists(directory.control):
        time.sleep(0.001)
    peer = control.ControlConnection(directory.control)
    peer.send(control.order(control.GO))
    process.wait()
    took = time.perf_counter() - began
    report = read_json(directory.report)
    assert report
    assert report["exit_code"] == 0, report
    return took


WAYS = {
    "bare": bare,
    "launcher": lambda folder: launcher(folder, rank_runner=False),
    "launcher + rank runner": lambda folder: launcher(folder, rank_runner=True),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, measure in WAYS.items():
            folder = Path(tempfile.mkdtemp(prefix="two-ranks-"))
            (folder / "script.py").write_text(SCRIPT)
            try:
                found[name].append(measure(folder))
            finally:
                shutil.rmtree(folder)
    floor = statistics.median(found["bare"])
    for name, times in found.items():
        print(f"{name:24} {statistics.median(times):6.2f} s   {statistics.median(times) / floor:.2f} x bare")


if __name__ == "__main__":
    main()
