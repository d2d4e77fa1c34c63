"""The value of a metric that belongs to a checkpoint."""

import math

import pytest

from client_lib.checkpoints.metric_values import MetricValues, best_of


def values(*points: tuple[float | None, float, float]) -> MetricValues:
    found = MetricValues()
    for step, time, value in points:
        found.add(step, time, value)
    return found


def test_the_value_of_its_step_counts_also_if_it_came_later() -> None:
    found = values((100, 10.0, 0.1), (200, 20.0, 0.2), (100, 30.0, 0.3))
    assert found.of(100, modified=5.0) == 0.3
    assert found.of(200, modified=99.0) == 0.2


def test_without_its_step_the_last_value_before_it_counts() -> None:
    found = values((100, 10.0, 0.1), (None, 20.0, 0.2))
    assert found.of(150, modified=15.0) == 0.1
    assert found.of(None, modified=25.0) == 0.2
    assert found.of(None, modified=19.95) == 0.2  # read a moment after its print
    assert found.of(None, modified=5.0) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_does_not_count(value: float) -> None:
    assert values((1, 10.0, 0.1), (2, 20.0, value)).of(2, modified=30.0) == 0.1


def test_of_very_many_values_the_later_ones_are_kept() -> None:
    found = MetricValues()
    for step in range(250_000):
        found.add(step, float(step), float(step))
    assert found.of(249_999, 0.0) == 249_999
    assert found.of(None, 240_000.0) == 240_000
    assert found.of(10, 20.0) is None


def test_the_last_of_equal_ones_is_the_best() -> None:
    valued = [("a", 0.5), ("b", 0.9), ("c", None), ("d", 0.9), ("e", 0.1), ("f", 0.1)]
    assert best_of(valued, is_larger=True) == "d"
    assert best_of(valued, is_larger=False) == "f"
    assert best_of([("a", None)], is_larger=True) is None
