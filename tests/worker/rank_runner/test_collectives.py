"""Entries of real ranks into collectives: the slow one is found, also in
the backward pass of DDP.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from client_lib.worker.rank_runner import collectives
from server_stub.curves import lag
from tests.kit.processes import free_port
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
for step in range(25):
    if PART == "forward" and dist.get_rank() == 1:
        time.sleep(0.2)
    Slow.apply(model(torch.ones(4, 16))).sum().backward()
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.process
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_the_rank_that_is_late_is_named(worker: Callable[..., Worker], part: str) -> None:
    made = worker(
        SCRIPT.replace("PART", repr(part)), processes_per_worker=2, master_port=free_port()
    )
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


class Clocks(SimpleNamespace):
    """In the place of `time`; `run` breaks off after an hour."""

    now = used = 0.0

    def time(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return self.used

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > 3600:
            raise TimeoutError


class Sender(collectives.EntrySender):
    """Touches and sends as the test says, without a pipe."""

    def __init__(self, touch: Callable[[], None], send: Callable[[], None]) -> None:
        self._on_touch = touch
        self._on_send = send

    def _touch(self) -> None:
        self._on_touch()

    def send(self) -> None:
        self._on_send()


def timed_by(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> None:
    # the sender takes no clock: it is part of the one file that runs in each rank
    monkeypatch.setattr(collectives, "time", clocks)


@pytest.mark.parametrize(("touch_s", "send_s"), [(1e-5, 1e-3), (1e-3, 0.5), (0.01, 1e-3)])
def test_touching_and_sending_share_one_limit_of_their_time(
    touch_s: float, send_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks, touched = Clocks(), []

    def uses(seconds: float) -> None:
        clocks.used += seconds
        if seconds == touch_s:
            touched.append(clocks.now)

    timed_by(clocks, monkeypatch)
    Sender(lambda: uses(touch_s), lambda: uses(send_s)).run()
    assert clocks.used <= 0.005 * 3600
    pauses = [after - before for before, after in pairwise(touched)]
    assert max(pauses) <= 4.0  # a rank that enters none for 10 s is quiet


class SetBack(Clocks):
    """A clock that is set back during the first sleep."""

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.now > 3000.0:
            self.now -= 1000.0


def test_a_clock_that_is_set_back_delays_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, sent = SetBack(now=3000.0), []

    def send() -> None:
        sent.append(clocks.now)
        raise TimeoutError

    timed_by(clocks, monkeypatch)
    Sender(lambda: None, send).run()
    assert sent == [2001.0]
