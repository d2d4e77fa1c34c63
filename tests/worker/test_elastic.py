"""The agent of an elastic worker: torchrun's options, and that it is the only process the launcher starts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from client_lib.worker.directory import Directory
from client_lib.worker.elastic import agent
from client_lib.worker.prepare import prepare
from tests.worker.conftest import Worker

Make = Callable[..., Worker]


@pytest.fixture
def elastic(worker: Make) -> Callable[..., Worker]:
    return lambda **fields: worker("pass", **({"type": "pytorch_elastic"} | fields))


def test_the_options_of_a_second_worker(elastic: Make) -> None:
    plan = elastic(worker=1, n_workers=3, processes_per_worker=2, elastic_min_workers=2, elastic_max_restarts=7).plan
    assert agent(plan) == [
        "-m",
        "torch.distributed.run",
        "--nnodes=2:3",
        "--nproc-per-node=2",
        "--max-restarts=7",
        "--rdzv-id=job-1-1",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:2999",
        "--rdzv-conf=is_host=false,join_timeout=1200,last_call_timeout=90,read_timeout=90",
        "--local-addr=127.0.0.1",
    ]


def test_worker_0_holds_the_rendezvous_and_all_workers_are_needed_unless_told_otherwise(elastic: Make) -> None:
    options = agent(elastic(n_workers=3).plan)
    assert "--nnodes=3:3" in options
    assert any(option.startswith("--rdzv-conf=is_host=true") for option in options)


def test_beyond_one_machine_an_agent_finds_its_address_itself(elastic: Make) -> None:
    assert not [o for o in agent(elastic(master_addr="job-1-worker-0").plan) if o.startswith("--local-addr")]


def test_a_worker_starts_one_agent_for_all_its_ranks(elastic: Make) -> None:
    one = elastic(processes_per_worker=4)
    (process,) = prepare(one.plan, Directory(one.directory.path))
    assert process.argv == [one.plan.python, *agent(one.plan), str(one.script)]
