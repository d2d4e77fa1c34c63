"""The slow rank by the entries of all ranks: of simulated steps, and of what a script may write."""

import json
import math
from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client_lib.worker.rank_runner.collectives import ENTRIES_MAX
from server_stub.curves import lag
from server_stub.curves.lag import Entries

STEP_S, START = 0.02, 1_795_000_000.0


def entries_of_job(
    ranks: int,
    n_steps: int,
    delays: dict[int, float],
    buckets: int = 0,
    ahead: float = 0.0,
    often: int = 1,
) -> list[Entries]:
    """Two workers with so many ranks each. `delays`: how long these ranks need longer in each
    `often`th step; `buckets` that no rank waits for stand before the collective that ends a step;
    `ahead`: the clock of the second worker."""
    workers, begin = [Entries(), Entries()], START
    entered: dict[int, list[float]] = {rank: [] for rank in range(2 * ranks)}
    for step in range(n_steps):
        for rank, times in entered.items():
            first = (
                begin + STEP_S + (delays.get(rank, 0.0) if step % often == 0 else 0.0) + rank * 1e-5
            )
            times += [first + bucket * 1e-3 for bucket in range(buckets + 1)]
        begin = max(times[-1] for times in entered.values())
    for rank, times in entered.items():
        shifted = [at + ahead * (rank >= ranks) for at in times]
        for at in range(0, len(times), 100):
            _, _, sent = json.loads(line(rank, at + 1, buckets + 1, shifted[at : at + 100]))
            workers[rank // ranks].add(rank, sent)
    return workers


def line(rank: int, first: int, period: int, times: list[float]) -> str:
    """A line as rank_runner sends it."""
    units = [round(at * 1e4) for at in times]
    deltas = [after - before for before, after in pairwise(units)]
    return json.dumps([rank, lag.KIND, ["gloo:0", first, period, units[0] / 1e4, deltas]])


def found(workers: list[Entries]) -> lag.Straggler | None:
    return lag.straggler(lag.steps([worker.of_rank for worker in workers]), len(workers))


@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(0.012, 0.2),
    st.sampled_from([0.0, 5.0, -86400.0]),
    st.data(),
)
def test_a_rank_that_is_always_late_is_named_with_what_it_costs(
    ranks: int, buckets: int, delay: float, ahead: float, data: st.DataObject
) -> None:
    guilty = data.draw(st.integers(0, 2 * ranks - 1))
    slow = found(entries_of_job(ranks, 50, {guilty: delay}, buckets, ahead if ranks > 1 else 0.0))
    assert slow
    assert (slow.rank, slow.steps >= 45) == (guilty, True)
    cost = delay / (STEP_S + buckets * 1e-3 + delay)
    assert slow.share == pytest.approx(cost, abs=0.05)
    assert slow.lag_s == pytest.approx(delay, abs=0.001)


@given(st.integers(1, 4), st.integers(0, 3), st.integers(2, 9))
def test_no_rank_is_named_that_is_late_now_and_then(ranks: int, buckets: int, often: int) -> None:
    assert found(entries_of_job(ranks, 60, {0: 0.05}, buckets, often=often)) is None
    assert found(entries_of_job(ranks, 60, {})) is None


@pytest.mark.parametrize("ahead", [0.0, 0.009, 0.05, -3600.0])
def test_a_clock_that_is_wrong_makes_nobody_slow(ahead: float) -> None:
    assert found(entries_of_job(2, 50, {}, ahead=ahead)) is None


@pytest.mark.parametrize("skew", [0.015, 0.05, -3600.0])
def test_clocks_that_are_known_are_set_right(skew: float) -> None:
    for delays in ({}, {1: 0.05}):
        workers = [worker.of_rank for worker in entries_of_job(1, 50, delays, ahead=skew)]
        slow = lag.slow_rank(workers, [0.0, skew + 0.002])
        assert (slow.rank if slow else None) == next(iter(delays), None)


def test_entries_of_a_long_job_are_few_and_can_be_saved() -> None:
    workers = entries_of_job(1, 100_000, {1: 0.05})
    assert all(len(windows) <= 64 for worker in workers for windows in worker.of_rank.values())
    again = [Entries(json.loads(json.dumps(worker.saved()))) for worker in workers]
    assert found(again) == found(workers)
    assert str(found(again)) == (
        "rank 1 is slow: it enters collectives 50 ms after the others in 50 of the last 50 steps, "
        "which costs 71% of their time"
    )


def test_entries_that_are_sent_twice_change_nothing() -> None:
    once, twice = entries_of_job(1, 220, {1: 0.05}), entries_of_job(1, 220, {1: 0.05})
    twice[0].of_rank[0].append(twice[0].of_rank[0][-1])
    assert lag.steps([worker.of_rank for worker in twice]) == lag.steps(
        [worker.of_rank for worker in once]
    )


def test_a_restarted_rank_begins_again() -> None:
    before, after = entries_of_job(1, 40, {0: 0.05}), entries_of_job(1, 60, {1: 0.05})
    for worker, newer in zip(before, after, strict=True):
        for rank, windows in newer.of_rank.items():
            worker.of_rank[rank] += [
                w._replace(times=array("d", (at + 100 for at in w.times))) for w in windows
            ]
    slow = found(before)
    assert slow
    assert slow.rank == 1


@pytest.mark.parametrize(
    "sent",
    [
        None,
        [],
        ["g", 1, 0, 0.0, [0] * 5000],
        ["g", "x", 0, 0.0, []],
        ["g", 1, 0, None, [1]],
        [1, 1, 1, 1, [1]],
        [["g"], 1, 0, 0.0, []],
        ["g", 1, 1, math.nan, [1]],
        ["g", 1, 1, 1e308, [10**312]],
        ["g", 10**400, 1, 0.0, [1]],
    ],
)
def test_what_no_rank_sends_is_refused(sent: Any) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        Entries().add(0, sent)


def sends(entries: Entries, rank: int, windows: int, length: int, late: float = 0.0) -> None:
    """Add so many windows, one after the other, of a job with a collective in each step."""
    for window in range(windows):
        first = window * length
        times = [START + STEP_S * n + late for n in range(first, first + length)]
        entries.add(rank, json.loads(line(rank, first, 1, times))[2])


@pytest.mark.parametrize(("length", "most"), [(ENTRIES_MAX, 8), (1, 64)])
def test_the_slow_rank_is_looked_for_in_few_windows(
    length: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, real = Entries(), lag._times
    for rank in range(4):
        sends(entries, rank, 64, length, late=0.01 * (rank == 3))
    expected, searched = lag.straggler(lag.steps([entries.of_rank])), []

    def times(windows: Sequence[lag.Window], group: str, ahead: float) -> dict[int, float]:
        searched.append(len(windows))
        return real(windows, group, ahead)

    # counts the searches, which show in no result
    monkeypatch.setattr(lag, "_times", times)
    slow = lag.slow_rank([entries.of_rank])
    assert slow == expected
    assert slow
    assert slow.rank == 3
    assert max(searched) == most


def test_the_memory_of_what_a_job_sends_is_bounded_and_known() -> None:
    entries = Entries()
    for rank in range(100):
        try:
            sends(entries, rank, 2, 10)
        except ValueError:
            assert rank >= 64
    sends(entries, 0, 200, ENTRIES_MAX)  # a rank of a full worker sends on
    with pytest.raises(ValueError, match="more than a rank sends"):
        sends(entries, 0, 1, ENTRIES_MAX + 1)
    assert (len(entries.of_rank), len(entries.of_rank[1])) == (64, 2)
    assert all(
        window.times.itemsize == 8 for windows in entries.of_rank.values() for window in windows
    )
    times = sum(len(window.times) for windows in entries.of_rank.values() for window in windows)
    windows = sum(map(len, entries.of_rank.values()))
    assert entries.size == 8 * times + 500 * windows
    assert Entries(json.loads(json.dumps(entries.saved()))).size == entries.size
    assert Entries(json.loads(json.dumps(entries.saved()))).of_rank == entries.of_rank
