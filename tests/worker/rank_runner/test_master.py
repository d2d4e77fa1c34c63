"""A script for one machine that says by itself where its ranks meet, started on several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.processes import free_port
from tests.worker.rank_runner.joined import RUNNER

pytestmark = pytest.mark.process

BY_VARIABLE = """
import os
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", os.environ["OWN_PORT"]
import torch.distributed as dist
dist.init_process_group("gloo")
print("met")
"""
BY_METHOD = """
import os
import torch.distributed as dist
size = int(os.environ["WORLD_SIZE"])
master = f"tcp://localhost:{os.environ['OWN_PORT']}"
dist.init_process_group("gloo", master, rank=0, world_size=size)
print("met")
"""


@pytest.mark.parametrize(
    ("script", "workers", "master", "said"),
    [
        (BY_VARIABLE, 2, "worker-0.example", "the script sets MASTER_ADDR=localhost by itself"),
        (BY_METHOD, 2, "worker-0.example", "the script sets init_method='tcp://localhost:"),
        (BY_VARIABLE, 1, "worker-0.example", ""),
        (BY_METHOD, 1, "127.0.0.1", ""),
    ],
)
def test_on_several_workers_it_fails_with_a_sentence_instead_of_waiting(
    tmp_path: Path, script: str, workers: int, master: str, said: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    ours = {
        "MASTER_ADDR": master,
        "MASTER_PORT": "1",
        "OWN_PORT": str(free_port()),
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    sizes = {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(RUNNER), str(tmp_path / "train.py")]
    done = subprocess.run(
        command, env={**os.environ, **ours, **sizes}, capture_output=True, text=True, timeout=100
    )
    if workers == 1:
        assert done.stdout == "met\n", done.stderr
    else:
        assert done.returncode == 1
        assert said in done.stderr
        assert "worker-0.example" in done.stderr
