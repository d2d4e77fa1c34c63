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


def test_a_nan_is_found_after_an_earlier_look_and_its_step_stays() -> None:
    curve = points([1.0, math.inf, -math.inf])
    assert curve.first_nan is None
    curve.add(7.0, 0.7, math.nan)
    assert curve.first_nan == 7.0
    curve.add(8.0, 0.8, math.nan)
    assert curve.first_nan == 7.0
    assert curve.joined(points([1.0])).first_nan == 7.0
    assert points([1.0]).joined(curve).first_nan == 7.0
    assert curve.thinned_to(4).first_nan == 7.0
