"""Stacks of ranks whose agents are elsewhere: real agents, and what other ones may do."""

import asyncio
import time

import pytest

from client_lib.spec import paths
from client_lib.spec.stacks import JobStacks
from server_stub.worker_gateway.worker import StackOrders
from tests.kit.waiting import until
from tests.worker_gateway.conftest import Start

FORKS = """
import os, time
def reads():
    time.sleep(600)
def waits():
    if os.fork() == 0:
        reads()
    os.wait()
waits()
"""


@pytest.mark.process
def test_the_ranks_of_all_workers(site: Start) -> None:
    server = site()
    server.accepted("gang", FORKS, n_workers=2)

    server.running("gang")
    found: list[JobStacks] = []

    def taken() -> bool:
        answer = server.call("GET", paths.job("gang", "stacks"))
        found.append(JobStacks.model_validate_json(answer.text))
        return "2 child processes of ranks 0-1: reads (gang.py:4) <- waits (gang.py:7)" in str(
            found[-1]
        )

    for _ in range(3):  # each order is a new one for the agents
        until(taken)
        assert found[-1].problems == []
        assert [(rank.rank, rank.worker) for rank in found[-1].ranks] == [(0, 0), (1, 1)]


@pytest.mark.process
def test_the_report_of_a_silent_job_shows_where_it_stood_before_it_was_cancelled(
    site: Start,
) -> None:
    server = site()
    server.accepted("gang", FORKS, n_workers=2)
    server.running("gang")
    time.sleep(10.5)
    server.call("POST", "/api/v1/jobs/gang/cancel")
    assert server.ended("gang")["stacks"] == [
        "ranks 0-1: waits (gang.py:8) <- <module> (gang.py:9)",
        "2 child processes of ranks 0-1: reads (gang.py:4) <- waits (gang.py:7)",
    ]


def test_an_answer_without_its_order_is_dropped() -> None:
    async def run() -> None:
        orders = StackOrders(lambda: None)
        orders.answer("none", [{}])
        assert await orders.take(0.01) is None
        assert not orders.is_new("")
        taking = asyncio.create_task(orders.take(10))
        await asyncio.sleep(0)
        orders.answer("another", [{}])
        assert orders.is_new("")
        assert orders.mark is not None
        assert not orders.is_new(orders.mark)
        assert not orders.is_new(None), "a worker of an older version gets no such order"
        orders.answer(orders.mark, [{"pid": 1}])
        assert await taking == [{"pid": 1}]

    asyncio.run(run())


WAITS_FOR_RANK_1 = """
import os, sys, time
folder = os.path.join(os.getcwd(), "site-packages", "torch", "distributed")
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "distributed_c10d.py")
code = compile("import time\\ndef barrier(): time.sleep(600)", path, "exec")
collectives = {}
exec(code, collectives)
def validate():
    time.sleep(600)
def step():
    collectives["barrier"]() if os.environ["RANK"] == "0" else validate()
step()
"""


@pytest.mark.process
def test_a_rank_that_another_pod_waits_for_is_named(site: Start) -> None:
    server = site()
    server.accepted("gang", WAITS_FOR_RANK_1, n_workers=2)
    server.running("gang")
    until(lambda: server.job("gang")["reason"] == "Hung")
    message = server.job("gang")["message"]
    assert message.startswith("rank 0 has waited in barrier (gang.py:12) since ")
    assert message.endswith("; rank 1 is in validate (gang.py:10) and has not entered it")
