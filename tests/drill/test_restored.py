"""Which parts of a state were restored, told by the first step of the resumed run."""

from collections.abc import Sequence
from typing import Any

import pytest

from client_lib.drill.records import Step, parse
from client_lib.drill.restored import Restored, StatePart, compare, is_repeatable


def step(number: int, **changed: object) -> Step:
    """The step `number`, from 0, of a training that goes as it should."""
    made = Step(
        weights=100 + number,
        state=200 + number,
        rates=(0.1 / (number + 1),),
        random={"torch": 300 + number},
        batch=400 + number,
        scale=(1024.0, float(number)),
        gradients=500 + number,
        weights_after=101 + number,
        state_after=201 + number,
        time=float(number),
    )
    return made._replace(**changed)  # type: ignore[arg-type]


def steps(begin: int, end: int) -> list[Step]:
    return [step(number) for number in range(begin, end)]


WHOLE = steps(0, 20)


def resumed(at: int = 6, end: int = 20, **changed: object) -> Sequence[Step]:
    """A run that goes on behind `at` steps; `changed`: of its first step."""
    first, *rest = steps(at, end)
    return [first._replace(**changed), *rest]  # type: ignore[arg-type]


def test_a_run_that_goes_on_as_before_has_lost_nothing() -> None:
    assert compare(steps(0, 9), resumed(), WHOLE, WHOLE) == Restored(6, 9, ())


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"state": 200}, StatePart.OPTIMIZER),
        ({"rates": (0.1,)}, StatePart.RATES),
        ({"scale": (1024.0, 0.0)}, StatePart.SCALER),
        ({"batch": 400, "gradients": 1}, StatePart.ORDER),
        ({"gradients": 1, "random": {"torch": 1}}, StatePart.RANDOM),
    ],
)
def test_the_part_that_differs_is_named(changed: dict[str, Any], part: StatePart) -> None:
    found = compare(steps(0, 9), resumed(**changed), WHOLE, WHOLE)
    assert found == Restored(6, 9, (part,))


def test_random_numbers_that_nobody_uses_may_differ() -> None:
    found = compare(steps(0, 9), resumed(random={"torch": 1}), WHOLE, WHOLE)
    assert found == Restored(6, 9, ())


def test_a_run_that_loads_nothing_begins_with_the_first_weights() -> None:
    assert compare(steps(0, 9), WHOLE, WHOLE, WHOLE) == Restored(0, 9, ())


@pytest.mark.parametrize("changed", [{"weights": 100}, {"weights": 1}])
def test_weights_that_were_not_loaded_are_named(changed: dict[str, Any]) -> None:
    found = compare(steps(0, 9), resumed(**changed), WHOLE, WHOLE)
    assert found == Restored(None, 9, (StatePart.WEIGHTS,))


def test_a_run_that_counts_from_the_beginning_makes_too_many_steps() -> None:
    first, *rest = WHOLE
    anew = [first._replace(weights=106, state=206, rates=WHOLE[6].rates, scale=WHOLE[6].scale)]
    found = compare(steps(0, 9), [*anew, *rest], WHOLE, WHOLE)
    assert found == Restored(6, 9, (StatePart.COUNTER,))


def test_a_save_at_the_signal_is_compared_with_the_undisturbed_run() -> None:
    assert compare(steps(0, 9), resumed(9), WHOLE, WHOLE) == Restored(9, 9, ())
    found = compare(steps(0, 9), resumed(9, batch=400), WHOLE, WHOLE)
    assert found == Restored(9, 9, (StatePart.ORDER,))


def test_what_no_seed_repeats_is_not_judged() -> None:
    again = [each._replace(batch=1, gradients=2, weights=3, weights_after=3) for each in WHOLE]
    interrupted = [
        each._replace(batch=4, weights=each.weights + 50, weights_after=each.weights + 51)
        for each in steps(0, 9)
    ]
    found = compare(interrupted, resumed(weights=156, batch=5, gradients=6), WHOLE, again)
    assert found == Restored(6, 9, ())
    assert not is_repeatable(WHOLE, again)


def test_without_records_nothing_is_said() -> None:
    assert compare([], resumed(), WHOLE, WHOLE) is None
    assert compare(steps(0, 9), [], WHOLE, WHOLE) is None


def test_a_line_that_a_kill_has_cut_is_left_out() -> None:
    lines = [
        b'{"pid": 12, "started": "345"}\n',
        b'{"saved": "/a/last.pt"}\n',
        b'{"weights": 1, "gradients": 2, "state": 3, "rates": [0.1], "random": {}, "batch": null,'
        b' "scale": null, "weights_after": 4, "state_after": 5, "time": 6.5}\n',
        b'{"weights": 4, "grad',
    ]
    found = parse(lines)
    assert (found.pid, found.started) == (12, "345")
    assert found.saved == {"/a/last.pt"}
    assert [each.weights_after for each in found.steps] == [4]
