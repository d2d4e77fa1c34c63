"""Entries of real ranks into collectives: the slow one is found, also in the backward pass of DDP."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from server_stub.curves import lag
from tests.worker.conftest import Worker

SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x
    @staticmethod
    def backward(context, gradient):
        if PART == "backward" and dist.get_rank() == 1:
            time.sleep(0.2)
        return gradient

dist.init_process_group("gloo")
layers = [torch.nn.Linear(16, 16) for _ in range(3)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.001)
for step in range(40):
    if PART == "forward" and dist.get_rank() == 1:
        time.sleep(0.2)
    Slow.apply(model(torch.ones(4, 16))).sum().backward()
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.process
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_the_rank_that_is_late_is_named(worker: Callable[..., Worker], part: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = worker(SCRIPT.replace("PART", repr(part)), processes_per_worker=2, master_port=port)
    assert made.start().go().report(120.0)["exit_code"] == 0
    entries = lag.Entries()
    for record in made.records():
        if record.stream == "metrics" and f'"{lag.KIND}"' in record.text:
            rank, _, sent = json.loads(record.text)
            entries.add(rank, sent)
    slow = lag.straggler(lag.steps([entries.of_rank]))
    assert slow
    assert slow.rank == 1
    assert slow.share > 0.5
