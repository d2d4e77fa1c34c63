"""Rules over curves: what is found, where, and what is not."""

import math
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from client_lib.spec.alarm import parse
from server_stub.curves.alarms import Alarms, Finding, Good, order
from server_stub.curves.points import Axis, Points

NAN, INF = math.nan, math.inf
Curves = dict[tuple[Any, str], Points]


def curve(
    values: Iterable[float], *, axis: Axis = "step", every: float = 1.0, seconds: float = 1.0
) -> Points:
    """Values from step 0 on."""
    made = Points(axis, "stdout")
    for number, value in enumerate(values):
        step = float(number + 1) if axis == "count" else number * every
        made.add(step, number * seconds, value)
    return made


def findings(
    rules: Sequence[str] | str, curves: Curves, used: Curves | None = None
) -> list[Finding]:
    texts = [rules] if isinstance(rules, str) else rules
    alarms = Alarms([parse(text) for text in texts])
    alarms.look(0, curves, {name: points for (_, name), points in (used or {}).items()})
    return alarms.found()


def said(rule: str, curves: Curves, used: Curves | None = None) -> str:
    """What is said of the one rule, without the rule; "": it is not true."""
    return "; ".join(
        each.sentence.removeprefix(f"alarm `{rule}`: ") for each in findings(rule, curves, used)
    )


def noisy(values: Iterable[float], noise: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [value + draw.gauss(0.0, noise) for value in values]


def decay(steps: int) -> list[float]:
    return [1.0 + 2.0 * math.exp(-step / 100) for step in range(steps)]


# --- conditions of single values

FINE = [3.0, 2.5, 2.0, 1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        ("nan -> stop", [*FINE, NAN, NAN, NAN], "loss was NaN from step 6"),
        ("nan -> stop", [*FINE, INF, NAN, NAN], "loss was infinite from step 6"),
        ("nan -> stop", [NAN, NAN, NAN], "loss was NaN from step 0"),
        ("nan -> stop", [*FINE, NAN, NAN, 0.5, NAN, NAN], ""),
        ("nan for 1 step -> stop", [*FINE, NAN, 0.5], "loss was NaN from step 6"),
        ("nan for 5 steps -> stop", [*FINE, *[NAN] * 4], ""),
        ("nan for 5 steps -> stop", [*FINE, *[NAN] * 5], "loss was NaN from step 6"),
        ("nan for 4 s -> stop", [*FINE, *[NAN] * 4], ""),
        ("nan for 4 s -> stop", [*FINE, *[NAN] * 5], "loss was NaN from step 6"),
        ("loss > 10 -> stop", [*FINE, 11.0], "loss was above 10 (now 11) from step 6"),
        ("loss > 10 -> stop", [*FINE, 10.0, NAN], ""),
        ("loss > 10 -> stop", [*FINE, INF], "loss was above 10 (now inf) from step 6"),
        ("loss >= 10 -> stop", [*FINE, 10.0], "loss was at least 10 (now 10) from step 6"),
        ("loss < 1 -> stop", FINE, "loss was below 1 (now 0.5) from step 5"),
        ("loss <= 1 -> stop", FINE, "loss was at most 1 (now 1) from step 4"),
        ("loss > 10 for 3 steps -> stop", [11.0, 11.0, 9.0, 11.0, 11.0], ""),
        ("loss > 10 for 3 steps -> stop", [9.0, NAN, NAN, NAN, NAN], ""),
        (
            "loss > 10 for 3 steps -> stop",
            [9.0, 11.0, NAN, NAN],
            "loss was above 10 (now nan) from step 1",
        ),
        (
            "loss > 10 for 3 steps -> stop",
            [9.0, 11.0, NAN, 12.0],
            "loss was above 10 (now 12) from step 1",
        ),
    ],
)
def test_a_property_of_single_values_must_last(
    rule: str, values: list[float], expected: str
) -> None:
    assert said(rule, {(0, "loss"): curve(values)}) == expected


def test_a_span_counts_the_steps_that_the_script_prints() -> None:
    values = {(0, "loss"): curve([1.0, 20.0, 20.0], every=100.0)}
    assert said("loss > 10 for 50 steps -> stop", values).endswith("from step 100")
    assert said("loss > 10 for 500 steps -> stop", values) == ""
    without_steps = {(0, "loss"): curve([1.0, 20.0, 20.0], axis="count")}
    assert said("loss > 10 for 2 steps -> stop", without_steps).endswith("from value 2")
    assert said("loss > 10 for 3 steps -> stop", without_steps) == ""


def test_steps_that_begin_again_in_each_epoch_are_counted_on() -> None:
    points = Points("step", "stdout")
    for number in range(60):
        points.add(float(number % 20), float(number), 20.0)
    assert said("loss > 10 for 50 steps -> stop", {(0, "loss"): points})
    assert not said("loss > 10 for 61 steps -> stop", {(0, "loss"): points})


def test_the_rank_on_which_it_began_first_is_named() -> None:
    lost_later = curve([*FINE, *[NAN] * 5])
    lost_earlier = curve([*FINE[:4], *[NAN] * 7])
    curves = {(0, "loss"): lost_later, (2, "loss"): lost_earlier, (1, "loss"): curve(FINE)}
    (found,) = findings("nan -> stop", curves)
    assert found.sentence == "alarm `nan -> stop`: loss was NaN on rank 2 from step 4"
    assert found.good == Good(step=3.0, time=3.0)


def test_the_last_good_point_is_known_where_there_was_one() -> None:
    (found,) = findings("nan -> stop", {(0, "loss"): curve([NAN] * 3)})
    assert found.good is None
    (found,) = findings("nan -> stop", {(0, "loss"): curve([1.0, *[NAN] * 3], axis="count")})
    assert found.good == Good(step=None, time=0.0)


def test_steps_that_begin_again_say_nothing_about_the_steps_of_checkpoints() -> None:
    points = Points("step", "stdout")
    for number in range(60):
        points.add(float(number % 20), float(number), 20.0 if number > 50 else 1.0)
    (found,) = findings("loss > 10 -> retry", {(0, "loss"): points})
    assert found.good == Good(step=None, time=50.0)


@pytest.mark.parametrize("step", [INF, -INF, NAN, 1e300])
@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("loss rises for 200 steps -> stop", [float(step) for step in range(400)]),
        ("nan for 5 steps -> stop", [*FINE, *[NAN] * 5]),
    ],
)
def test_a_point_with_an_absurd_step_is_left_out(
    rule: str, values: list[float], step: float
) -> None:
    points = Points("step", "metrics")
    points.add(0.0, 0.0, 0.0)
    points.add(step, 0.0, 0.0)
    for number, value in enumerate(values):
        points.add(number + 1.0, number + 1.0, value)
    without = curve([0.0, *values])
    assert said(rule, {(0, "loss"): points}) == said(rule, {(0, "loss"): without}) != ""


# --- which metric


@pytest.mark.parametrize(
    ("rule", "names", "found"),
    [
        ("nan -> stop", ["train_loss", "val_loss", "lr"], "train_loss"),
        ("nan -> stop", ["val_loss"], "val_loss"),
        ("nan -> stop", ["lr", "best_loss"], ""),
        ("loss nan -> stop", ["train/loss", "val/loss"], "train/loss"),
        ("loss nan -> stop", ["loss", "aux_loss"], "loss"),
        ("aux_loss nan -> stop", ["loss", "aux_loss"], "aux_loss"),
        ("Val/Loss nan -> stop", ["val/loss", "loss"], "val/loss"),
        ("los nan -> stop", ["loss"], ""),
    ],
)
def test_loss_stands_for_the_losses_of_the_training(
    rule: str, names: list[str], found: str
) -> None:
    curves = {(0, name): curve([1.0, NAN, NAN, NAN]) for name in names}
    assert said(rule, curves) == (f"{found} was NaN from step 1" if found else "")


# --- spikes


def test_a_jump_is_a_spike() -> None:
    values = noisy(decay(300), 0.05)
    values[200] += 3.0
    text = said("loss spike -> notify", {(0, "loss"): curve(values)})
    assert text.startswith("loss jumped from 1.4")
    assert text.endswith("at step 200")


@pytest.mark.parametrize(
    "values",
    [
        noisy(decay(1000), 0.05),
        noisy(decay(1000), 0.5),
        [random.Random(step).expovariate(1.0) for step in range(1000)],
        [1.0] * 100 + [1.05] * 100,
        [-value for value in decay(500)],
    ],
    ids=["calm", "noisy", "long tail", "rounded", "rises slowly"],
)
def test_noise_is_no_spike(values: list[float]) -> None:
    assert said("loss spike -> notify", {(0, "loss"): curve(values)}) == ""


def test_twenty_values_are_needed_before_a_spike() -> None:
    flat = noisy([1.0] * 19, 0.01)
    assert said("loss spike -> notify", {(0, "loss"): curve([*flat, 9.0])}) == ""
    assert said("loss spike -> notify", {(0, "loss"): curve([*flat, 1.0, 9.0])}) != ""


# --- trends


@pytest.mark.parametrize(("values", "tau"), [([1, 2, 3], 1.0), ([3, 2, 1], -1.0), ([1, 1], 0.0)])
def test_the_order_of_values(values: list[float], tau: float) -> None:
    assert order(values) == tau


def test_a_loss_that_rises_for_the_span_is_found_and_no_other() -> None:
    falls = noisy(decay(400), 0.05)
    rises = [falls[-1] + step * 0.004 for step in range(300)]
    bad = {(0, "loss"): curve([*falls, *noisy(rises, 0.05)])}
    assert "loss rose from" in said("loss rises for 200 steps -> notify", bad)
    assert said("loss rises for 600 steps -> notify", bad) == ""
    for seed in range(5):
        fine = {(0, "loss"): curve(noisy(decay(2000), 0.05, seed))}
        assert said("loss rises for 200 steps -> notify", fine) == ""


def test_a_short_rise_is_none() -> None:
    falls = noisy(decay(400), 0.05)
    bump = [falls[-1] + 0.01 * min(step, 100 - step) for step in range(100)]
    curves = {(0, "loss"): curve([*falls, *bump, *falls[300:400]])}
    assert said("loss rises for 200 steps -> notify", curves) == ""


def test_a_loss_stands_still_by_steps_and_by_time() -> None:
    still = {(0, "loss"): curve(noisy([2.0] * 400, 0.05), seconds=2.0)}
    assert said("loss stands still for 200 steps -> notify", still).startswith(
        "loss stands still at "
    )
    assert said("loss stands still for 10 min -> notify", still)
    assert said("loss stands still for 20 min -> notify", still) == ""
    falls = {(0, "loss"): curve(noisy([3.0 - step / 400 for step in range(800)], 0.05))}
    assert said("loss stands still for 200 steps -> notify", falls) == ""


def test_a_trend_needs_values_in_most_of_the_span() -> None:
    seldom = {(0, "loss"): curve([2.0] * 20, every=100.0)}
    assert said("loss stands still for 200 steps -> notify", seldom) == ""
    assert said("loss stands still for 1000 steps -> notify", seldom)


# --- idle


def use(**values: Sequence[float]) -> Curves:
    return {
        (None, f"worker/{name}"): curve(each, axis="count", seconds=30.0)
        for name, each in values.items()
    }


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (
            use(gpu0_percent=[90.0, *[0.0] * 5], cpu_cores=[1.0] * 6),
            "the GPUs did nothing for 2 min",
        ),
        (use(gpu0_percent=[90.0, *[0.0] * 4]), ""),
        (use(gpu0_percent=[0.0] * 6, gpu1_percent=[0.0, 0.0, 0.0, 50.0, 0.0, 0.0]), ""),
        (use(cpu_cores=[0.01] * 6), "the ranks did nothing for 2 min"),
        (use(cpu_cores=[0.01] * 5 + [1.0]), ""),
        ({}, ""),
    ],
)
def test_idle_gpus_or_without_gpus_idle_cores(used: Curves, expected: str) -> None:
    assert said("idle for 2 min -> notify", {}, used) == expected


def test_a_worker_at_work_is_enough() -> None:
    alarms = Alarms([parse("idle for 1 min -> notify")])
    idle = {name: points for (_, name), points in use(cpu_cores=[0.0] * 9).items()}
    busy = {name: points for (_, name), points in use(cpu_cores=[1.0] * 9).items()}
    alarms.look(0, {}, idle)
    alarms.look(1, {}, busy)
    assert alarms.found() == []
    alarms = Alarms([parse("idle for 1 min -> notify")])
    alarms.look(0, {}, idle)
    alarms.look(1, {}, idle)
    assert len(alarms.found()) == 1


# --- looks


def test_each_point_is_read_once_and_each_rule_found_once() -> None:
    points = curve(FINE)
    rules = ["loss > 10 -> notify", "nan -> stop"]
    alarms = Alarms([parse(rule) for rule in rules])
    told = []
    for value in [11.0, 12.0, NAN, NAN, NAN, NAN, 11.0]:
        points.add(float(len(points)), float(len(points)), value)
        alarms.look(0, {(0, "loss"): points}, {})
        told += [(each.rule.text, len(points)) for each in alarms.found()]
    assert told == [("loss > 10 -> notify", 7), ("nan -> stop", 11)]
    assert alarms.is_done


def test_a_curve_that_is_thinned_between_two_looks_is_read_on() -> None:
    points = curve(noisy([2.0] * 100, 0.01))
    alarms = Alarms([parse("loss > 10 for 5 steps -> stop")])
    alarms.look(0, {(0, "loss"): points}, {})
    for _ in range(4):
        points.add(float(len(points)), float(len(points)), 11.0)
    alarms.look(0, {(0, "loss"): points}, {})
    assert alarms.found() == []
    thinned = points.thinned_to(20)
    thinned.add(104.0, 104.0, 11.0)
    alarms.look(0, {(0, "loss"): thinned}, {})
    (found,) = alarms.found()
    assert found.sentence.endswith("from step 100")


def test_a_rule_that_was_found_by_an_earlier_server_is_not_found_again() -> None:
    alarms = Alarms([parse("nan -> stop")], ["nan -> stop"])
    alarms.look(0, {(0, "loss"): curve([NAN] * 9)}, {})
    assert alarms.found() == []


def test_a_long_curve_is_read_in_several_looks() -> None:
    points = curve([*[1.0] * 60_000, 11.0])
    alarms = Alarms([parse("loss > 10 -> stop")])
    assert not alarms.look(0, {(0, "loss"): points}, {})
    assert alarms.found() == []
    assert alarms.look(0, {(0, "loss"): points}, {})
    assert len(alarms.found()) == 1
