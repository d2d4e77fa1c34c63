"""Finds the parts of the state that a resumed run did not get back, by the records of the
optimizer's steps. Pure.

The first step of the resumed run begins with the weights that were loaded. The step of the
interrupted run that began with the same weights is the step after the checkpoint: state, rates,
batch and random numbers of both are compared. What differs was not restored.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from client_lib.drill.records import Step


class StatePart(str, Enum):
    """A part of the state of a training, by the name that reports give it."""

    WEIGHTS = "weights"
    OPTIMIZER = "optimizer state"
    RATES = "learning-rate schedule"
    RANDOM = "random state"
    ORDER = "order of the data"
    COUNTER = "step counter"
    SCALER = "gradient scaler"


class Restored(NamedTuple):
    """The way in which a run was resumed, counted in steps of the optimizer."""

    at: int | None
    """Steps before the checkpoint from which it went on; 0: nothing was loaded. None: the weights
    were not loaded, or are none that the runs had before."""
    made: int
    """Steps that the interrupted run had made."""
    lost: tuple[StatePart, ...]
    """The parts that were not restored, the gravest first."""


class _Reference(NamedTuple):
    """The state as it should be, step by step."""

    weights: Sequence[int]
    """One more than there are steps: the last one is the state at the end."""
    states: Sequence[int]
    steps: Sequence[Step]


def compare(
    interrupted: Sequence[Step],
    resumed: Sequence[Step],
    undisturbed: Sequence[Step],
    again: Sequence[Step],
) -> Restored | None:
    """Say how `resumed` continues `interrupted`. `undisturbed` and `again` are two whole runs: what
    differs between them, such as the order of the data without a seed, is not judged. None: one of
    the runs has no records."""
    if not (interrupted and resumed and undisturbed):
        return None
    reference = _reference(interrupted, undisturbed)
    made = len(interrupted)
    first = resumed[0]
    at = _found(first.weights, reference.weights, made)
    if at is None:
        return Restored(None, made, (StatePart.WEIGHTS,))
    if at == 0:
        goes_on = first.state != reference.states[0] or len(resumed) < len(undisturbed)
        return Restored(None, made, (StatePart.WEIGHTS,)) if goes_on else Restored(0, made, ())
    lost = []
    if first.state != reference.states[at]:
        lost.append(StatePart.OPTIMIZER)
    if at < len(reference.steps):
        lost += _differences(first, reference.steps[at], _repeated(undisturbed, again, at))
    if at + len(resumed) > len(undisturbed):  # then the order of the data only follows
        lost = [*(part for part in lost if part is not StatePart.ORDER), StatePart.COUNTER]
    return Restored(at, made, tuple(lost))


def is_repeatable(undisturbed: Sequence[Step], again: Sequence[Step]) -> bool:
    """True if two undisturbed runs have taken the same steps, to the last bit of what is compared.
    Times and generators that nobody uses may differ."""
    firsts, seconds = ([step.weights_after for step in run] for run in (undisturbed, again))
    return firsts == seconds


def _reference(interrupted: Sequence[Step], undisturbed: Sequence[Step]) -> _Reference:
    """The interrupted run, and behind its end the undisturbed one if both went the same way."""
    steps = list(interrupted)
    if is_repeatable(interrupted, undisturbed[: len(interrupted)]):
        steps += undisturbed[len(interrupted) :]
    weights = [step.weights for step in steps]
    states = [step.state for step in steps]
    return _Reference([*weights, steps[-1].weights_after], [*states, steps[-1].state_after], steps)


def _found(weights: int, among: Sequence[int], made: int) -> int | None:
    """The last place of these weights that is not behind the end of the interrupted run."""
    places = [at for at, each in enumerate(among[: made + 1]) if each == weights]
    return places[-1] if places else None


def _repeated(undisturbed: Sequence[Step], again: Sequence[Step], at: int) -> set[str]:
    """The fields of this step that are equal in both undisturbed runs."""
    if at >= min(len(undisturbed), len(again)):
        return set()
    pair = zip(undisturbed[at]._asdict().items(), again[at], strict=True)
    return {name for (name, one), other in pair if one == other}


def _differences(first: Step, wanted: Step, repeated: set[str]) -> list[StatePart]:
    lost = []
    if first.rates != wanted.rates:
        lost.append(StatePart.RATES)
    if first.scale != wanted.scale:
        lost.append(StatePart.SCALER)
    if "batch" in repeated and first.batch != wanted.batch:
        lost.append(StatePart.ORDER)
    elif "gradients" in repeated and first.gradients != wanted.gradients:
        # the same weights and the same batch: what is left is chance, such as a dropout
        lost.append(StatePart.RANDOM)
    return lost
