"""Who goes first: pure decisions about a queue."""

from dataclasses import replace
from datetime import datetime, timedelta, timezone

from hypothesis import given, strategies as st

from server_stub.runtimes import Attempt
from server_stub.runtimes.instance_types import Size
from server_stub.runtimes.local.scheduling import (
    MANY,
    Capacity,
    Needs,
    Waiting,
    available,
    decide,
    grant,
)

A, B, C, D, E = ((name, 1) for name in "abcde")
START = datetime(2026, 11, 21, tzinfo=timezone.utc)
EIGHT = Capacity(
    gpus=8,
    free_gpus=frozenset(range(8)),
    held_gpus={},
    max_cpu_jobs=2,
    cpu_jobs=0,
    memory_gib=64,
    memory_free_gib=64,
)


def of(
    gpus: int | None,
    workers: int = 1,
    allowed: tuple[int, ...] = tuple(range(8)),
    memory_gib: float = 0,
) -> Needs:
    return Needs(workers, gpus, allowed, memory_gib, None, 1, None)


def never_taken() -> Attempt:
    raise NotImplementedError


def queue(*wanted: Needs, priorities: tuple[int, ...] = ()) -> list[Waiting]:
    """Named a, b, c … in the order of submission."""
    levels = priorities or (0,) * len(wanted)
    return [
        Waiting((chr(ord("a") + n), 1), level, START + timedelta(seconds=n), each, never_taken)
        for n, (each, level) in enumerate(zip(wanted, levels, strict=True))
    ]


def test_gpus_are_shared_out_worker_by_worker() -> None:
    assert decide(queue(of(2, workers=3)), EIGHT).grants == {A: ((0, 1), (2, 3), (4, 5))}


def test_who_names_no_number_gets_all_that_are_free_evenly() -> None:
    five = replace(EIGHT, free_gpus=frozenset({0, 2, 4, 6, 7}))
    assert decide(queue(of(None, workers=2)), five).grants == {A: ((0, 2), (4, 6))}


def test_who_names_no_number_waits_for_one_each() -> None:
    one = replace(EIGHT, free_gpus=frozenset({3}))
    assert decide(queue(of(None, workers=2)), one).waits == {
        A: "waits for 2 GPUs; 7 of 8 GPUs are in use"
    }


def test_what_does_not_fit_says_for_what_it_waits_and_how_many_are_before_it() -> None:
    none_free = replace(EIGHT, free_gpus=frozenset())
    decision = decide(queue(of(8), of(1), of(1), of(2)), none_free)
    assert decision.waits == {
        A: "1st of 4; waits for 8 GPUs; 8 of 8 GPUs are in use",
        B: "2nd of 4; waits for 1 GPU; 8 of 8 GPUs are in use",
        C: "3rd of 4; waits for 1 GPU; 8 of 8 GPUs are in use",
        D: "4th of 4; waits for 2 GPUs; 8 of 8 GPUs are in use",
    }


def test_of_a_long_queue_only_the_front_is_looked_at_again() -> None:
    full = replace(EIGHT, free_gpus=frozenset(), cpu_jobs=2)
    waiting = queue(*[of(0)] * 100)
    waits = decide(waiting, full).waits
    assert len(waits) == 100
    assert waits[waiting[MANY].key].startswith("21st of more than 20; waits for its turn")
    assert waits[waiting[-1].key] == (
        "more than 20 jobs before it; waits for its turn: jobs without GPUs run 2 at a time"
    )
    for each in waiting:
        each.message = waits[each.key]
    assert len(decide(waiting, full).waits) == MANY + 1


def test_priority_goes_before_submission() -> None:
    decision = decide(queue(of(8), of(8), of(8), priorities=(1, 2, 2)), EIGHT)
    assert list(decision.grants) == [B]
    assert list(decision.waits) == [C, A]


def test_a_large_job_is_not_starved_by_small_ones_behind_it() -> None:
    seven = replace(EIGHT, free_gpus=frozenset(range(7)))
    decision = decide(queue(of(8), of(1)), seven)
    assert decision.grants == {}
    # the free ones are kept for a
    assert decision.waits[B] == "2nd of 2; waits for 1 GPU; 1 of 8 GPUs are in use"


def test_what_a_waiting_job_could_not_use_goes_to_others() -> None:
    busy = replace(EIGHT, free_gpus=frozenset({2, 3}))
    assert decide(queue(of(2, allowed=(0, 1)), of(2, allowed=(2, 3))), busy).grants == {
        B: ((2, 3),)
    }


def test_a_stranger_on_a_gpu_holds_back_one_job_and_not_the_queue() -> None:
    held = replace(
        EIGHT,
        free_gpus=frozenset(range(1, 8)),
        held_gpus={0: "GPU 0: pid 7 (python) holds 3.0 GiB"},
    )
    decision = decide(queue(of(8), of(2)), held)
    assert decision.waits == {
        A: "waits for 8 GPUs; 0 of 8 GPUs are in use; GPU 0: pid 7 (python) holds 3.0 GiB"
    }
    assert decision.grants == {B: ((1, 2),)}


def test_bounds_are_said() -> None:
    none_free = replace(EIGHT, free_gpus=frozenset({0}))
    assert decide(queue(of(1, allowed=(2, 3))), none_free).waits == {
        A: "waits for 1 GPU (GPU 2, 3); 7 of 8 GPUs are in use"
    }


def test_jobs_without_gpus_run_up_to_the_setting_and_need_no_gpu() -> None:
    decision = decide(queue(of(8), of(8), of(0), of(0), of(0)), EIGHT)
    assert list(decision.grants) == [A, C, D]
    assert decision.waits[E] == "2nd of 2; waits for its turn: jobs without GPUs run 2 at a time"


def test_memory_is_counted() -> None:
    decision = decide(queue(of(0, memory_gib=48), of(0, memory_gib=32)), EIGHT)
    assert decision.waits == {B: "waits for 32 of 64 GiB memory"}


def test_all_memory_can_be_had_when_nothing_runs() -> None:
    assert decide(queue(of(0, memory_gib=64)), EIGHT).grants == {A: ((),)}


_needs = st.builds(
    of,
    gpus=st.one_of(st.none(), st.integers(0, 4)),
    workers=st.integers(1, 3),
    allowed=st.sets(st.integers(0, 7)).map(lambda found: tuple(sorted(found))),
    memory_gib=st.sampled_from([0, 10, 40]),
)


@given(st.lists(_needs, max_size=8), st.sets(st.integers(0, 7)), st.integers(0, 3))
def test_whatever_waits_nothing_is_given_twice_or_beyond_what_is_there(
    wanted: list[Needs], free: set[int], cpu_jobs: int
) -> None:
    capacity = replace(EIGHT, free_gpus=frozenset(free), cpu_jobs=cpu_jobs)
    waiting = queue(*wanted)
    decision = decide(waiting, capacity)
    assert decision.grants.keys() | decision.waits.keys() == {w.key for w in waiting}
    given_out = [
        index for granted in decision.grants.values() for gpus in granted for index in gpus
    ]
    assert len(given_out) == len(set(given_out))
    assert set(given_out) <= free
    started = [w for w in waiting if w.key in decision.grants]
    without_gpus = sum(not w.needs.wants_gpus for w in started)
    assert without_gpus == 0 or cpu_jobs + without_gpus <= capacity.max_cpu_jobs
    assert sum(w.needs.memory_gib for w in started) <= capacity.memory_free_gib
    for w in started:
        assert len(decision.grants[w.key]) == w.needs.workers
        assert set().union(*decision.grants[w.key]) <= set(w.needs.allowed)
        if w.needs.gpus is not None:
            assert {len(gpus) for gpus in decision.grants[w.key]} == {w.needs.gpus}


@given(st.lists(_needs, min_size=1, max_size=6), st.sets(st.integers(0, 7)))
def test_the_first_of_the_queue_starts_whenever_it_fits(
    wanted: list[Needs], free: set[int]
) -> None:
    capacity = replace(EIGHT, free_gpus=frozenset(free))
    first = wanted[0]
    usable = sorted(free & set(first.allowed))
    if len(usable) >= first.least_gpus:
        assert decide(queue(*wanted), capacity).grants[A] == grant(first, usable)


@given(st.integers(1, 64), st.integers(0, 40), st.floats(0, 64), st.integers(1, 32))
def test_no_more_workers_are_free_than_there_are_cores(
    cores: int, cpu_jobs: int, cpu: float, turns: int
) -> None:
    capacity = replace(EIGHT, gpus=0, free_gpus=frozenset(), max_cpu_jobs=turns, cpu_jobs=cpu_jobs)
    free = available(Size(name="cpu", cpu=cpu), capacity, cores)
    assert 0 <= free <= cores
    assert free == 0 or free * cpu <= cores - cpu_jobs
    idle = replace(capacity, cpu_jobs=0)
    assert available(Size(name="cpu", cpu=cores), idle, cores) == 1
    assert available(Size(name="a", gpus=2), EIGHT, cores) == 4
