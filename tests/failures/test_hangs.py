"""The verdict on a hang, by the stacks of all ranks: cases by hand, and
properties over generated ones.
"""

from collections.abc import Mapping
from datetime import datetime, timezone

import pytest
from hypothesis import given, strategies as st

from client_lib.spec.stacks import Frame, ProcessStacks, RankStacks, ThreadStack
from server_stub.failures.hangs import Hang, find

SINCE = datetime(2026, 11, 21, 12, 0, 58, tzinfo=timezone.utc)
REDUCE = "all_reduce (train.py:41) since 12:00:58 UTC"
LIB = "/env/lib/python3.12/site-packages/torch"
C10D = f"{LIB}/distributed/distributed_c10d.py"

WRAPPER = (f"{LIB}/distributed/c10d_logger.py", "wrapper")
Place = list[tuple[str, str]]

WAITS: Place = [(C10D, "all_reduce"), WRAPPER, ("/s/train.py", "step")]
BARRIER: Place = [(C10D, "barrier"), WRAPPER, ("/s/train.py", "save")]
BACKWARD: Place = [
    (f"{LIB}/autograd/graph.py", "_engine_run_backward"),
    (f"{LIB}/_tensor.py", "backward"),
    ("/s/train.py", "step"),
]
JOINS: Place = [
    (f"{LIB}/distributed/rendezvous.py", "_create_c10d_store"),
    (C10D, "init_process_group"),
    WRAPPER,
    ("/s/train.py", "main"),
]
SLEEPS: Place = [("/s/train.py", "validate"), ("/s/train.py", "main")]
LOADS: Place = [("/usr/lib/python3.12/selectors.py", "poll"), ("/s/data.py", "load")]
STOPPED: Place = []
LEFT: Place = [("/usr/lib/python3.12/threading.py", "_shutdown")]


def rank(number: int, place: Place, line: int = 41, state: str = "sleeping") -> RankStacks:
    frames = [Frame(function=function, file=file, line=line) for file, function in place]
    threads = [ThreadStack(id="0x1", main=True, frames=frames)] if frames else []
    problem = None if frames else "it did not answer within 1.8 s"
    process = ProcessStacks(
        pid=number, name="python", state=state, threads=threads, problem=problem
    )
    return RankStacks(rank=number, worker=0, processes=[process])


def judged(*ranks: RankStacks, quiet: set[int] | None = None) -> Hang | None:
    return find(ranks, ranks, dict.fromkeys(range(len(ranks)) if quiet is None else quiet, SINCE))


def test_a_rank_alone_that_waits_for_others_to_join() -> None:
    found = judged(rank(0, JOINS))
    assert found is not None
    assert "rank 0 has waited in init_process_group (train.py:41)" in found.message
    assert "no other rank runs" in found.message
    assert judged(rank(0, WAITS)) is None
    assert judged(rank(0, JOINS), quiet=set()) is None


@pytest.mark.parametrize(
    ("ranks", "guilty", "message"),
    [
        (
            [rank(0, WAITS), rank(1, SLEEPS, 38)],
            {1},
            (
                f"rank 0 has waited in {REDUCE}; rank 1 is in validate (train.py:38) and has not "
                "entered it"
            ),
        ),
        (
            [rank(0, WAITS), rank(1, LEFT)],
            {1},
            f"rank 0 has waited in {REDUCE}; rank 1 has left the script",
        ),
        (
            [rank(0, WAITS), rank(1, STOPPED, state="stopped"), rank(2, WAITS)],
            {1},
            f"ranks 0, 2 have waited in {REDUCE}; rank 1 is stopped and has not entered it",
        ),
        (
            [rank(0, LOADS), rank(1, BACKWARD), rank(2, BACKWARD), rank(3, SLEEPS)],
            {0, 3},
            "ranks 1-2 have waited in backward (train.py:41) since 12:00:58 UTC; rank 0 is in "
            "poll (data.py:41), rank 3 is in validate (train.py:41) and have not entered it",
        ),
        (
            [rank(0, BARRIER, 7), rank(1, WAITS), rank(2, WAITS)],
            {0},
            (
                f"ranks 1-2 have waited in {REDUCE}, rank 0 is in barrier (train.py:7): these are "
                "different calls"
            ),
        ),
        (
            [rank(0, WAITS), rank(1, WAITS)],
            {0, 1},
            f"ranks 0-1 have waited in {REDUCE}, and none of them goes on",
        ),
    ],
)
def test_the_rank_that_others_wait_for_is_named_with_its_line(
    ranks: list[RankStacks], guilty: set[int], message: str
) -> None:
    assert judged(*ranks) == Hang(frozenset(guilty), message)


@pytest.mark.parametrize(
    ("ranks", "quiet"),
    [
        ([rank(0, SLEEPS), rank(1, WAITS)], {1}),  # rank 0 evaluates or saves
        ([rank(0, SLEEPS), rank(1, WAITS), rank(2, LOADS)], {1, 2}),
        ([rank(0, WAITS), rank(1, WAITS)], {0}),
        # a coordinator of ranks that are at work
        ([rank(0, LOADS), rank(1, WAITS), rank(2, WAITS)], {0}),
        ([rank(0, SLEEPS), rank(1, SLEEPS)], {0, 1}),  # nobody waits for another rank
        ([rank(0, WAITS)], {0}),
        ([], {0}),
    ],
)
def test_no_rank_is_blamed_while_one_is_at_work_or_none_waits(
    ranks: list[RankStacks], quiet: set[int]
) -> None:
    assert judged(*ranks, quiet=quiet) is None


def test_a_rank_that_has_gone_on_to_the_next_collective_does_not_wait() -> None:
    before, after = [rank(0, WAITS, 41), rank(1, SLEEPS)], [rank(0, WAITS, 42), rank(1, SLEEPS)]
    assert find(before, after, {1: SINCE}) is None


@pytest.mark.parametrize(("was", "now"), [(SLEEPS, WAITS), (WAITS, SLEEPS)])
def test_a_rank_that_has_entered_or_left_a_collective_does_not_hang(was: Place, now: Place) -> None:
    """All are quiet, as their steps are small; two of them were in the
    same call twice by chance.
    """
    others = [rank(number, WAITS) for number in (0, 1)]
    quiet = dict.fromkeys(range(3), SINCE)
    assert find([*others, rank(2, was)], [*others, rank(2, now)], quiet) is None
    assert find([*others, rank(2, was)], [*others, rank(2, now)], quiet, known=True) is None


def test_a_rank_that_has_not_answered_once_has_not_moved() -> None:
    """As on a machine with too much to do."""
    told = judged(rank(0, WAITS), rank(1, SLEEPS))
    for slow in ([rank(0, STOPPED), rank(1, SLEEPS)], [rank(0, WAITS), rank(1, STOPPED)]):
        once = [rank(0, WAITS), rank(1, SLEEPS)]
        quiet = dict.fromkeys(range(2), SINCE)
        assert find(slow, once, quiet) == find(once, slow, quiet) == told
        assert find(once, slow, {1: SINCE}) is None, "rank 0 may be at work"


places = st.sampled_from([WAITS, BARRIER, BACKWARD, SLEEPS, LOADS, STOPPED])
jobs = st.lists(st.tuples(places, st.booleans()), max_size=12)


def test_a_known_hang_lasts_though_a_waiting_rank_has_stirred() -> None:
    ranks = [rank(0, WAITS), rank(1, SLEEPS)]
    assert find(ranks, ranks, {1: SINCE}) is None
    found = find(ranks, ranks, {1: SINCE}, known=True)
    assert found
    assert found.guilty == {1}
    assert find(ranks, ranks, {0: SINCE}, known=True) is None


@given(jobs)
def test_only_quiet_ranks_are_blamed_and_somebody_waits(job: list[tuple[Place, bool]]) -> None:
    ranks = [rank(number, place) for number, (place, _) in enumerate(job)]
    quiet: Mapping[int, datetime] = {
        number: SINCE for number, (_, is_quiet) in enumerate(job) if is_quiet
    }
    found = find(ranks, ranks, quiet)
    elsewhere = {
        number for number, (place, _) in enumerate(job) if place in (SLEEPS, LOADS, STOPPED)
    }
    if found:
        assert found.guilty <= quiet.keys()
        assert len(elsewhere) < len(job)
        assert not elsewhere or found.guilty == elsewhere
        assert all(str(number) in found.message or "-" in found.message for number in found.guilty)
    elif elsewhere:
        assert quiet.keys() <= elsewhere or not elsewhere <= quiet.keys()


def test_ranks_that_wait_for_a_worker_that_has_ended_hang() -> None:
    """NCCL waits for them until its time-out."""
    ranks = [rank(0, WAITS), rank(1, WAITS)]
    quiet = {0: SINCE, 1: SINCE}
    assert find(ranks[:1], ranks[:1], quiet) is None
    assert find(ranks[:1], ranks[:1], quiet, ended=[1]) == Hang(
        frozenset({0}), f"rank 0 has waited in {REDUCE}; worker 1 has ended"
    )
    found = find(ranks, ranks, quiet, ended=[1, 2])
    assert found
    assert found.message == f"ranks 0-1 have waited in {REDUCE}; workers 1-2 have ended"
    assert find(ranks, ranks, {0: SINCE}, ended=[2]) is None, "rank 1 may be at work"
    blamed = find(
        [*ranks, rank(2, SLEEPS)], [*ranks, rank(2, SLEEPS)], quiet | {2: SINCE}, ended=[3]
    )
    assert blamed
    assert blamed.guilty == {2}, "it may still enter it"
