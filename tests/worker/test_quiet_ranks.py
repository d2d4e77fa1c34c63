"""Which ranks are quiet, by the samples of what they do: generated ones,
and those of real processes.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.processes import below
from client_lib.worker.quiet_ranks import take
from client_lib.worker.stillness import QUIET_S, Sample, Stillness, Use, moved
from tests.kit.processes import free_port
from tests.worker.conftest import Worker

Make = Callable[..., Worker]


def sample(at: float, work: float = 0.0, busy: bool = False) -> Sample:
    return Sample(at, busy, Use(work, 0), Use(work, 0), None)


def still(*moves: bool) -> Stillness:
    """A rank that was sampled each second."""
    rank, work = Stillness(sample(0.0)), 0.0
    for second, has_moved in enumerate(moves, start=1):
        work += has_moved
        rank.add(sample(float(second), work))
    return rank


@given(st.lists(st.booleans(), max_size=200))
def test_a_rank_is_quiet_only_after_ten_seconds_without_a_move(moves: list[bool]) -> None:
    found = still(*moves).quiet_s
    unmoved = next((n for n, has_moved in enumerate(reversed(moves)) if has_moved), len(moves))
    assert found in (0.0, unmoved)
    assert unmoved >= QUIET_S or found == 0.0


@given(st.lists(st.booleans(), max_size=200))
def test_every_rank_that_moves_no_more_is_quiet_in_the_end(moves: list[bool]) -> None:
    longest = 6 * (len(moves) + 10)
    assert still(*moves, *[False] * longest).quiet_s >= QUIET_S


@given(st.floats(0.1, 4.0), st.floats(0, 1e6), st.integers(0, 10**12), st.booleans())
def test_a_rank_that_did_nothing_has_not_moved(
    passed: float, cpu_s: float, size: int, children: bool
) -> None:
    use = Use(cpu_s, size)
    before = Sample(5.0, False, use, use, use if children else None)
    assert not moved(before, before._replace(at=5.0 + passed))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ({"busy": True}, True),
        ({"main": Use(0.05, 0), "process": Use(0.05, 0)}, True),
        ({"main": Use(0, 1), "process": Use(0, 1)}, True),
        ({"process": Use(0.01, 200)}, False),  # a helper thread that prints lines
        ({"process": Use(0.5, 0)}, True),  # a thread for which the main thread waits
        ({"children": Use(0.5, 0)}, True),  # a data loader that computes
        ({"children": Use(0, 10**6)}, True),  # or reads
        ({"at": 60.0}, True),  # nobody has looked for a minute
    ],
)
def test_what_a_move_is(after: dict[str, object], expected: bool) -> None:
    nothing = Use(0.0, 0)
    before = Sample(0.0, False, nothing, nothing, nothing)
    assert moved(before, before._replace(**{"at": 1.0, **after})) is expected  # type: ignore[arg-type]


def test_a_rank_whose_input_and_output_are_not_known_is_not_quiet() -> None:
    """The kernel shows them to the same user only, and to root."""
    observer = os.fork()
    if observer == 0:
        if os.getuid() == 0:
            os.setuid(65534)
        seen = take(1, with_children=False)
        os._exit(0 if seen and moved(seen, seen._replace(at=seen.at + 1)) else 1)
    assert os.waitpid(observer, 0)[1] == 0


def test_a_rank_that_usually_pauses_for_long_gets_more_patience() -> None:
    steps = [True, *[False] * 5] * 4
    assert still(*steps, *[False] * 24).quiet_s == 0.0
    assert still(*steps, *[False] * 60).quiet_s > QUIET_S


def test_a_rank_that_enters_collectives_is_not_quiet() -> None:
    rank = Stillness(sample(0.0))
    for second in range(1, 42):
        rank.add(sample(float(second))._replace(entered=float(second // 4)))
        assert rank.quiet_s == 0.0
    for second in range(42, 64):
        rank.add(sample(float(second))._replace(entered=10.0))
    assert rank.quiet_s == 24.0, "since the sample before the one that showed the last entry"


def test_what_was_done_for_us_is_no_move() -> None:
    rank = still(*[False] * 12)
    rank.last = sample(13.0, work=5.0)
    assert rank.quiet_s == 13.0


@pytest.mark.process
def test_the_launcher_tells_which_ranks_are_quiet_and_which_are_not_any_more(worker: Make) -> None:
    script = """
        import os, threading, time
        def prints():
            while True:
                print("a line of a helper thread", flush=True)
                time.sleep(0.5)
        def computes(seconds):
            end = time.time() + seconds
            while time.time() < end:
                sum(range(10**5))
        rank = int(os.environ["RANK"])
        if rank == 0:  # quiet, whatever its helper prints
            threading.Thread(target=prints, daemon=True).start()
            time.sleep(16)
            computes(60)
        if rank == 1:  # waits for a child that computes
            if os.fork() == 0:
                computes(60)
            os.wait()
        computes(60)
    """
    one = worker(script, processes_per_worker=3).start().go()
    assert one.connection
    messages: list[dict[str, Any]] = []
    while len(messages) < 3:
        message = one.connection.receive(30.0)
        assert message is not None
        messages.append(message)
        if len(messages) == 1:
            # the stacks that a rank writes are no progress
            one.connection.send(control.order(control.STACKS))
    first, stacks, last = messages
    assert first["event"] == control.QUIET
    assert list(first["ranks"]) == ["0"]
    assert QUIET_S <= first["ranks"]["0"] < 14.0
    assert stacks == {"event": control.STACKS}
    assert last == {"event": control.QUIET, "ranks": {}}


@pytest.mark.process
def test_ranks_stay_quiet_while_their_stacks_are_taken(worker: Make) -> None:
    script = """
        import os, signal, time
        # Rank 0 does not answer, so that taking the stacks lasts for longer than a round.
        if os.environ["RANK"] == "0":
            signal.pthread_sigmask(signal.SIG_BLOCK, [50])
        time.sleep(600)
    """
    one = worker(script, processes_per_worker=2).start().go()
    assert one.connection
    told: dict[str, float] = {}
    while len(told) < 2:
        message = one.connection.receive(30.0)
        assert message is not None
        told = message["ranks"]
    one.connection.send(control.order(control.STACKS))
    assert one.connection.receive(10.0) == {"event": control.STACKS}
    with pytest.raises(TimeoutError):
        one.connection.receive(3.0)


@pytest.mark.process
def test_ranks_that_sleep_between_collectives_are_quiet_only_after_the_last_one(
    worker: Make,
) -> None:
    """They use next to no CPU time, and one of them waits in the same call for most of the time."""
    script = """
        import os, sys, time
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        x = torch.ones(8)
        for step in range(4):
            if os.environ["RANK"] == "1":
                time.sleep(3)
            dist.all_reduce(x)
        print("stands", time.time(), flush=True)
        if os.environ["RANK"] == "1":
            time.sleep(600)
        dist.all_reduce(x)
    """
    one = worker(script, processes_per_worker=2, master_port=free_port()).start().go()
    assert one.connection
    told: dict[str, float] = {}
    while len(told) < 2:
        message = one.connection.receive(60.0)
        assert message is not None
        told = message["ranks"]
    stood = min(
        float(record.text.split()[1])
        for record in one.records()
        if record.text.startswith("stands")
    )
    assert time.time() - stood > 6 * 3 - 2, "the patience with ranks whose steps take 3 s"
    assert all(still_s < time.time() - stood + 2 for still_s in told.values())


def test_the_children_of_children_are_found() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        os.read(reader, 1) if grandchild == 0 else os.waitpid(grandchild, 0)
        os._exit(0)
    try:
        while len(below(child)) != 1:
            pass
        assert set(below(os.getpid())) >= {child, *below(child)}
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
