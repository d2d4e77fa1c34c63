"""Fewer points that look the same."""

import math

from hypothesis import given, strategies as st

from server_stub.curves.points import Points


def points(values: list[float]) -> Points:
    made = Points("step", "stdout")
    for step, value in enumerate(values):
        made.add(float(step), step / 10, value)
    return made


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=300), st.integers(4, 50))
def test_the_ends_the_least_and_the_greatest_stay(values: list[float], most: int) -> None:
    fewer = points(values).thinned_to(most)
    assert len(fewer) <= max(most, 4)
    assert min(fewer.values) == min(values)
    assert max(fewer.values) == max(values)
    assert (fewer.steps[0], fewer.steps[-1]) == (0, len(values) - 1)
    assert list(fewer.steps) == sorted(set(fewer.steps))
    assert all(
        values[int(step)] == value for step, value in zip(fewer.steps, fewer.values, strict=True)
    )


@given(st.integers(0, 999), st.integers(4, 50))
def test_the_first_nan_stays(first: int, most: int) -> None:
    fewer = points([1.0 if n < first else math.nan for n in range(1000)]).thinned_to(most)
    assert any(math.isnan(value) for value in fewer.values)


def test_a_lost_curve_is_found_after_an_earlier_look_and_its_step_stays() -> None:
    curve = points([1.0, math.inf, -math.inf, 2.0])
    assert curve.lost_from() is None
    for _ in range(4):
        curve.add(7.0, 0.7, math.nan)
        assert curve.lost_from() is None  # it came back from a stretch of two
    curve.add(7.0, 0.7, math.inf)
    assert curve.lost_from() == 4
    assert curve.lost_from() == 4
    assert curve.thinned_to(4).lost_from() is not None
    curve.add(8.0, 0.8, 0.5)
    assert curve.lost_from() is None


def test_nan_between_evaluations_loses_no_curve() -> None:
    """A script prints NaN in each step that evaluates nothing."""
    values = [0.5 if step % 10 == 9 else math.nan for step in range(1, 100)]
    curve = points([])
    for step, value in enumerate(values):
        curve.add(float(step), step / 10, value)
        assert curve.lost_from() is None or step < 9, step
    assert points(values).lost_from() is None


def test_one_nan_at_the_end_of_finite_values_is_a_loss() -> None:
    assert points([3.0, 2.0, math.nan]).lost_from() == 2
    assert points([math.nan, math.nan]).lost_from() == 0
    assert points([]).lost_from() is None
