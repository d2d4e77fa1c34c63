"""The attempts that wait: in order, and without what is on disk anyway."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, Submitter
from server_stub.runtimes import Attempt
from server_stub.runtimes.local.scheduling import Capacity, Needs, Waiting, decide

NEEDS = Needs(workers=1, gpus=0, allowed=(), memory_gib=0, size=None, cores=1, processes=None)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ATTEMPT = Attempt(
    job_id="a",
    job_name="a",
    number=1,
    spec=JobSpec(script="a.py"),
    code=CodeInPlace(),
    submitter=Submitter(environment={"A": "x" * 1000}),
    secret_values={},
    job_dir=Path("/a"),
    snapshot=None,
    created_at=START,
)


def waiting(key: str, priority: int = 1, second: int = 0) -> Waiting:
    return Waiting((key, 1), priority, START + timedelta(seconds=second), NEEDS, lambda: ATTEMPT)


def test_the_order_is_that_of_priority_then_acceptance() -> None:
    given = [("b", 1, 1), ("c", 1, 2), ("a", 1, 0), ("first", 2, 3), ("last", 0, 0)]
    room = Capacity(0, frozenset(), {}, max_cpu_jobs=5, cpu_jobs=0, memory_gib=1, memory_free_gib=1)
    grants, _ = decide([waiting(*each) for each in given], room)
    assert [name for name, _ in grants] == ["first", "a", "b", "c", "last"]


def test_one_that_waits_is_dropped_and_read_again_when_its_turn_comes() -> None:
    read: list[Attempt] = []

    def reload() -> Attempt:
        read.append(replace(ATTEMPT))
        return read[-1]

    one = replace(waiting("a"), take=lambda: replace(ATTEMPT, reload=reload))
    one.unload()
    assert not read
    assert one.take() is read[0]


def test_one_that_cannot_be_read_again_is_kept() -> None:
    one = waiting("a")
    one.unload()
    assert one.take() is ATTEMPT
