"""Metrics of two runs, compared step by step."""

import math

from client_lib.drill.values import Curves, Key, Points, compare, first_step, last_step, noisy

LOSS = Key("loss", 0)


def curves(values: dict[float, float], name: str = "loss", axis: str = "step") -> Curves:
    return {Key(name, 0): Points(axis, values)}


WHOLE = curves({1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0})


def test_equal_values_have_no_difference() -> None:
    found = compare(WHOLE, WHOLE, curves({3: 2.0, 4: 1.0}))
    assert (found.first, found.compared, found.exact) == (None, 2, True)


def test_the_first_difference_has_its_step_and_both_values() -> None:
    found = compare(WHOLE, WHOLE, curves({3: 2.5, 4: 3.0})).first
    assert found
    assert (found.metric, found.rank, found.step) == ("loss", 0, 3)
    assert (found.value, found.expected, found.largest) == (2.5, 2.0, 2.0)


def test_a_difference_within_the_noise_is_none() -> None:
    again = curves({1: 4.0, 2: 3.1, 3: 2.1, 4: 1.0})
    assert noisy(WHOLE, again)
    found = compare(WHOLE, again, curves({3: 2.2, 4: 1.1}))
    assert found.first is None
    assert not found.exact
    beyond = compare(WHOLE, again, curves({3: 2.2, 4: 2.1})).first
    assert beyond
    assert beyond.step == 4


def test_metrics_of_the_machine_are_left_out() -> None:
    for name in ("step_time", "samples_per_second", "tokens/s", "gpu_memory"):
        one = curves({1: 1.0, 2: 2.0}, name)
        assert compare(one, one, curves({2: 9.0}, name)).compared == 0, name


def test_other_names_that_look_like_times_are_compared() -> None:
    for name in ("lifetime_loss", "perplexity", "lr", "grad_norm", "accuracy"):
        one = curves({1: 1.0, 2: 2.0}, name)
        assert compare(one, one, curves({2: 9.0}, name)).first, name


def test_numbered_values_are_compared_from_the_end() -> None:
    whole = curves({1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}, axis="count")
    assert compare(whole, whole, curves({1: 2.0, 2: 1.0}, axis="count")).exact


def test_nan_equals_nan_alone() -> None:
    whole = curves({1: math.nan, 2: 1.0})
    assert compare(whole, whole, curves({1: math.nan})).exact
    assert compare(whole, whole, curves({2: math.nan})).first


def test_steps_of_a_run() -> None:
    assert (first_step(WHOLE), last_step(WHOLE)) == (1, 4)
    assert first_step(curves({1: 1.0}, axis="count")) is None
