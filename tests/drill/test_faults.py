"""The moment of a fault: behind a save, and with work left to do."""

import pytest

from client_lib.drill.faults import FAULTS, Course, Fault, moment

SAVES = [1.0, 2.0, 3.0, 4.0]
STEPS = [0.1 * number for number in range(1, 41)]
COURSE = Course(ended=4.2, saves=SAVES, steps=STEPS)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.5, 0.99, 1.0])
def test_something_was_saved_and_something_is_lost(fault: Fault, part: float) -> None:
    found = moment(fault, COURSE, part)
    assert found.steps is not None
    assert found.saves >= (2 if fault in (Fault.DAMAGED, Fault.SAVE) else 1)
    assert found.steps < len(STEPS)
    at = STEPS[found.steps - 1]
    before = [save for save in SAVES if save < at]
    assert len(before) >= found.saves
    if fault in (Fault.SAVE, Fault.DISK):
        assert SAVES[len(before)] < STEPS[-1]


def test_a_script_without_an_optimizer_is_disturbed_by_the_clock() -> None:
    found = moment(Fault.KILL, Course(ended=4.2, saves=SAVES, steps=[]), 0.5)
    assert found.steps is None
    assert SAVES[found.saves - 1] < found.after_s < 4.2


def test_a_script_that_saves_nothing_is_disturbed_in_its_middle() -> None:
    found = moment(Fault.KILL, Course(ended=4.0, saves=[], steps=STEPS), 0.5)
    assert found.saves == 0
    assert found.steps
    assert 10 <= found.steps <= 30


def test_a_script_of_one_step_has_a_moment() -> None:
    assert moment(Fault.DAMAGED, Course(ended=1.0, saves=[0.9], steps=[0.5]), 0.7).steps == 1
